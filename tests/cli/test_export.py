"""simpar export and simpar import, as a user types them."""

import json
import os
import subprocess

import pytest

from simpar import cli
from simpar.plan.plan import Plan

SCENARIO = "gpt3-175b-64-a100"


def test_a_scenario_is_exported_imported_and_exported_again(tmp_path, capsys):
    """The second export of the imported plan is the first one, word for word."""
    first, second, plan = tmp_path / "first", tmp_path / "second", tmp_path / "plan.json"
    assert cli.run(["export", SCENARIO, "--to", "megatron", "-o", str(first)]) == 0
    assert "wrote README.md, command.sh" in capsys.readouterr().out
    assert cli.run(["import", str(first / "command.sh"), "--from", "megatron", "-o", str(plan)]) == 0
    assert "not part of a plan: --kv-channels" in capsys.readouterr().out
    again = ["export", str(plan), "--to", "megatron", "-o", str(second), "--nodes", "8"]
    assert cli.run([*again, "--model", Plan.load(first / "plan.json").model or ""]) == 0
    arguments = [(folder / "command.sh").read_text().split("COMMAND=")[1] for folder in (first, second)]
    assert arguments[0] == arguments[1]


def test_launchers_can_be_started(tmp_path):
    """A launcher is executable and starts torchrun with the command and what is added."""
    assert cli.run(["export", "gpt2-laptop", "--to", "megatron", "-o", str(tmp_path / "out"), "--lossy"]) == 0
    stub = tmp_path / "bin" / "torchrun"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}", "MEGATRON": "/elsewhere"}
    done = subprocess.run(
        [str(tmp_path / "out" / "local.sh"), "--exit-interval", "3"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[:2] == ["--standalone", "--nproc-per-node"]
    assert "/elsewhere/pretrain_gpt.py" in words
    assert words[-2:] == ["--exit-interval", "3"]


def test_what_is_lost_is_refused_or_listed(tmp_path, capsys):
    """Exit code 2 with the reason; with --lossy the list stands in the JSON and in the page."""
    plan = tmp_path / "plan.json"
    training = {"seq_len": 1024, "global_batch": 64}
    Plan(pp=4, dp=2, schedule="zb-h1", model="llama-3-8b", training=training).save(plan)
    command = ["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "out")]
    assert cli.run(command) == 2
    assert "schedule = zb-h1: the target has 1f1b, interleaved" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.run([*command, "--lossy", "--json", "-"]) == 0
    lost = json.loads(capsys.readouterr().out)["lost"]
    assert lost == ["schedule = zb-h1: the target has 1f1b, interleaved"]
    assert lost[0] in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dp": 8}, "--model"),
        ({"dp": 8, "model": "llama-3-8b"}, "--seq-len"),
        ({"model": "llama-3-8b", "training": {"seq_len": 1024, "global_batch": 64}}, "--nodes"),
        ({"dp": 7, "model": "llama-3-8b", "training": {"seq_len": 1024, "global_batch": 64}}, "plan.dp = 7"),
    ],
)
def test_what_a_plan_lacks_is_asked_for(fields, words, tmp_path, capsys):
    """A missing fact is named with the flag that gives it."""
    plan = tmp_path / "plan.json"
    Plan.model_validate(fields).save(plan)
    assert cli.run(["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
