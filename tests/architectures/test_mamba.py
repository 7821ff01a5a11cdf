"""Mamba-2 mixers: parameters in closed form, and how tensor parallelism cuts them."""

from __future__ import annotations

import pytest

from simpar.architectures.graph import Block, evaluate, is_column_parallel, is_row_parallel
from simpar.architectures.mamba import Mamba, mamba

SIZES = Mamba(heads=64, head_dim=64, state=128, groups=8)
DIMS = {"hidden": 2688, "batch": 1, "seq": 8192, **SIZES.dims}
BLOCK = Block("mamba", tuple(mamba("input")))


def test_parameters_are_those_of_the_published_layer() -> None:
    """Projections without biases, a convolution with one, three vectors over heads and a norm over the inner width."""
    inner, shared, heads, hidden = 64 * 64, 8 * 128, 64, 2688
    mixed = inner + 2 * shared
    expected = hidden * (inner + mixed + heads) + 5 * mixed + 3 * heads + inner + inner * hidden
    assert BLOCK.parameters(DIMS) == expected


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_heads_and_groups_are_shared_out(tp: int) -> None:
    """Everything of a mixer is divided by tp: nothing in it is whole on every rank."""
    local = {**DIMS, "mamba_heads": 64 // tp, "mamba_groups": 8 // tp}
    assert BLOCK.parameters(local) * tp == BLOCK.parameters(DIMS)
    assert is_column_parallel(BLOCK.operator("in_proj"))
    assert is_row_parallel(BLOCK.operator("out_proj"))


def test_the_convolution_runs_over_inputs_keys_and_queries() -> None:
    """Gates and time steps go past it."""
    mixed = evaluate(BLOCK.operator("conv").columns, DIMS)
    assert mixed == 64 * 64 + 2 * 8 * 128
    assert evaluate(BLOCK.operator("in_proj").columns, DIMS) == mixed + 64 * 64 + 64
