"""Tensor parallelism on grids: published volumes, memory per rank, and steps simulated."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.models.graph import ModelGraph
from simpar.models.hf_config import read
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.grid import DEPTH
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.report.result import Result
from simpar.simulation import make_job, simulate

BATCH, SEQ, HIDDEN = 16, 1024, 2048
CLUSTER = load_cluster("dgx-a100-80gb", 8)


def volume_bytes(phase: Phase) -> float:
    """Bytes of all broadcasts, reductions, gathers and scatters of a phase, sums of statistics left out."""
    uses = [step.collective for step in phase.steps if step.collective]
    return sum(use.count * use.size_bytes for use in uses if use.op != "all_reduce")


def gpt() -> ModelGraph:
    """Layers of 12 h^2 parameters, heads for 64 ranks."""
    return read(
        {
            "model_type": "gpt2", "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
            "vocab_size": 50304, "n_positions": SEQ, "n_embd": HIDDEN, "n_layer": 4, "n_head": 64,
        },
        name="gpt",
    )  # fmt: skip


def steps(tp: int, **tensor: Any) -> BlockSteps:
    """Phases of a layer on a rank."""
    plan = Plan.model_validate({"tp": tp, "micro_batch": BATCH, "tensor_parallel": tensor})
    job = make_job(gpt(), CLUSTER, plan, Training(seq_len=SEQ, global_batch=BATCH * 64))
    graph = job.graph
    return block_steps(RankBlock.of(graph.blocks[graph.layers[0]], RankView.of(job)))


def weight_sums(phase: Phase) -> float:
    """Bytes of weight gradients summed over copies."""
    return sum(s.collective.size_bytes for s in phase.steps if s.collective and s.collective.group == DEPTH)


@pytest.mark.parametrize("q", [2, 4, 8])
def test_volumes_of_2d_are_those_of_optimus(q: int) -> None:
    """Forward (7 b s h + 12 h^2)/q elements, backward twice that [arXiv 2104.05343, table 1, broadcasts of a ring]."""
    found = steps(q * q, tp_method="2d")
    forward = (7 * BATCH * SEQ * HIDDEN + 12 * HIDDEN**2) * 2 / q
    assert volume_bytes(found.forward) == pytest.approx(forward)
    assert volume_bytes(found.backward) == pytest.approx(2 * forward)
    halves = volume_bytes(found.input_gradient) + volume_bytes(found.weight_gradient)
    assert halves == pytest.approx(2 * forward)


@pytest.mark.parametrize(("q", "d"), [(2, 2), (2, 4), (4, 2), (4, 4)])
def test_volumes_of_2_5d_are_those_of_tesseract(q: int, d: int) -> None:
    """Activations are spread over d layers more, weights are not; their gradients are summed over the layers."""
    found = steps(q * q * d, tp_method="2.5d", tp_depth=d)
    forward = (7 * BATCH * SEQ * HIDDEN / d + 12 * HIDDEN**2) * 2 / q
    assert volume_bytes(found.forward) == pytest.approx(forward)
    assert volume_bytes(found.backward) == pytest.approx(2 * forward)
    assert weight_sums(found.backward) == pytest.approx(12 * HIDDEN**2 * 2 / q**2)


@pytest.mark.parametrize("side", [2, 4])
def test_volumes_of_3d_are_those_of_the_paper(side: int) -> None:
    """Every product moves A, B and C once, divided by the square of the side [arXiv 2105.14450, section 3]."""
    found = steps(side**3, tp_method="3d")
    into, weights, out = 7, 12, 9  # of 3h, h, 4h and h columns from h, h, h and 4h
    forward = ((into + out) * BATCH * SEQ * HIDDEN + weights * HIDDEN**2) * 2 / side**2
    assert volume_bytes(found.forward) == pytest.approx(forward)
    again = (into * BATCH * SEQ * HIDDEN + weights * HIDDEN**2) * 2 / side**2  # gathered again, and scattered
    assert volume_bytes(found.backward) == pytest.approx(forward + again)


def test_one_layer_of_depth_is_2d() -> None:
    """2.5-D with one copy of the weights is SUMMA, phase by phase."""
    flat, deep = steps(16, tp_method="2d"), steps(16, tp_method="2.5d", tp_depth=1)
    for name in ("forward", "backward", "input_gradient", "weight_gradient"):
        assert getattr(flat, name) == getattr(deep, name), name


def run(graph: ModelGraph | str, tp: int, **tensor: Any) -> Result:
    """A step on 64 devices."""
    plan = Plan.model_validate({"tp": tp, "micro_batch": BATCH, "zero": 0, "tensor_parallel": tensor})
    return simulate(graph, CLUSTER, plan, Training(seq_len=SEQ, global_batch=BATCH * 64))


def test_memory_per_rank() -> None:
    """Weights are 1/tp on squares and cubes as in 1-D, d/tp with d copies; activations 1/tp everywhere."""
    one, square, deep = (
        run(gpt(), 16, **tensor)
        for tensor in ({"tp_method": "1d"}, {"tp_method": "2d"}, {"tp_method": "2.5d", "tp_depth": 4})
    )
    parameters = [result.memory.stages[0].parameters for result in (one, square, deep)]
    assert parameters[0] == parameters[1]
    assert parameters[2] == pytest.approx(4 * parameters[0], rel=0.1)  # position table and norms are whole
    assert square.memory.stages[0].activations == pytest.approx(one.memory.stages[0].activations, rel=0.05)
    assert deep.memory.stages[0].activations == pytest.approx(one.memory.stages[0].activations, rel=0.05)


def test_steps_are_simulated_with_their_collectives() -> None:
    """Broadcasts and reductions, or gathers and scatters, in rows and columns; all exposed time is named."""
    for tensor, words in (({"tp_method": "2d"}, "broadcast"), ({"tp_method": "3d"}, "reduce_scatter")):
        result = run(gpt(), 64, **tensor)
        assert words in result.communication["tp"].algorithm
        assert 0 < result.communication["tp"].exposed_s <= result.communication["tp"].busy_s * 1.0001
        assert result.time_breakdown_s.bubble == pytest.approx(0, abs=0.02 * result.step_time_s)


def test_panels_travel_beside_products() -> None:
    """Overlapped, SUMMA waits for less and moves the same."""
    plain, beside = run(gpt(), 64, tp_method="2d"), run(gpt(), 64, tp_method="2d", overlap=True)
    assert beside.step_time_s < plain.step_time_s
    assert beside.communication["tp"].bytes_per_rank == plain.communication["tp"].bytes_per_rank


def test_squares_win_where_rings_are_long() -> None:
    """On 64 ranks of eight nodes with much to compute 2-D sends (7 x 3)/8 of b s h, 1-D 8: less, and is faster."""
    assert (
        run(gpt(), 64, tp_method="2d").communication["tp"].bytes_per_rank
        < run(gpt(), 64).communication["tp"].bytes_per_rank
    )


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"tp": 8, "tp_method": "2d"}, "squares"),
        ({"tp": 16, "tp_method": "3d"}, "cubes"),
        ({"tp": 16, "tp_method": "2d", "micro_batch": 2}, "multiples of 4"),
        ({"tp": 1, "tp_method": "2d"}, "needs tp > 1"),
        ({"tp": 4, "tp_method": "2d", "sequence_parallel": False}, "sequence_parallel true"),
    ],
)
def test_what_is_no_grid_is_refused(plan: dict[str, Any], words: str) -> None:
    """One line that says what is allowed."""
    with pytest.raises(UserError, match=words):
        simulate(
            gpt(), CLUSTER, Plan(**{"micro_batch": 16, **plan}), Training(seq_len=SEQ, global_batch=1024)
        )
