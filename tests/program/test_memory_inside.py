"""Memory over time inside passes: the saw-tooth of activations, under the peak that the Program has."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simpar import Cluster, Perturbation, Plan, Result, Training, simulate
from simpar.program.structure.hooks import BlockBytes
from simpar.program.structure.pass_memory import UnitPass
from simpar.report.timeline import MemoryCurve
from tests.gate import some


def run(plan: Plan, training: Training, model: str = "tiny-llama", **options: object) -> Result:
    """A step on the eight devices of one node."""
    return simulate(model, Cluster("dgx-h100", nodes=1), plan, training, **options)  # type: ignore[arg-type]


def curves(result: Result) -> list[MemoryCurve]:
    """The whole curves of the classes that are drawn."""
    assert result.timeline
    assert result.overview
    names = [stage.name for stage in result.overview.stages]
    return [result.timeline.memory[[each.name for each in result.timeline.classes].index(name)] for name in names]


def teeth(level: np.ndarray) -> int:
    """How often a curve rises to its highest value from below half of its way there."""
    low, high = level.min(), level.max()
    near = np.where(level > 0.99 * high + 0.01 * low, 1, np.where(level < (low + high) / 2, -1, 0))
    turns = near[near != 0]
    return int((turns[1:] > turns[:-1]).sum() + (turns[0] > 0))


PLANS = [
    (Plan(zero=0), 32),
    (Plan(tp=2, zero=1), 64),
    (Plan(zero=2, recompute="full"), 24),
    (Plan(zero=2, recompute="selective"), 24),
    (Plan(zero=3), 16),
    (Plan(pp=2, zero=1), 32),
    (Plan(pp=2, zero=1, recompute="every:2", recompute_early=True), 32),
    (Plan(pp=2, schedule="zb-h1"), 32),
    (Plan(pp=2, vpp=2, schedule="dualpipev"), 32),
    (Plan(pp=2, vpp=2, schedule="interleaved"), 32),
    (Plan(zero=1), 8 * 300),
    (Plan(zero=1), 8 * 30_000),
]
IN_GATE = (0, 3, 6, 10)
"""Without a pipeline and with one, passes that are opened where activations are kept, recomputed, and many."""


@pytest.mark.parametrize(("plan", "batch"), some(PLANS, [PLANS[at] for at in IN_GATE], tuples=True))
def test_the_highest_level_is_the_predicted_peak(plan: Plan, batch: int) -> None:
    """Opening passes moves no peak: in the whole curve, in the drawn one, and when it is reached."""
    result = run(plan, Training(seq_len=256, global_batch=batch))
    assert result.overview
    for curve, stage in zip(curves(result), result.overview.stages, strict=True):
        report = next(each for each in result.memory.stages if each.stage == stage.pipeline_rank)
        assert stage.memory
        assert curve.total_bytes.max() == stage.memory.total_bytes.max() == report.peak_bytes
        assert report.peak_time_s == pytest.approx(curve.time_s[int(curve.total_bytes.argmax())], abs=1e-9)
        assert min(part.min() for part in curve.parts.values()) >= 0


@pytest.mark.parametrize(
    ("microbatches", "tp"), some(product([1, 3, 16, 200], [1, 8]), [(1, 1), (3, 8), (200, 1)], tuples=True)
)
def test_every_microbatch_is_a_tooth(microbatches: int, tp: int) -> None:
    """Without a pipeline activations rise and fall once a microbatch, whether passes are single ops or steps."""
    result = run(Plan(tp=tp, zero=1), Training(seq_len=256, global_batch=microbatches * 8 // tp))
    (curve,) = curves(result)
    assert teeth(curve.parts["activations"]) == microbatches
    assert result.overview
    drawn = result.overview.stages[0].memory
    assert drawn
    assert teeth(drawn.parts["activations"]) == microbatches


def test_activations_rise_layer_by_layer_in_the_forward_and_fall_in_the_backward() -> None:
    """One microbatch of equal layers: equal steps up, then equal steps down, and nothing is left."""
    result = run(Plan(zero=1), Training(seq_len=256, global_batch=8))
    (curve,) = curves(result)
    held = curve.parts["activations"]
    layers = result.setup.model["layers"]
    steps = np.diff(held)[np.flatnonzero(np.diff(held))]
    layer = np.median(steps[steps > 0])
    assert (steps == layer).sum() >= layers - 1
    assert (steps == -layer).sum() >= layers - 1
    top = int(held.argmax())
    assert (np.diff(held[: top + 1]) >= 0).all()
    assert (np.diff(held[top:]) <= 0).all()
    assert held[-1] == 0


def test_layers_are_drawn_when_they_run() -> None:
    """The half of a tooth's activations is there in the middle of the forward: layers take equally long."""
    result = run(Plan(zero=1), Training(seq_len=4096, global_batch=8), model="llama-3.2-1b")
    (curve,) = curves(result)
    assert result.overview
    forward = result.overview.stages[0].blocks.of_kind("forward")
    longest = int(np.argmax(forward.duration_s))  # the embedding runs ahead of a wait for weights
    middle = forward.start_s[longest] + forward.duration_s[longest] / 2
    held = curve.parts["activations"][np.searchsorted(curve.time_s, middle, side="right") - 1]
    assert held == pytest.approx(curve.parts["activations"].max() / 2, rel=0.15)


def test_the_temporaries_of_the_update_are_there_while_it_runs() -> None:
    """DDP's Adam, array by array in foreach kernels: the transient bytes rise with the update and fall with it."""
    result = run(Plan(kind="ddp", optimizer="adamw"), Training(seq_len=256, global_batch=16), stack="ddp")
    (curve,) = curves(result)
    assert result.timeline
    update = [label.kind == "optimizer" for label in result.timeline.labels]
    mine = np.array(update)[result.timeline.slices.label]
    begin, end = (
        each / 1e9
        for each in (result.timeline.slices.start_ns[mine].min(), result.timeline.slices.finish_ns[mine].max())
    )
    during = curve.parts["transient"][(curve.time_s >= begin - 1e-12) & (curve.time_s < end - 1e-12)]
    parameters = result.setup.model["parameters"]
    assert during.max() == pytest.approx(4 * parameters, rel=0.01)  # a root of every array, in fp32
    assert curve.parts["transient"][-1] == 0


def test_a_slow_rank_keeps_the_peak() -> None:
    """Passes of ranks that wait for each other are written step by step, and opened where they enter units."""
    slow = Perturbation(slow_ranks={3: 1.5})
    result = run(Plan(tp=2, zero=1), Training(seq_len=256, global_batch=16), perturbation=slow)
    curve, slowest = curves(result)
    assert curve.total_bytes.max() == slowest.total_bytes.max() == result.memory.stages[0].peak_bytes
    assert teeth(curve.parts["activations"]) == 4


def test_levels_of_a_pass_by_hand() -> None:
    """Two units save 10 and 20 bytes; workspaces are 5 and 1, recomputed bytes 3 and 0, of backward 2 and 4.

    Forward: 10 + 5, then 30 + 1: the peak is 31. Backward, in reverse: 30 + 0 + 4 above nothing, that is +4 above the
    30 that are there; then 10 + 3 + 2, that is -20 of activations and +5.
    """
    units = (unit(10, 3, 5, 2), unit(20, 0, 1, 4))
    forward, backward = UnitPass("forward", units), UnitPass("backward", units[::-1])
    assert forward.levels.tolist() == [[10, 5], [30, 1], [30, 0]]
    assert backward.levels.tolist() == [[0, 4], [-20, 5], [-30, 0]]
    split = UnitPass("input_gradient", units[::-1])
    assert split.levels.tolist() == [[0, 4], [0, 4], [0, 0]]  # keeps what the forward saved, with the account's peak
    assert [(c.at_finish, c.delta_bytes, c.category) for c in forward.memory] == [
        (False, 30, "activations"), (False, 1, "transient"), (True, -1, "transient"),
    ]  # fmt: skip
    assert [(c.at_finish, c.delta_bytes, c.category) for c in backward.memory] == [
        (False, 4, "transient"), (True, -4, "transient"), (True, -30, "activations"),
    ]  # fmt: skip


def unit(saved: float, recomputed: float, ahead: float, back: float) -> BlockBytes:
    """A unit with some bytes."""
    return BlockBytes(0, "block", saved, recomputed, ahead, back)


def test_buffers_that_leave_beside_a_pass_keep_its_peak_whole() -> None:
    """Gradients still on their way to the host when the next forward starts: the account takes both at once."""
    plan, training = Plan(zero=2, offload_optimizer="cpu"), Training(seq_len=512, global_batch=32)
    result = run(plan, training, model="llama-3.2-1b", stack="deepspeed")
    (curve,) = curves(result)
    assert curve.total_bytes.max() == result.memory.stages[0].peak_bytes
