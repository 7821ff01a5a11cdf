"""``pytest --touched BASE``: slow cases of the tests of what changed since a revision run as well, while there is time.

A test file is touched if it changed, if it is in the room of a changed file (``tests/cost/`` is that of
``simpar/cost/``, ``tests/test_units.py`` that of ``simpar/units.py``), or if it imports a changed module.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

WITHOUT_SLOW = "not slow"
"""The expression on marks under which the gate runs."""
AT_A_TIME = 8
"""Cases of a file before those of the next one: files share the time, and their cases share fixtures."""


def changed_files(base: str, root: Path) -> list[str]:
    """Paths of what differs from a revision, files that git does not know included. Raises UsageError."""
    found: list[str] = []
    for command in (["diff", "--name-only", "--no-renames", base, "--"], ["ls-files", "-o", "--exclude-standard"]):
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["git failed"]
            raise pytest.UsageError(f"--touched {base}: {said[0]}; allowed: a revision of this repository")
        found += done.stdout.splitlines()
    return found


def touched_tests(changed: Iterable[str], root: Path) -> set[str]:
    """Paths of touched test files below ``root``."""
    paths = [PurePosixPath(path) for path in changed]
    rooms = {_room(path) for path in paths if path.parts[0] == "simpar"}
    modules = {_module(path) for path in paths if path.suffix == ".py"}
    found = set[str]()
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = PurePosixPath(file.relative_to(root).as_posix())
        if path in paths or _room(path) in rooms or not modules.isdisjoint(_imported(file)):
            found.add(str(path))
    return found


def _room(path: PurePosixPath) -> str:
    """The package that a file of ``simpar`` or of ``tests`` belongs to, or the module that stands alone."""
    return path.parts[1].removeprefix("test_").removesuffix(".py")


def _module(path: PurePosixPath) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(file: Path) -> Iterator[str]:
    """Modules that a file imports; of ``from a import b`` both a and a.b, because b may be a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The revision, and the time."""
    group = parser.getgroup("touched", "slow cases of what changed")
    group.addoption("--touched", metavar="BASE", help="run slow cases of tests of what changed since this revision")
    group.addoption(
        "--touched-until", metavar="S", type=float, default=600.0,
        help="start such cases in the first S seconds of the run (default: 600)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Find out what is touched, once: processes of xdist are told."""
    base = config.option.touched
    if base is None:
        return
    if config.option.markexpr != WITHOUT_SLOW:
        raise pytest.UsageError(f"--touched with -m {config.option.markexpr!r}: allowed: without -m")
    config.option.markexpr = ""
    if not (known := getattr(config, "workerinput", {}).get("touched")):
        head = ["git", "rev-parse", "HEAD"]
        files = sorted(touched_tests(changed_files(base, config.rootpath), config.rootpath))
        known = (files, subprocess.run(head, cwd=config.rootpath, capture_output=True, text=True, check=True).stdout)
    config.pluginmanager.register(Touched(*known, config.option.touched_until))


class Touched:
    """Runs slow cases of touched test files behind all other tests, in an order that differs from commit to commit.

    They start in the first ``until_s`` seconds of the run; the rest is skipped, and counted in the summary.
    """

    def __init__(self, files: list[str], seed: str, until_s: float) -> None:
        self.files, self.seed, self.until_s = files, seed, until_s
        self.slow, self.begin_s = set[str](), time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of xdist."""
        node.workerinput["touched"] = self.files, self.seed

    def _drawn(self, name: str) -> str:
        return hashlib.sha256(f"{self.seed} {name}".encode()).hexdigest()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out slow cases of other tests; put those that are touched behind, some of every file in turn."""
        slow = [item for item in items if item.get_closest_marker("slow")]
        by_file = {item: item.path.relative_to(config.rootpath).as_posix() for item in slow}
        drawn = sorted(
            (item for item in slow if by_file[item] in self.files), key=lambda item: self._drawn(item.nodeid)
        )
        place, turn = Counter[str](), dict[pytest.Item, int]()
        for item in drawn:
            turn[item] = place[by_file[item]] // AT_A_TIME
            place[by_file[item]] += 1
        drawn.sort(key=lambda item: (turn[item], self._drawn(by_file[item])))
        self.slow = {item.nodeid for item in drawn}
        config.hook.pytest_deselected(items=[item for item in slow if item.nodeid not in self.slow])
        ordinary = [item for item in items if item not in by_file]
        items[:] = [*ordinary, *drawn]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what there is no time for."""
        if item.nodeid in self.slow and time.monotonic() - self.begin_s >= self.until_s:
            pytest.skip(f"slow cases of what changed, beyond --touched-until {self.until_s:g}")
