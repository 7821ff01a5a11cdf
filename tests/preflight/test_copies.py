"""Copies of weights in 8 bits: said where they fit beside the prediction, deciding where they may not."""

from dataclasses import replace

import pytest

import simpar
from simpar.preflight.check import CheckFlags, check_launch
from simpar.preflight.copies import WORD, of_copies
from simpar.preflight.given import given_text

COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --bf16 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 2048 "
    "--kv-channels 64 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--micro-batch-size 1 --global-batch-size 16 --use-distributed-optimizer --tensor-model-parallel-size 1 {}\n"
)


@pytest.mark.parametrize(
    ("flags", "is_said"),
    [("--fp8-format hybrid", True), ("", False), ("--fp8-format hybrid --disable-parameter-transpose-cache", False)],
)
def test_a_launch_with_room_for_them(flags, is_said):
    """A note with their size, the 2 bytes of each 16-bit weight of a rank; none without 8 bits, or without a cache."""
    checked = check_launch(given_text(COMMAND.format(flags), "job.sh"), CheckFlags("dgx-h100", nodes=1))
    notes = [note for note in checked.notes if note.startswith(WORD)]
    assert bool(notes) == is_said
    assert all("up to 2.30 GiB are not counted, and fit" in note for note in notes)  # 1.236 B weights
    assert WORD not in checked.account.deciding


def test_a_launch_without_room_for_them():
    """They decide; of a launch that does not fit anyway nothing is said."""
    result = simpar.simulate(
        "llama-3.2-1b", simpar.Cluster("dgx-h100", nodes=1), {"dp": 8, "zero": 1, "precision": "fp8"},
        simpar.Training(seq_len=2048, global_batch=16), stack="megatron",
    )  # fmt: skip
    memory = result.memory
    tight = {"capacity_bytes": memory.peak_reserved_bytes + 0.5 * memory.stages[0].parameters_bytes}
    near = replace(result, memory=memory.model_copy(update=tight))
    note, account = of_copies(near, "megatron", ())
    assert (note, list(account.deciding)) == ("", [WORD])
    assert of_copies(near, "torchtitan", ())[1].is_understood
    over = replace(result, memory=memory.model_copy(update={**tight, "fits": False}))
    assert of_copies(over, "megatron", ()) == ("", of_copies(near, "torchtitan", ())[1])
