"""Experts of a layer that Python runs one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.graph import term
from tests.cost.test_operators import GROUPED, HIDDEN, ROUTED, E, kernels, operator, stack, timed, us


def test_experts_in_a_loop() -> None:
    """Four experts of 512 rows, each with gate and up apart: eight kernels and modules; backward adds 1,024 inputs."""
    of = stack(fusion={"projections": False}, experts={"overhead": 1.0, "loop": True})
    found = timed(replace(GROUPED, columns=term("ffn", times=2)), of)
    flop, added = 2 * 2048 * 4096 * 1024, 4 * (1 + 2 * 3 * 512 * 1024 * 1e-6)
    assert us(found) == pytest.approx([8 + flop * 1e-6, 8 + flop * 1e-6 + added, 8 + 1.25 * flop * 1e-6], rel=1e-12)
    assert kernels(found) == (8, 16 + 4)
    assert found.modules == 8
    act = operator("gated_activation", rows=ROUTED, region="expert", columns=HIDDEN)
    assert kernels(timed(act, of)) == (4, 8)
    # dispatch: 2 copies of E features read and written; backward read, read and written, and 4 passes over E an expert
    out = timed(operator("dispatch", rows=ROUTED), of)
    assert us(out)[:2] == pytest.approx([16 + 2 * 2 * 2 * E * 1e-6, 32 + 2 * (3 * 2 + 4 * 4) * E * 1e-6], rel=1e-12)
    back = timed(operator("combine"), of)
    assert us(back)[:2] == pytest.approx([12 + 2 * 5 * 2 * E * 1e-6, 48 + 2 * 6 * 2 * E * 1e-6], rel=1e-12)
