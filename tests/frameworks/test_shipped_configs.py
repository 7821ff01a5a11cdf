"""Configs that trainers ship: taken by their path where the file is not here, and said."""

import json

import pytest

from simpar.cli import run
from simpar.errors import UserError
from simpar.frameworks import load_reader
from simpar.frameworks.shipped_configs import BY_PATH, REVISIONS, load_config

ARGUMENTS = "--model_name_or_path Qwen/Qwen2.5-0.5B --model_max_length 512 --bf16 true --per_device_train_batch_size 1"
STAGES = {
    "examples/deepspeed/ds_z3_config.json": ("deepspeed", 3, "none"),
    "LLaMA-Factory/examples/deepspeed/ds_z2_offload_config.json": ("deepspeed", 2, "cpu"),
    "deepspeed_configs/zero1.json": ("deepspeed", 1, "none"),
    "./scripts/zero3_offload.json": ("deepspeed", 3, "cpu"),
    "playground/deepspeed_config_s2.json": ("deepspeed", 2, "cpu"),
}


@pytest.mark.parametrize("path", BY_PATH)
def test_every_config_is_read(path):
    """Each is a config of DeepSpeed or Accelerate that says what shards, and names a revision."""
    launch = "accelerate launch --config_file {}" if path.endswith(".yaml") else "torchrun --nproc-per-node 8"
    flag = "" if path.endswith(".yaml") else f"--deepspeed {path}"
    plan = load_reader("transformers").read(f"{launch.format(path)} train.py {ARGUMENTS} {flag}", "-")
    assert BY_PATH[path][0] in REVISIONS
    assert any(path in note for note in plan.notes)
    assert plan.plan.stack in ("deepspeed", "huggingface", "ddp")
    assert (plan.plan.data_parallel.zero or 0) > 0 or any(
        word in path for word in ("z0", "ddp", "multi_gpu", "single_gpu")
    )


@pytest.mark.parametrize("path", STAGES)
def test_a_config_that_is_not_here_is_taken_as_it_is_shipped(path):
    """Its stage and what it sends away; the note says whose it is, and no word of it counts as the text's."""
    command = f"torchrun --nproc-per-node 8 train.py {ARGUMENTS} --deepspeed {path}"
    result = load_reader("transformers").read(command, "-")
    plan = result.plan
    assert (plan.stack, plan.data_parallel.zero, plan.offload.offload_optimizer) == STAGES[path]
    assert any(path in note and "ships it" in note for note in result.notes)
    assert not [word for word in (*result.words.used, *result.words.unread) if "zero_optimization" in word]


def test_a_file_that_is_here_wins(tmp_path):
    """What it says is read; the path of no shipped config is asked for, as before."""
    (tmp_path / "scripts").mkdir()
    own = {"zero_optimization": {"stage": 1}}
    (tmp_path / "scripts" / "zero3.json").write_text(json.dumps(own))
    assert load_config("scripts/zero3.json", str(tmp_path / "train.sh")) == (own, "")
    with pytest.raises(UserError, match=r"ours/zero9.json: no such file"):
        load_config("ours/zero9.json", str(tmp_path / "train.sh"))


def test_a_shipped_config_cannot_be_patched(tmp_path, capsys):
    """Proposals stand in the text, never in a file that is not here."""
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun --nproc-per-node 8 train.py {ARGUMENTS} --deepspeed scripts/zero3.json\n")
    assert run(["check", "--hardware", "dgx-h100", "--patch", str(script)]) in (0, 3)
    said = capsys.readouterr().out
    assert "zero3.json" not in "".join(line for line in said.splitlines() if line.startswith(("---", "+++")))
