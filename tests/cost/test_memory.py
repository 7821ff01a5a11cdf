"""Static memory to the byte, and the laws of allocation and checkpointing."""

from __future__ import annotations

import math

import pytest

from simpar.cost.memory import checkpointed_peak, reserved_bytes, round_allocation, static_memory
from simpar.cost.stack import Stack, load_stack, resolve
from simpar.plan.plan import Plan
from simpar.units import GB, KIB, MIB

P = 10 * 10**9
N = 64


def static(stack: str | Stack = "megatron", **plan: object) -> tuple[int, int, int]:
    """(parameters, gradients, optimizer) bytes of 10 B parameters on 64 data-parallel ranks."""
    habits = load_stack(stack) if isinstance(stack, str) else stack
    held = static_memory(P, resolve(Plan(dp=N, **plan), habits), habits)
    return held.parameters_bytes, held.gradients_bytes, held.optimizer_bytes


def test_ten_billion_parameters_of_the_textbook() -> None:
    """bf16 weights 20 GB, bf16 gradients 20 GB, fp32 moments 80 GB and master weights 40 GB: 16 bytes each."""
    parameters, gradients, optimizer = static(grad_dtype="bf16")
    assert (parameters, gradients, optimizer) == (20 * GB, 20 * GB, 120 * GB)


@pytest.mark.parametrize(
    ("zero", "grad_dtype", "bytes_each"),
    [
        (0, "bf16", 16), (0, "fp32", 18), (1, "bf16", 4 + 12 / N), (1, "fp32", 6 + 12 / N),
        (2, "bf16", 2 + 14 / N), (3, "bf16", 16 / N),
    ],
)  # fmt: skip
def test_zero_stages(zero: int, grad_dtype: str, bytes_each: float) -> None:
    """16P, 4P + 12P/N, 2P + 14P/N, 16P/N bytes [arXiv 1910.02054]; fp32 gradients add 2."""
    assert sum(static(zero=zero, grad_dtype=grad_dtype)) == pytest.approx(bytes_each * P, rel=1e-12)


def test_hsdp_shards_over_part_of_the_group() -> None:
    """With 4 replicas the shards are four times as large."""
    assert sum(static(zero=3, hsdp=4)) == pytest.approx(4 * sum(static(zero=3)), rel=1e-9)


@pytest.mark.parametrize(("optimizer", "states"), [("adamw", 8), ("sgd_momentum", 4), ("sgd", 0)])
def test_optimizer_states_in_fp32(optimizer: str, states: int) -> None:
    """Pure fp32 keeps no master copy: two moments, one, or none."""
    assert static(precision="fp32", optimizer=optimizer) == (4 * P, 4 * P, states * P)


def test_stack_that_stores_fp32_parameters() -> None:
    """FSDP2 as torchtitan uses it: (4 + 4 + 8) / N bytes."""
    assert sum(static("torchtitan", zero=3)) == pytest.approx(16 * P / N, rel=1e-9)


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + KIB, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB - 1, 12 * MIB),
    ],
)
def test_allocator_segments(size: int, reserved: int) -> None:
    """Small tensors come from 2 MiB segments, middle ones from 20 MiB, large ones are rounded to 2 MiB."""
    assert round_allocation(size) == reserved


def test_reserved_exceeds_allocated_by_the_fragmentation() -> None:
    """Whole segments above static + moving x (1 + fragmentation); what stays all step leaves no gaps."""
    stack = load_stack("megatron")
    reserved = reserved_bytes(1000 * MIB, stack, 400 * MIB)
    assert reserved % (2 * MIB) == 0
    assert reserved == pytest.approx(
        400 * MIB + 600 * MIB * (1 + stack.memory.allocator.fragmentation), rel=0.003
    )


@pytest.mark.parametrize("layers", [16, 64, 144])
def test_square_root_rule(layers: int) -> None:
    """With boundaries as large as layers, the peak is least at a checkpoint every sqrt(L) layers."""
    best = min(range(1, layers + 1), key=lambda every: checkpointed_peak(layers, every, 1.0, 1.0))
    assert best == math.isqrt(layers)
