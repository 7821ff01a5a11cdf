"""Neighbours of launches whose gradients wait for the last microbatch."""

import json
import shlex

import pytest
import yaml

from simpar.cli import run
from simpar.cost.memory.widths import holds_whole
from simpar.frameworks import read
from simpar.frameworks.rules import SYNC_EACH
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.stacks.stack import load_stack

WORDS = {
    "model_name_or_path": "meta-llama/Llama-3.2-1B", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
    "gradient_checkpointing": True, "bf16": True, "max_length": 2048, "packing": True, "attn_implementation": "sdpa",
    "fsdp": "full_shard auto_wrap",
}  # fmt: skip
EACH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, True),
        ({"gradient_accumulation_steps": 1}, False),
        ({"fsdp": "shard_grad_op auto_wrap"}, True),
        ({"fsdp": "no_shard"}, False),
        ({"fsdp": None}, False),
        ({"accelerator_config": EACH}, False),
        ({"fsdp": None, "deepspeed": {"zero_optimization": {"stage": 3}}}, False),
    ],
)
def test_who_keeps_whole_gradients(changes, late):
    """Trainers under FSDP, while they accumulate: ``Accelerator.no_sync``."""
    found = read(
        yaml.safe_dump({key: said for key, said in {**WORDS, **changes}.items() if said is not None}), "a.yaml", "trl"
    )
    stack = load_stack(found.plan.stack)
    for world_size, waits in ((8, late), (1, False)):
        layout = Layout.of(resolve(found.placed(world_size).with_values(dp=world_size), stack))
        several = found.global_batch(world_size) > world_size * layout.micro_batch
        assert (several and holds_whole(layout, stack)) is waits


def test_neighbours_are_simulated_as_they_would_run(tmp_path, capsys):
    """All have several microbatches, and hold whole gradients; a text that says them is read as such."""
    changed = {"model_name_or_path": "meta-llama/Llama-3.1-8B", "max_length": 4096}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({**WORDS, **changed}))
    run(["check", "--hardware", "dgx-h100", "--nodes", "1", "--from", "trl", "--json", "-", str(tmp_path / "sft.yaml")])
    answer = json.loads(capsys.readouterr().out)
    assert "kept whole" in " ".join(answer["notes"])
    # 8.03 B parameters in the two bytes of their reduction are 15 GiB, beside an eighth of fp32 weights and moments
    assert 15 + 8.03 * 12 / 8 / 1.074 < answer["peak_reserved_bytes"] / 2**30 < 45
    plans = [one["plan"] for one in answer["neighbours"]]
    assert plans
    assert {plan["data_parallel"]["defer_grad_reduce"] for plan in plans} == {True}
    assert any(one["patched"] for one in answer["neighbours"])
    assert ["gradient_checkpointing false"] in [one["edits"] for one in answer["neighbours"]]


def test_recomputation_is_the_argument_that_a_command_has(capsys):
    """FSDP has a key of its own for it; the Trainer's argument, which the text has, is changed instead."""
    text = " ".join(
        f"--{name} {said}" if " " not in str(said) else f'--{name} "{said}"' for name, said in WORDS.items()
    )
    run(["check", "--hardware", "dgx-h100", "--nodes", "1", "--json", "-", "--", "trl", "sft", *shlex.split(text)])
    found = [
        one for one in json.loads(capsys.readouterr().out)["neighbours"] if one["plan"]["memory"]["recompute"] == "none"
    ]
    assert found
    assert all("--gradient_checkpointing false" in one["edits"] for one in found)


def test_a_launch_that_whole_gradients_fill_is_told_to_reduce_every_microbatch(tmp_path, capsys):
    """In the words of the trainer, as a patch: 65.5 GB of whole gradients of 32.8 B parameters become shards."""
    changed = {"model_name_or_path": "Qwen/Qwen3-32B", "max_length": 4096, "gradient_accumulation_steps": 4}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({**WORDS, **changed}))
    run(["check", "--hardware", "dgx-h100", "--nodes", "2", "--from", "trl", "--json", "-", str(tmp_path / "sft.yaml")])
    answer = json.loads(capsys.readouterr().out)
    assert not answer["fits"]
    told = f"{SYNC_EACH} true"
    alone = next(one for one in answer["neighbours"] if one["edits"] == [told])
    assert alone["fits"]
    assert yaml.safe_load(alone["patched"])["accelerator_config"] == EACH
    assert all(told in one["edits"] for one in answer["neighbours"])
