"""Laws of memory: more sharding never needs more, more in flight never less, recompute orders itself."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import resolve
from simpar.plan.plan import Plan
from simpar.report.parts import StageMemory
from simpar.simulation import simulate
from simpar.stacks.stack import load_stack
from tests.cost.account import stage_static_memory, static_memory
from tests.gate import assert_law, some

TRAINING = Training(seq_len=2048, global_batch=16)
REPLICAS = 8
STACKS = ("megatron", "nanotron", "torchtitan", "deepspeed", "ddp")
PEAKING_IN_PASSES = (*STACKS[:3], "huggingface", "ddp")
"""Stacks whose peak is in the passes; DeepSpeed's update, which copies gradients to fp32, holds more."""
GRAPH = load_model("llama-3-8b")
WIDTHS = (1, 8)
"""Of tensor parallelism in the gate: between them groups share the links of a node, whose steps take longer."""


@cache
def peaks(stack: str, **plan: object) -> tuple[StageMemory, ...]:
    """Simulated peaks of the stages of Llama 3 8B with eight replicas."""
    devices = int(plan.get("tp", 1)) * int(plan.get("pp", 1))
    training = Training(seq_len=TRAINING.seq_len, global_batch=REPLICAS * TRAINING.global_batch)
    whole = Plan(**{"dp": REPLICAS, **plan})
    cluster = load_cluster("dgx-h100", devices * REPLICAS // 8)
    return simulate(GRAPH, cluster, whole, training, stack=stack, with_timeline=False).memory.stages


def peak(stage: int = 0, stack: str = "megatron", **plan: object) -> StageMemory:
    """Peak of one stage."""
    return peaks(stack, **plan)[stage]


@given(parameters=st.integers(1, 10**11), dp=st.integers(1, 512), zero=st.integers(0, 2), stack=st.sampled_from(STACKS))
def test_a_higher_zero_stage_holds_no_more(parameters: int, dp: int, zero: int, stack: str) -> None:
    """Every further stage shards more of the state, up to the rounding of shards."""
    habits = load_stack(stack)
    lower, higher = (
        static_memory(parameters, resolve(Plan(dp=dp, zero=z, kind="ddp"), habits), habits).resident_bytes
        for z in (zero, zero + 1)
    )
    assert higher <= lower + 16


@given(parameters=st.integers(1, 10**11), dp=st.integers(1, 512), zero=st.sampled_from([1, 2, 3]))
def test_shards_cover_the_state(parameters: int, dp: int, zero: int) -> None:
    """N ranks hold at least one copy of what is sharded, and less than an element each too much."""
    habits = load_stack("megatron")
    held = static_memory(parameters, resolve(Plan(dp=dp, zero=zero), habits), habits)
    assert 12 * parameters <= held.bytes_of("optimizer_states") * dp < 12 * (parameters + dp)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("tp", some([1, 2, 4], [4]))
def test_tensor_parallelism_divides_the_peak(stack: str, tp: int) -> None:
    """Doubling tp lowers the allocated peak, by less than half: something is always repeated."""
    before, after = (peak(stack=stack, tp=t).peak_bytes for t in (tp, 2 * tp))
    assert before / 2 < after < before


@pytest.mark.parametrize(("examples", "widths"), some([(8, WIDTHS), (24, (1, 2, 8))], 1, tuples=True))
def test_1f1b_empties_towards_the_end(examples: int, widths: tuple[int, ...]) -> None:
    """A later stage of 1F1B has no more activations than the one before (the loss is not one of them)."""
    depths, stages = st.sampled_from([2, 4, 8, 16]), st.integers(0, 14)
    assert_law(assert_empties, examples, pp=depths, tp=st.sampled_from(widths), stage=stages)


def assert_empties(pp: int, tp: int, stage: int) -> None:
    """Of a pair of neighbours."""
    first = min(stage, pp - 2)
    before, after = (float(peak(r, pp=pp, tp=tp).activations_bytes) for r in (first, first + 1))
    logits = 4 * 2048 * 128256 if first + 1 == pp - 1 else 0
    assert after <= before + logits


@pytest.mark.parametrize(("pp", "tp"), [(4, 1), (8, 8)])
def test_1f1b_holds_a_stage_of_every_microbatch_in_flight(pp: int, tp: int) -> None:
    """Stage 0 of any depth holds p microbatches of L/p layers: a whole model's worth of one microbatch."""
    one, many = (float(peak(pp=p, tp=tp).activations_bytes) for p in (1, pp))
    head = 2 * 2048 * 128256 / tp + 2 * 2 * 2048 * 4096 / tp
    assert many == pytest.approx(one - head, rel=0.01)


def test_gpipe_holds_every_microbatch() -> None:
    """GPipe keeps all m, 1F1B only p of them: the ratio is m / p."""
    gpipe, steady = (float(peak(pp=4, schedule=s).activations_bytes) for s in ("gpipe", "1f1b"))
    assert gpipe / steady == pytest.approx(TRAINING.global_batch / 4)


def test_interleaving_costs_memory() -> None:
    """Interleaved 1F1B holds 1 + (p - 1)/(pv) times the activations of 1F1B on the first rank."""
    p, v = 4, 2
    plain, looped = (float(peak(pp=p, vpp=chunks).activations_bytes) for chunks in (1, v))
    assert looped / plain == pytest.approx(1 + (p - 1) / (p * v))


@pytest.mark.parametrize(("examples", "widths"), some([(5, WIDTHS), (15, (1, 2, 4, 8))], 1, tuples=True))
def test_recompute_orders_activations(examples: int, widths: tuple[int, ...]) -> None:
    """Full keeps less than every other layer, which keeps less than none; selective is between."""
    depths, stacks = st.sampled_from([1, 2, 4]), st.sampled_from(PEAKING_IN_PASSES)
    assert_law(assert_ordered, examples, tp=st.sampled_from(widths), pp=depths, stack=stacks)


def assert_ordered(tp: int, pp: int, stack: str) -> None:
    """Of one layout."""
    sizes = [
        float(peak(stack=stack, tp=tp, pp=pp, recompute=r, optimizer_kernels="fused").activations_bytes)
        for r in ("full", "every:2", "every:4", "none")
    ]
    assert sizes == sorted(sizes)
    selective = float(
        peak(stack=stack, tp=tp, pp=pp, recompute="selective", optimizer_kernels="fused").activations_bytes
    )
    assert sizes[0] < selective <= sizes[-1]


@given(stage=st.integers(0, 3), mb=st.sampled_from([1, 2]))
@settings(max_examples=8, deadline=None)
def test_what_moves_is_proportional_to_the_microbatch(stage: int, mb: int) -> None:
    """Activations and workspaces double with the micro-batch, where no gradient of weights is among them."""
    one, two = (peak(stage, stack="simpar", pp=4, micro_batch=b) for b in (mb, 2 * mb))
    assert (two.activations_bytes + two.transient_bytes) / (
        one.activations_bytes + one.transient_bytes
    ) == pytest.approx(2)


@pytest.mark.parametrize("zero", [0, 1])
def test_static_memory_of_the_stages_is_the_model_s(zero: int) -> None:
    """Summed over pipeline ranks, the static state is one rank's that holds the whole model, up to padding."""
    habits = load_stack("megatron")

    def total(pp: int) -> int:
        plan = resolve(Plan(dp=8, pp=pp, zero=zero), habits)
        held = [stage_static_memory(GRAPH, plan, TRAINING, habits, r) for r in range(pp)]
        return sum(one.total_bytes - one.bytes_of("transient") for one in held)

    assert total(8) == pytest.approx(total(1), rel=1e-6)
