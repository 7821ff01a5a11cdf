"""Experts of a layer that Python runs one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.graph import term
from simpar.cost.kernels import KernelModel
from simpar.hardware.device import load_device
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


def test_experts_that_gather_their_tokens_copy_none() -> None:
    """Dispatch is two kernels over numbers; combine reads two copies of E features and writes one."""
    of = stack(experts={"overhead": 1.0, "row_s": 0.0}, fusion={"expert_tiles": [[64, 64]]})
    out, back = timed(operator("dispatch", rows=ROUTED), of), timed(operator("combine"), of)
    assert us(out)[0] == pytest.approx(2)
    assert us(back)[0] == pytest.approx(1 + 2 * 3 * E * 1e-6)
    assert (kernels(out)[0], kernels(back)[0]) == (2, 1)


def test_experts_in_tiles_are_one_kernel() -> None:
    """The best of the stack's tiles decides the forward alone."""
    usual = stack(experts={"overhead": 1.0})
    tiled = timed(GROUPED, stack(experts={"overhead": 1.0}, fusion={"expert_tiles": [[64, 64]]}))
    assert tiled.forward_s > timed(GROUPED, usual).forward_s
    assert us(tiled)[1:] == us(timed(GROUPED, usual))[1:]


def test_tiles_feed_on_the_cache_s_port_beside_memory() -> None:
    """33 rows x 100 columns take 3 x 4 tiles of 16 x 32 (576 operands a step of K) or 1 x 2 of 64 x 64 (256).

    An H100 reads 64 bytes a clock with each of 132 multiprocessors; K fills its pipeline with 179.2 more.
    """
    model = KernelModel(load_device("h100-sxm-80gb"), sustained=False)
    fed = 2 * 256 * (4096 + 179.2) * 2 / (64 * 132 * 1.83e9)
    moved = 2 * 2 * (33 * 4096 + 4096 * 100 + 33 * 100) / model.bandwidth
    time = float(model.tiled_time_s(33, 100, 4096, batch=2, tiles=((16, 32), (64, 64))))
    assert time == pytest.approx(model.latency_s + (fed**2 + moved**2) ** 0.5, rel=1e-12)
    # large tiles read less for the same products, up to what the tensor cores compute
    wide = float(model.tiled_time_s(8192, 8192, 8192, batch=1, tiles=((128, 256),)))
    assert 2.0 * 8192**3 / model.peak("bf16") < wide < model.tiled_time_s(8192, 8192, 8192, batch=1, tiles=((64, 64),))
