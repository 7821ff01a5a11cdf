"""Plans as the files of other frameworks, and back, from Python and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import simpar
from simpar import cli

PLAN = simpar.Plan(tp=2, dp=4, micro_batch=4, model="gpt2", training={"seq_len": 1024, "global_batch": 64})


def test_an_export_is_that_of_the_command_line(tmp_path: Path) -> None:
    """Byte by byte, from an object, a dict and a file."""
    file = tmp_path / "plan.json"
    PLAN.save(file)
    command = ["export", str(file), "--to", "megatron", "--hardware", "dgx-h100", "-o", str(tmp_path / "cli")]
    assert cli.run(command) == 0
    for at, plan in enumerate((PLAN, PLAN.model_dump(mode="json"), file, str(file))):
        made = simpar.export(plan, "megatron", hardware="dgx-h100")
        made.save(folder := tmp_path / str(at))
        assert {path.name for path in folder.iterdir()} == made.files.keys()
        assert all((folder / name).read_bytes() == (tmp_path / "cli" / name).read_bytes() for name in made.files)
        assert (folder / "local.sh").stat().st_mode & 0o111


def test_traces_are_an_export_too(tmp_path: Path) -> None:
    """Of the step as it is simulated: options that change the plan are refused."""
    made = simpar.export(PLAN, "chakra", hardware="dgx-h100")
    assert sum(name.endswith(".et") for name in made.files) == 8
    assert made.notes[0].startswith("One step, ")
    with pytest.raises(simpar.UserError, match="--nearest: not with --to chakra"):
        simpar.export(PLAN, "chakra", hardware="dgx-h100", nearest=True)


def test_what_a_target_cannot_express_is_refused_with_the_nearest_plan() -> None:
    """Which is exported where it is asked for; what is lost is listed where that is asked for."""
    plan = PLAN.with_values(recompute="layers:none*6,full*6")
    with pytest.raises(simpar.UserError, match=r"megatron cannot express recompute .*the nearest that it can: "):
        simpar.export(plan, "megatron", hardware="dgx-h100")
    near = simpar.export(plan, "megatron", hardware="dgx-h100", nearest=True)
    assert near.lost == ()
    assert any("nearest" in note for note in near.notes)
    lossy = simpar.export(plan, "megatron", hardware="dgx-h100", lossy=True)
    assert any("recompute" in each for each in lossy.lost)


def test_a_plan_without_facts_says_what_is_missing() -> None:
    """And by what to give it."""
    with pytest.raises(simpar.UserError, match="plan: the plan names no model: give --model NAME"):
        simpar.export({"tp": 2}, "megatron")
    with pytest.raises(TypeError, match=r"export.*'hardwar'; did you mean 'hardware'"):
        simpar.export(PLAN, "megatron", hardwar="dgx-h100")


def test_an_export_is_imported_again(tmp_path: Path) -> None:
    """The same layout; the model may be named beside."""
    simpar.export(PLAN, "megatron", hardware="dgx-h100").save(tmp_path)
    back = simpar.import_plan(tmp_path / "command.sh", "megatron", model="gpt2")
    assert (back.plan.tp, back.plan.micro_batch, back.plan.model) == (2, 4, "gpt2")
    with pytest.raises(simpar.UserError, match="execution traces say what ran, not a plan"):
        simpar.import_plan("trace.et", "chakra")


def test_a_script_is_imported_as_it_is_started(tmp_path: Path) -> None:
    """With its arguments, and variables before them; without them the refusal says how to give them."""
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\nPP=$1\ntorchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP "
        "--pipeline-model-parallel-size $PP --global-batch-size ${10} --bf16\n"
    )
    with pytest.raises(simpar.UserError, match=r"train.sh:3: .*simpar import .*train.sh --from NAME -- TP=VALUE"):
        simpar.import_plan(script, "megatron")
    with pytest.raises(simpar.UserError, match="--pipeline-model-parallel-size has no value"):
        simpar.import_plan(script, "megatron", arguments=["TP=2"])
    back = simpar.import_plan(script, "megatron", arguments=["TP=2", "4", *"23456789", "64"])
    assert (back.plan.tp, back.plan.pp) == (2, 4)
    (tmp_path / "job.yaml").write_text("a: 1\n")
    with pytest.raises(simpar.UserError, match=r"job.yaml: is started with no arguments \(4 'a b'\)"):
        simpar.import_plan(tmp_path / "job.yaml", "axolotl", arguments=["4", "a b"])


def test_a_model_that_the_arguments_state_is_written_beside_the_plan(tmp_path: Path) -> None:
    """As its config, by a name that is found beside the plan: the imported plan can be simulated."""
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 128 --swiglu"
    (tmp_path / "train.sh").write_text(
        f"torchrun pretrain_gpt.py {sizes} --position-embedding-type rope --normalization RMSNorm --micro-batch-size 1 "
        "--global-batch-size 8 --bf16 --disable-bias-linear\n"
    )
    assert cli.run(["import", str(tmp_path / "train.sh"), "--from", "megatron", "-o", str(tmp_path / "p.json")]) == 0
    assert (tmp_path / "p.model.json").is_file()
    assert cli.run(["simulate", str(tmp_path / "p.json"), "--hardware", "dgx-h100"]) == 0


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Nothing is written over one."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(simpar.UserError, match="is a file; allowed: a folder"):
        simpar.export(PLAN, "megatron", hardware="dgx-h100").save(tmp_path / "taken")
