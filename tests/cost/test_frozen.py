"""Frozen weights that are loaded in fp32: what FSDP keeps of them, and what it gathers, against closed forms."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model

TRAINING = simpar.Training(seq_len=2048, global_batch=16)
FROZEN = 8_030_261_248  # Llama 3 8B: all of its parameters
RANKS = 8


def simulated(**plan: object) -> simpar.Result:
    """Adapters beside a model of 8 B on eight devices."""
    stack = "ddp" if plan.get("zero") == 0 else "huggingface"
    return simpar.simulate("llama-3-8b", "dgx-h100", {"lora_rank": 8, **plan}, TRAINING, stack=stack)


def parameters(**plan: object) -> int:
    """Bytes of a rank's parameters."""
    return simulated(**plan).memory.stages[0].parameters_bytes


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ({"zero": 3}, 2 / RANKS),  # shards of 4 bytes instead of 2
        ({"zero": 3, "hsdp": 2}, 2 / (RANKS / 2)),
        ({"zero": 3, "reshard_after_forward": False}, 4 / RANKS),  # beside what stays gathered in 16 bits
        ({"zero": 2}, 4 / RANKS),
        ({"zero": 0}, 2.0),
    ],
)
def test_bytes_of_frozen_weights_in_fp32(plan: dict[str, object], more: float) -> None:
    """Against those in bf16: 4 bytes of each, divided among the ranks that share a copy under FSDP."""
    assert load_model("llama-3-8b").num_parameters() == FROZEN
    wide, narrow = (parameters(**plan, frozen_dtype=dtype) for dtype in ("fp32", "bf16"))
    assert wide - narrow == pytest.approx(more * FROZEN, rel=1e-6)


def test_fsdp_gathers_them_in_16_bits() -> None:
    """As many bytes travel and arrive as of weights in bf16, and no product narrows them; without FSDP each does."""
    for plan in ({"zero": 3}, {"zero": 3, "reshard_after_forward": False}):
        wide, narrow = (simulated(**plan, frozen_dtype=dtype) for dtype in ("fp32", "bf16"))
        assert wide.step_time_s == narrow.step_time_s
        shards = wide.memory.stages[0].parameters_bytes - narrow.memory.stages[0].parameters_bytes
        assert wide.memory.peak_memory_bytes - narrow.memory.peak_memory_bytes == shards
    whole = [simulated(zero=0, micro_batch=1, frozen_dtype=dtype).step_time_s for dtype in ("fp32", "bf16")]
    least_s = 2 * 2 * 6 * 6.9e9 / 3.35e12  # two microbatches, two passes, 4 bytes read and 2 written of the layers
    assert whole[0] - whole[1] > 0.9 * least_s
