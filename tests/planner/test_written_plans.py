"""Plans that searches write are taken as they are: simulated where they were made for, exported, run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simpar import cli
from simpar.plan.plan import Plan

TINY = ["gpt2-laptop", "--model", "tiny-llama", "--seq-len", "64", "--global-batch", "8", "--top", "3"]
SPACES = ("uniform", "uneven", "alpa")
NARROW = {
    "uniform": ["--recompute", "none"],
    "uneven": ["--fix", "pp=2", "--schedules", "1f1b", "--micro-batch", "1"],
    "alpa": [],
}
"""What is left out of each space, which still has plans of several layouts."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """By space: the plan file and the JSON of its search."""
    folder, found = tmp_path_factory.mktemp("plans"), {}
    for space in SPACES:
        plan, answer = folder / f"{space}.json", folder / f"{space}-search.json"
        command = ["search", *TINY, *NARROW[space], "--space", space, "-o", str(plan), "--json", str(answer)]
        assert cli.run(command) == 0
        found[space] = plan, json.loads(answer.read_text())
    return found


@pytest.mark.parametrize("space", SPACES)
def test_a_written_plan_is_simulated_to_what_was_found(written, space, capsys):
    """Without any flag: step to the nanosecond, memory to the byte, and it fits."""
    plan, answer = written[space]
    assert cli.run(["simulate", str(plan), "--require-fit", "--json", "-"]) == 0
    result, best = json.loads(capsys.readouterr().out), answer["candidates"][0]
    for name in ("step_time_s", "peak_memory_bytes"):
        assert result[name] == best[name]
    assert Plan.load(plan).world_size == result["cluster"]["devices"] == 4


@pytest.mark.parametrize("space", SPACES)
def test_no_candidate_is_listed_twice(written, space):
    """Plans differ, and each says what devices it runs on."""
    plans = [Plan.model_validate(one["plan"]) for one in written[space][1]["candidates"]]
    texts = [plan.model_dump_json(exclude={"predicted"}) for plan in plans]
    assert len(set(texts)) == len(texts)
    assert all(plan.world_size == 4 for plan in plans)


def test_other_hardware_may_be_named(written, capsys):
    """A flag wins over the cluster that the file names."""
    plan, answer = written["uniform"]
    assert (
        cli.run(
            [
                "simulate",
                str(plan),
                "--hardware",
                "dgx-h100",
                "--tp",
                "1",
                "--dp",
                "8",
                "--micro-batch",
                "1",
                "--json",
                "-",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["cluster"]["hardware"] == "dgx-h100"
    assert result["step_time_s"] < answer["candidates"][0]["step_time_s"]


def test_stages_of_their_own_are_called_so(written, capsys):
    """A plan whose stages have meshes of their own is not one device."""
    assert cli.run(["simulate", str(written["alpa"][0])]) == 0
    said = capsys.readouterr().out
    assert "one device" not in said
    assert "stages of their own (layers on devices: 4 on 4" in said


@pytest.mark.parametrize("space", SPACES)
def test_targets_take_it_or_say_what_they_cannot_express(written, space, tmp_path, capsys):
    """An export writes files, or is refused in one line that names the field."""
    plan, _ = written[space]
    code = cli.run(["export", str(plan), "--to", "megatron", "-o", str(tmp_path)])
    said = capsys.readouterr()
    assert (code == 0 and (tmp_path / "command.sh").exists()) or "stages" in said.err
    assert (code == 0) == (space != "alpa")


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
def test_a_written_plan_is_trained(written, space, tmp_path):
    """One step of every rank with torch on the host."""
    pytest.importorskip("torch")
    plan, answer = written[space]
    command = [sys.executable, "-m", "simpar", "run", str(plan), "--steps", "1", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(Path(tmp_path / "out" / "report.json").read_text())
    assert report["ranks"] == 4
    assert report["predicted"]["step_time_s"] == answer["candidates"][0]["step_time_s"]
