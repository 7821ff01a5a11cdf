"""simpar export and simpar import, as a user types them."""

import json
import os
import re
import shutil
import subprocess

import pytest

import simpar
from simpar import cli
from simpar.plan.plan import Plan
from simpar.scenario import load_scenario
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from tests.gate import some

SCENARIO = "gpt3-175b-64-a100"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of an exported scenario."""
    folder = tmp_path_factory.mktemp("exported") / "first"
    assert cli.run(["export", SCENARIO, "--to", "megatron", "-o", str(folder)]) == 0
    return folder


def test_a_scenario_is_exported_imported_and_exported_again(exported, tmp_path, capsys):
    """The second export of the imported plan is the first one, word for word."""
    first, second, plan = exported, tmp_path / "second", tmp_path / "plan.json"
    assert {"README.md", "command.sh"} <= {path.name for path in first.iterdir()}
    assert cli.run(["import", str(first / "command.sh"), "--from", "megatron", "-o", str(plan)]) == 0
    said = capsys.readouterr().out
    assert "--log-interval" in said.partition("without effect on time and memory: ")[2]
    again = ["export", str(plan), "--to", "megatron", "-o", str(second), "--nodes", "8"]
    assert cli.run([*again, "--model", Plan.load(first / "plan.json").model or ""]) == 0
    assert "wrote README.md, command.sh" in capsys.readouterr().out
    arguments = [(folder / "command.sh").read_text().split("COMMAND=")[1] for folder in (first, second)]
    assert arguments[0] == arguments[1]


def test_flags_of_the_layout_are_those_of_simulate(tmp_path, capsys):
    """They replace a plan's own, leave open what follows, or say all; a layout that is impossible is one line."""
    job = ["--model", "gpt2", "--hardware", "dgx-h100", "--seq-len", "1024", "--global-batch", "64", "--to", "megatron"]
    assert cli.run(["export", *job, "--tp", "2", "-o", str(tmp_path / "said")]) == 0
    made = Plan.load(tmp_path / "said" / "plan.json")
    assert (made.mesh.tp, made.mesh.dp) == (2, 4)
    again = ["export", str(tmp_path / "said" / "plan.json"), "--to", "megatron"]
    assert cli.run([*again, "--tp", "4", "--set", "plan.micro_batch=2", "-o", str(tmp_path / "other")]) == 0
    other = Plan.load(tmp_path / "other" / "plan.json")
    assert (other.mesh.tp, other.mesh.dp, other.micro_batch) == (4, 2, 2)
    assert "--tensor-model-parallel-size 4" in (tmp_path / "other" / "command.sh").read_text()
    capsys.readouterr()
    assert cli.run([*again, "--dp", "3", "-o", str(tmp_path / "bad")]) == 2
    assert capsys.readouterr().err.startswith("plan.dp = 3: tp x cp x pp = 2 x 1 x 1 = 2 on 8 devices leaves 4")


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


SEARCH = [
    "search", "--model", "llama-3-8b", "--hardware", "dgx-h100", "--seq-len", "4096", "--global-batch", "16",
    "--fix", "pp=1", "--fix", "cp=1", "--fix", "tp=1,2", "--recompute", "none", "--top", "1",
]  # fmt: skip


@pytest.mark.parametrize("stack", some(["torchtitan", "deepspeed"], 1))
def test_what_is_found_for_a_stack_is_what_its_framework_has(stack, tmp_path, capsys):
    """Without --portable the export loses nothing, and needs no second prediction; the answer says who decided."""
    plan = tmp_path / "plan.json"
    assert cli.run([*SEARCH, "--micro-batch", "2", "--stack", stack, "-o", str(plan), "-v"]) == 0
    said = capsys.readouterr().out
    assert f"by {stack}, the framework of stack {stack}: without " in said
    assert "(--portable any searches them, too)" in said
    assert cli.run(["export", str(plan), "--to", stack, "-o", str(tmp_path / "out")]) == 0
    assert "Under " not in capsys.readouterr().out


def test_another_stack_predicts_again_and_refuses_what_does_not_fit(tmp_path, capsys):
    """One line with the numbers of both and exit code 2; forced, they are a note; where it fits, too."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    assert cli.run([*SEARCH, "--seq-len", "6400", "--micro-batch", "1", "-o", str(plan)]) == 0
    found = Plan.load(plan)
    assert (found.stack, found.cluster["hardware"]) == ("megatron", "dgx-h100")
    capsys.readouterr()
    command = ["export", str(plan), "--to", "torch", "-o", str(out)]
    lossless = [*command, "--lossy"]
    assert cli.run(lossless) == 2
    error = capsys.readouterr().err.strip()
    assert "Under simpar, the stack of torch, the plan is at the limit: 80.8 GiB of 79.2 GiB" in error
    assert "GiB of 79.2 GiB" in error
    assert "under megatron, for which it was made, " in error
    assert error.endswith("(--force exports it anyway)")
    assert "\n" not in error
    assert not out.exists()
    assert cli.run([*lossless, "--force", "--json", "-"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert error.removesuffix(" (--force exports it anyway)") in notes
    assert cli.run(["export", str(plan), "--to", "torchtitan", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    there = re.search(
        r"Under torchtitan, the stack of torchtitan, the plan fits: (.*?) of .*?, ([\d.]+ s) a step", said
    )
    for name in ("README.md", "simpar_recipe.py"):
        text = (out / name).read_text()
        assert f"Predicted under torchtitan: {there[2]} a step, MFU " in text
        assert f", {there[1]} reserved at the peak." in text
    assert there[0] in (out / "README.md").read_text()


def test_what_fits_less_surely_than_is_wanted_is_refused(tmp_path, capsys):
    """Also for the stack that it was made for, with both numbers: what its search wanted, or 95 %."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    crowded = ["--fix", "zero=2", "--fix", "micro_batch=2", "--fit-probability", "0.5"]
    assert cli.run([*SEARCH, *crowded, "-o", str(plan)]) == 0
    sure = simpar.simulate(**load_scenario(str(plan), {}).inputs()).certainty.fit_probability
    assert 0.5 <= sure < DEFAULT_FIT_PROBABILITY
    capsys.readouterr()
    command = ["export", str(plan), "--to", "megatron", "-o", str(out)]
    assert cli.run(command) == 0
    assert "wanted" not in capsys.readouterr().out
    shutil.rmtree(out)
    assert cli.run([*command, "--fit-probability", "0.95"]) == 2
    assert "--fit-probability 0.95 is wanted" in capsys.readouterr().err
    found = json.loads(plan.read_text())
    assert found.pop("search") == {"fit_probability": 0.5}
    plan.write_text(json.dumps(found))
    assert cli.run(command) == 2
    error = capsys.readouterr().err
    assert "Under megatron, the stack of megatron, the plan fits: " in error
    assert f"{100 * sure:.0f} % sure" in error
    assert "--fit-probability 0.95 is wanted (--force exports it anyway)" in error
    assert not out.exists()
    assert cli.run([*command, "--fit-probability", f"{sure - 0.01:.3f}"]) == 0
    assert cli.run([*command, "--force"]) == 0
    assert "--fit-probability 0.95 is wanted" in capsys.readouterr().out
    assert cli.run([*command, "--fit-probability", "1.5"]) == 2
    assert "--fit-probability 1.5: allowed: above 0 and below 1" in capsys.readouterr().err


def test_a_plan_without_a_cluster_says_that_nothing_was_predicted(tmp_path, capsys):
    """Until one is named; plans without a stack claim nothing."""
    plan = tmp_path / "plan.json"
    facts = {"model": "llama-3.2-1b", "training": {"seq_len": 1024, "global_batch": 16}}
    Plan(dp=8, zero=2, stack="fsdp", **facts).save(plan)
    command, page = (
        ["export", str(plan), "--to", "torchtitan", "-o", str(tmp_path / "out")], tmp_path / "out" / "README.md"
    )  # fmt: skip
    assert cli.run(command) == 0
    assert "Not predicted for stack torchtitan: the plan names no cluster" in capsys.readouterr().out
    assert "Predicted under" not in page.read_text()
    figures = {"step_time_s": 2.0, "mfu": 0.4, "peak_memory_bytes": 2**30}
    Plan(dp=8, zero=2, stack="fsdp", predicted=figures, **facts).save(plan)
    assert cli.run(command) == 0
    own = "Predicted under fsdp, for which the plan was made: 2.00 s a step, MFU 40.0%, 1.00 GiB allocated at the peak."
    assert own in page.read_text()
    capsys.readouterr()
    assert cli.run([*command, "--hardware", "dgx-h100"]) == 0
    assert "Predicted under torchtitan: " in page.read_text()
    assert "Under torchtitan, the stack of torchtitan, the plan fits" in capsys.readouterr().out
    Plan(dp=8, zero=2, **facts).save(plan)
    assert cli.run([*command, "--hardware", "dgx-h100"]) == 0
    assert "redicted" not in capsys.readouterr().out


def test_a_stack_of_ones_own_is_named_by_its_file(tmp_path, capsys):
    """The plan says its name only."""
    stack, plan = tmp_path / "ours.yaml", tmp_path / "plan.json"
    stack.write_text("name: ours\ndescription: ours\n")
    facts = {"model": "llama-3.2-1b", "training": {"seq_len": 1024, "global_batch": 16}}
    Plan(dp=8, zero=1, stack="ours", **facts).save(plan)
    command = ["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "out"), "--hardware", "dgx-h100"]
    assert cli.run(command) == 2
    assert "--stack FILE" in capsys.readouterr().err
    assert cli.run([*command, "--stack", str(stack)]) == 0
    assert "under ours, for which it was made" in capsys.readouterr().out


def test_a_plan_travels_with_its_cluster_and_its_prediction(exported, tmp_path):
    """Of a scenario, of what --hardware names, and of the nearest plan; what was predicted of another one stays."""
    out, plan = tmp_path / "out", tmp_path / "plan.json"
    assert "Predicted under megatron: " in (exported / "README.md").read_text()
    assert cli.run(["simulate", str(exported / "plan.json")]) == 0
    facts = {"model": "llama-3.2-1b", "training": {"seq_len": 1024, "global_batch": 16}, "stack": "megatron"}
    Plan(dp=8, zero=1, predicted={"step_time_s": 77.0}, **facts).save(plan)
    near = ["export", str(plan), "--to", "accelerate", "-o", str(out), "--nearest"]
    assert cli.run([*near, "--hardware", "dgx-h100"]) == 0
    found = Plan.load(out / "plan.json")
    assert (found.cluster["hardware"], found.cluster["nodes"]) == ("dgx-h100", 1)
    assert not found.predicted
    page = (out / "README.md").read_text()
    assert "Predicted under huggingface: " in page
    assert "Not the plan but the nearest that can be said: " in page
    assert "77.0 s" not in page
    assert cli.run(near) == 0
    assert "Predicted under" not in (out / "README.md").read_text()


def test_the_nearest_plan_is_offered_with_what_it_costs(tmp_path, capsys):
    """Refused in one line with its predicted time; with --nearest it is exported, and the page says so."""
    plan = tmp_path / "plan.json"
    facts = {"model": "llama-3.2-1b", "training": {"seq_len": 1024, "global_batch": 16}, "stack": "megatron"}
    Plan(dp=8, zero=1, cluster={"hardware": "dgx-h100", "nodes": 1}, **facts).save(plan)
    command = ["export", str(plan), "--to", "accelerate", "-o", str(tmp_path / "out")]
    assert cli.run(command) == 2
    error = capsys.readouterr().err
    assert re.search(
        r"zero = [23]: fits: .* GiB of .* a step under huggingface, .*% (more|less) than the plan takes, "
        r"which fits: .* GiB of .* a step under megatron \(--nearest exports it\)",
        error,
    )
    assert error.count("\n") == 1
    assert cli.run([*command, "--nearest"]) == 0
    assert "note: Not the plan but the nearest that can be said: zero = " in capsys.readouterr().out
    Plan(dp=8, zero=1, **facts).save(plan)
    assert cli.run(command) == 2
    assert "not predicted: the plan names no cluster" in capsys.readouterr().err


def test_a_nearest_plan_fits_or_is_refused(tmp_path, capsys):
    """Where it does not fit more is sharded and recomputed; where that does not help it is refused, but for --force."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    facts = {"model": "llama-3-8b", "training": {"seq_len": 4096, "global_batch": 8}, "stack": "megatron"}
    place = {"hardware": "dgx-a100-40gb", "nodes": 1}
    Plan(dp=2, tp=4, zero=1, cluster=place, **facts).save(plan)
    assert cli.run(["export", str(plan), "--to", "trl", "-o", str(out)]) == 2
    offered = capsys.readouterr().err.partition("the nearest that it can: ")[2]
    assert offered.startswith("tp = 1, dp = 8; zero = 3; recompute = full: fits: ")
    assert "which fits: " in offered
    Plan(dp=8, zero=3, recompute="full", cluster=place, **facts).save(plan)
    command = ["export", str(plan), "--to", "nanotron", "-o", str(out), "--nearest"]
    assert cli.run(command) == 2
    refused = capsys.readouterr().err
    assert "the nearest that it can: zero = 1: does not fit: " in refused
    assert "(--nearest --force exports it anyway)" in refused
    assert not out.exists()
    assert cli.run([*command, "--force"]) == 0
    assert "note: Not the plan but the nearest that can be said: zero = 1: does not fit" in capsys.readouterr().out


def test_a_key_of_a_scenario_in_the_wrong_place_is_named(tmp_path, capsys):
    """What says a plan and is no result is a scenario: nothing in it is passed over."""
    path = tmp_path / "mine.yaml"
    path.write_text("model: gpt2\nhardware: dgx-h100\ntraining: {seq_len: 512, global_batch: 8}\nplan: {dp: 8}\n")
    assert cli.run(["export", str(path), "--to", "megatron", "-o", str(tmp_path / "there")]) == 2
    line = f"{path}:2: unknown key hardware; did you mean cluster.hardware?\n"
    assert capsys.readouterr().err == line


def test_an_import_accounts_for_every_word(tmp_path, capsys):
    """What is assumed, what decides and is not in the plan, what is unknown, and what has no effect."""
    script, plan = tmp_path / "train.sh", tmp_path / "plan.json"
    command = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16"
    script.write_text(f"source gone.sh\n{command} --lr 1 --mystery 2 --fp32-residual-connection\n")
    assert cli.run(["import", str(script), "--from", "megatron", "-o", str(plan), "--json", "-"]) == 0
    words = json.loads(capsys.readouterr().out)["words"]
    assert (list(words["not_modelled"]), words["unknown"]) == (["--fp32-residual-connection", "gone.sh"], ["--mystery"])
    assert "--lr" in words["without_effect"]
    config = tmp_path / "ds.json"
    config.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    assert cli.run(["import", str(config), "--from", "deepspeed", "-o", str(plan)]) == 0
    assert "assumed: micro_batch = 1 (an argument of the script" in capsys.readouterr().out
