"""Shared experts beside the exchange of tokens: what waits for what, and what is saved."""

from __future__ import annotations

import pytest

from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import EXPERT, Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.simulation import make_job, simulate

SHARED = ("shared_up", "shared_activation", "shared_down")
OVERLAPPED = {"shared_expert_overlap": True}


def steps(model: str = "deepseek-v3", **plan: object) -> BlockSteps:
    """Steps of a layer with experts on DGX H100."""
    made = make_job(model, load_cluster("dgx-h100", 8), Plan(**plan), Training(seq_len=4096, global_batch=64))
    return block_steps(RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(made)))


def before(phase: Phase, at: int) -> set[int]:
    """All steps that one waits for."""
    waits = set(phase.steps[at].after)
    return waits.union(*(before(phase, each) for each in waits))


def length_s(phase: Phase, exchange_s: float) -> float:
    """When a phase is over whose exchanges take ``exchange_s`` each and other collectives nothing; streams in order."""
    ends, free = list[float](), dict[str, float]()
    for step in phase.steps:
        takes_s = exchange_s if step.stream == EXPERT else float(step.duration_s)
        begins = max([free.get(step.stream, 0.0), *(ends[each] for each in step.after)])
        ends.append(begins + takes_s)
        free[step.stream] = ends[-1]
    return max(ends)


def shared_s(phase: Phase) -> float:
    """Seconds of the kernels of shared experts."""
    return sum(float(step.duration_s) for step in phase.steps if step.name.partition(".")[0] in SHARED)


def test_what_waits_for_what() -> None:
    """The last product runs beside the way back, all before it beside the way there; what follows waits for both."""
    phase = steps(ep=8, **OVERLAPPED).forward
    names = [step.name for step in phase.steps]
    waits = {name: {phase.steps[each].name for each in before(phase, names.index(name))} for name in names}
    there = [name for name in names if name.startswith("dispatch.")]
    back = [name for name in names if name.startswith("combine.")]
    assert there
    assert back
    for name in SHARED[:2]:
        assert not waits[name] & {*there, *back}
    assert {*there, *SHARED[:2]} <= waits["expert_up"]
    assert SHARED[2] not in waits["expert_up"]
    assert not waits[SHARED[2]] & set(back)
    assert {*back, SHARED[2]} <= waits["mlp_residual"]


@pytest.mark.parametrize("plan", [{"ep": 8}, {"ep": 8, "tp": 2}, {"ep": 8, "token_dispatch": "per_node"}])
@pytest.mark.parametrize("part", ["forward", "backward", "input_gradient"])
def test_long_exchanges_hide_shared_experts(plan: dict[str, object], part: str) -> None:
    """Beside exchanges that take longer than they do they cost nothing, beside none what they do in turn."""
    apart, beside = (getattr(steps(**plan, **more), part) for more in ({}, OVERLAPPED))
    hidden_s = shared_s(apart)
    assert hidden_s > 0
    assert shared_s(beside) == pytest.approx(hidden_s, rel=1e-12)
    assert length_s(beside, 0.0) == pytest.approx(length_s(apart, 0.0), rel=1e-12)
    assert length_s(apart, 1.0) - length_s(beside, 1.0) == pytest.approx(hidden_s, rel=1e-6)


def test_weights_gradients_are_the_same() -> None:
    """A pass of weight gradients has no exchange to run beside."""
    apart, beside = (steps(ep=8, **more).weight_gradient for more in ({}, OVERLAPPED))
    assert sorted(step.name for step in apart.steps) == sorted(step.name for step in beside.steps)
    assert length_s(beside, 0.0) == pytest.approx(length_s(apart, 0.0), rel=1e-12)


@pytest.mark.parametrize(("model", "plan"), [("deepseek-v3", {}), ("mixtral-8x7b", {"ep": 8})])
def test_without_exchange_or_shared_experts_nothing_changes(model: str, plan: dict[str, object]) -> None:
    """Megatron-Core takes the flag there, too."""
    assert steps(model, **plan, **OVERLAPPED).forward == steps(model, **plan).forward


def test_a_step_saves_no_more_than_shared_experts_take() -> None:
    """The whole step is faster; the exchange takes multiprocessors from what runs beside it."""
    plan = {"ep": 4, "dp": 64, "zero": 1}
    training = Training(seq_len=4096, global_batch=64)
    apart, beside = (
        simulate("qwen1.5-moe-a2.7b", load_cluster("dgx-h100", 8), Plan(**plan, **more), training)
        for more in ({}, OVERLAPPED)
    )
    assert 0.9 * apart.step_time_s < beside.step_time_s < apart.step_time_s
    assert beside.memory.peak_memory_bytes == apart.memory.peak_memory_bytes


def test_not_beside_another_microbatch() -> None:
    """Megatron-Core refuses both at once."""
    with pytest.raises(UserError, match=r"plan.shared_expert_overlap = true: ep_overlap has another microbatch"):
        steps(ep=8, ep_overlap=True, **OVERLAPPED)
