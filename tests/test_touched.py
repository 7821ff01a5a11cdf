"""Slow cases of what changed run: found by rooms and by imports, drawn by the commit, while there is time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.touched import touched_tests

ROOT = Path(__file__).parents[1]
FILES = {
    "simpar/__init__.py": "", "simpar/units.py": "", "simpar/cost/__init__.py": "", "simpar/cost/ring.py": "",
    "simpar/cost/table.yaml": "", "simpar/plan/__init__.py": "", "simpar/plan/mesh.py": "",
    "tests/helper.py": "import simpar.plan.mesh",
    "tests/cost/test_ring.py": "from simpar.cost.ring import *", "tests/cost/test_law.py": "",
    "tests/plan/test_mesh.py": "import simpar.plan.mesh", "tests/test_units.py": "",
    "tests/laws/test_all.py": "from simpar.cost import ring\nfrom tests import helper",
    "tests/conftest.py": "from tests.touched import pytest_addoption, pytest_configure",
    "pyproject.toml": """[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = "-ra --import-mode=importlib -m 'not slow' --dist worksteal"
markers = ["slow: not in the gate"]
""",
}  # fmt: skip
CASES = """
import pytest

def test_quick():
    pass

@pytest.mark.slow
@pytest.mark.parametrize("case", range(20))
def test_slow(case):
    pass
"""
RING = {"tests/cost/test_ring.py", "tests/cost/test_law.py", "tests/laws/test_all.py"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["simpar/cost/ring.py"], RING),
        (["simpar/cost/table.yaml"], {"tests/cost/test_ring.py", "tests/cost/test_law.py"}),
        (["simpar/units.py"], {"tests/test_units.py"}),
        (["simpar/plan/mesh.py"], {"tests/plan/test_mesh.py"}),
        (["tests/plan/test_mesh.py", "README.md"], {"tests/plan/test_mesh.py"}),
        (["tests/helper.py"], {"tests/laws/test_all.py"}),
        (["simpar/cost/gone.py"], {"tests/cost/test_ring.py", "tests/cost/test_law.py"}),
        (["pyproject.toml", "docs/plan/mesh.md"], set()),
    ],
)
def test_rooms_and_imports(tmp_path: Path, changed: list[str], expected: set[str]) -> None:
    """Tests of the room of a changed file, those that import it, and those that changed themselves."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert touched_tests(changed, tmp_path) == expected


def git(root: Path, *arguments: str) -> str:
    """Standard output of git, as somebody whose settings do not matter."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with tests of 1 quick and 20 slow cases a file; its last commit changed ``simpar/cost/ring.py``."""
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + CASES * Path(name).name.startswith("test_"))
    shutil.copy(ROOT / "tests/touched.py", root / "tests")
    (root / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "simpar/cost/ring.py").write_text("HOPS = 1\n")
    git(root, "commit", "-qam", "second")
    return root


def run_pytest(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of the tests of a repository, with no plugin but xdist: others take seconds to load."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_slow_cases_of_what_changed_run_behind_the_others(repository: Path) -> None:
    """Five quick tests, then 3 x 20 slow ones, eight of a file at a time; the other 40 stay out."""
    done = run_pytest(repository, "-v", "--touched", "HEAD~1")
    assert "65 passed, 40 deselected" in done.stdout, done.stdout + done.stderr
    ran = re.findall(r"^(tests/\S+)::test_(quick|slow)", done.stdout, re.MULTILINE)
    assert [kind for _, kind in ran] == ["quick"] * 5 + ["slow"] * 60
    assert {file for file, kind in ran if kind == "slow"} == RING
    turns = [file for file, kind in ran if kind == "slow"][:24]
    assert [len(set(turns[at : at + 8])) for at in (0, 8, 16)] == [1, 1, 1]
    assert set(turns) == RING


@pytest.mark.slow
def test_processes_of_xdist_share_what_is_touched(repository: Path) -> None:
    """The same cases on two of them."""
    done = run_pytest(repository, "-n", "2", "--touched", "HEAD~1")
    assert "65 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_nothing_is_touched_without_a_change(repository: Path) -> None:
    """The run of every day: five quick tests."""
    for arguments in (["--touched", "HEAD"], []):
        assert "5 passed, 100 deselected" in run_pytest(repository, *arguments).stdout


def test_beyond_the_time_cases_are_counted_in_one_line(repository: Path) -> None:
    """None of them runs for nothing."""
    done = run_pytest(repository, "--touched", "HEAD~1", "--touched-until", "0")
    assert "5 passed, 60 skipped, 40 deselected" in done.stdout, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(lines) == 1
    assert lines[0].startswith("SKIPPED [60] ")
    assert lines[0].endswith("slow cases of what changed, beyond --touched-until 0")


@pytest.mark.slow
def test_the_order_is_that_of_the_commit(repository: Path, tmp_path: Path) -> None:
    """Twice the same at one commit, another at the next."""

    def order(root: Path) -> list[str]:
        done = run_pytest(root, "--collect-only", "-q", "--touched", "HEAD~1")
        return re.findall(r"^\S+::test_slow\S*", done.stdout, re.MULTILINE)

    first = order(repository)
    later = tmp_path / "later"
    git(repository, "clone", "-q", str(repository), str(later))
    assert order(later) == first
    git(later, "commit", "-q", "--amend", "-m", "another id")
    assert len(first) == 60
    assert order(later) != first


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--touched", "nowhere"], "--touched nowhere: fatal: bad revision 'nowhere'; allowed: a revision of this"),
        pytest.param(
            ["--touched", "HEAD", "-m", "slow"], "--touched with -m 'slow': allowed: without -m", marks=pytest.mark.slow
        ),
    ],
)
def test_what_cannot_be_done_is_refused(repository: Path, arguments: list[str], line: str) -> None:
    """In one line."""
    done = run_pytest(repository, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert line in done.stderr


def test_the_gate_takes_the_base_that_its_comment_says(repository: Path, tmp_path: Path) -> None:
    """GATE_BASE; on a branch, where it left; on the default branch, the commit before; without history, none."""
    function = re.search(r"^base\(\) \{.*?^\}", (ROOT / ".ci/run").read_text(), re.DOTALL | re.MULTILINE)

    def base(root: Path, **environment: str) -> str:
        plain = {name: value for name, value in os.environ.items() if name != "GATE_BASE"}
        script = f"set -euo pipefail\n{function[0]}\nbase 2> /dev/null || echo none"
        command = ["bash", "-c", script]
        ended = subprocess.run(
            command, cwd=root, env={**plain, **environment}, capture_output=True, text=True, check=True
        )
        return ended.stdout.strip()

    clone, shallow, plain = tmp_path / "clone", tmp_path / "shallow", tmp_path / "plain"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    assert base(clone, GATE_BASE="v1") == "v1"
    assert base(clone) == git(repository, "rev-parse", "HEAD~1")
    for message in ("third", "fourth"):
        git(clone, "commit", "-q", "--allow-empty", "-m", message)
    assert base(clone) == git(repository, "rev-parse", "HEAD")
    assert base(repository) == git(repository, "rev-parse", "HEAD~1")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(shallow))
    plain.mkdir()
    assert base(shallow) == base(plain, GIT_CEILING_DIRECTORIES=str(tmp_path)) == "none"
