"""The templates of docs/ci, run as the scripts that they hold, in a repository whose change touches launches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simpar import files
from simpar.preflight.changes import LAUNCHES, main

ROOT = Path(__file__).parents[2]
COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --bf16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size {micro} --global-batch-size 4096"
)
CHANGED = {
    "fits.sh": "#!/bin/bash\n# simpar: --model gpt2\n" + COMMAND.format(micro=4),
    "large.sh": COMMAND.format(micro=512),
    "unsure.sh": "# simpar: --model gpt2\n" + COMMAND.format(micro=4) + " --heterogeneous-layers-config-path a --odd 1",
    "values.yaml": "replicas: 1",
    "wrong.sh": "# simpar: --fits-with 0.5\n" + COMMAND.format(micro=4),
    "notes.txt": "no launch by its name",
}
VERDICTS = {
    "fits.sh": "**fits**", "large.sh": "**does not fit**", "unsure.sh": "**not sure**", "values.yaml": "not read",
    "wrong.sh": "not read",
}  # fmt: skip
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")


def git(folder, *words):
    """Run git in a folder."""
    subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A clone on a branch that adds launches; what was there before is none of the change."""
    origin, clone = tmp_path_factory.mktemp("origin"), tmp_path_factory.mktemp("clone") / "here"
    git(origin, "init")
    (origin / "before.sh").write_text(COMMAND.format(micro=512))
    git(origin, "add", "-A")
    git(origin, "commit", "-m", "before")
    git(origin, "clone", str(origin), str(clone))
    git(clone, "checkout", "-b", "change")
    for name, text in CHANGED.items():
        (clone / name).write_text(f"{text}\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-m", "change")
    return clone


PATHS = ("large.sh", "*.yaml")
"""What the templates are told to look at."""


@pytest.fixture
def comment(repository, monkeypatch, capsys):
    """What the module prints for some patterns, and its exit code."""

    def of(*patterns):
        monkeypatch.chdir(repository)
        code = main(["--base", "origin/main", "--hardware", "dgx-h100", *patterns])
        return capsys.readouterr().out, code

    return of


@pytest.fixture
def tools(tmp_path):
    """A PATH whose ``python`` installs nothing and whose ``gh`` and ``curl`` write down what they are asked."""
    tool = '#!/bin/bash\nprintf "%s\\n" "$0" "$@" >> "$CALLS"\n'
    installs = '[ "$2" = pip ] && { printf "%s\\n" "$@" >> "$CALLS"; exit; }'
    python = f'#!/bin/bash\n{installs}\nexec {sys.executable} "$@"\n'
    for name, text in {"gh": tool, "curl": tool, "python": python}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "CALLS": str(tmp_path / "calls")}


def run_steps(scripts, folder, environment):
    """Run scripts in turn as a runner's bash does, up to one that fails; returns the last exit code."""
    for script in scripts:
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=environment, check=False)
        if done.returncode:
            return done.returncode
    return 0


def test_the_comment_has_a_line_for_every_changed_launch(comment):
    """What fits, what does not, what is not sure and what is not read; a launch cannot lower what is wanted of it."""
    text, code = comment()
    rows = dict(re.findall(r"^\| `(.*?)` \| (.*?) \|", text, re.MULTILINE))
    assert (rows, code) == (VERDICTS, 3)
    assert "| `fits.sh` | **fits** | fits: " in text
    assert "--heterogeneous-layers-config-path` decides and is not modelled" in text
    assert "- `--odd` is unknown to simpar and may decide" in text
    assert "unrecognized arguments: --fits-with 0.5" in text
    assert "+torchrun" in text.partition("<summary>large.sh</summary>")[2]


def test_the_action_of_github_comments_and_fails(repository, comment, tools, tmp_path):
    """Its steps are run with the inputs that it declares."""
    action = files.load(ROOT / "docs/ci/action.yml").data
    given = {name: about.get("default", "") for name, about in action["inputs"].items()}
    given |= {"hardware": "dgx-h100", "base": "origin/main", "paths": " ".join(PATHS), "install": "simpar-planner"}
    values = {f"inputs.{name}": value for name, value in given.items()}
    values |= {"github.token": "secret", "github.event.pull_request.number": "7"}
    written = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    code = 0
    for step in action["runs"]["steps"]:
        assert (step["shell"], code) == ("bash", 0)
        if "output" in os.listdir(tmp_path):
            values["steps.check.outputs.code"] = (tmp_path / "output").read_text().strip().removeprefix("code=")
        own = {name: values[text.removeprefix("${{ ").removesuffix(" }}")] if "${{" in text else text
               for name, text in step["env"].items()}  # fmt: skip
        code = run_steps([step["run"]], repository, tools | written | own)
    assert code == 3
    assert (tmp_path / "summary").read_text() == (repository / "simpar-check.md").read_text() == comment(*PATHS)[0]
    calls = (tmp_path / "calls").read_text().split("\n")
    assert calls[:6] == ["-m", "pip", "install", "--quiet", "simpar-planner", str(tmp_path / "gh")]
    assert calls[6:9] == ["pr", "comment", "7"]


@pytest.mark.slow
def test_the_template_of_gitlab_comments_and_fails(repository, comment, tools, tmp_path):
    """Its lines are run with the variables that it declares and those of a runner."""
    template = files.load(ROOT / "docs/ci/gitlab.yml").data
    runner = {
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_API_V4_URL": "https://git.example.com/api/v4",
        "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "9", "SIMPAR_TOKEN": "secret",
        "SIMPAR_PATHS": " ".join(PATHS),
    }  # fmt: skip
    job = template["simpar-check"]
    code = run_steps([*job["before_script"], *job["script"]], repository, tools | template["variables"] | runner)
    assert code == 3
    assert (repository / "simpar-check.md").read_text() == comment(*PATHS)[0]
    calls = (tmp_path / "calls").read_text()
    assert "body@simpar-check.md\nhttps://git.example.com/api/v4/projects/5/merge_requests/9/notes" in calls


def test_a_change_without_launches_and_a_wrong_base(repository, monkeypatch, capsys):
    """The first has a comment that says so, the second is bad input."""
    monkeypatch.chdir(repository)
    assert main(["--base", "HEAD", *LAUNCHES]) == 0
    assert "No launch file is changed." in capsys.readouterr().out
    assert main(["--base", "nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("git diff nowhere...HEAD: ")
