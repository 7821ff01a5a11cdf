"""Time's attribution: exposed is never above busy, parts sum to the step, and waiting says for whom."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from simpar.architectures.training import Training
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.lower import Lowered, lower
from simpar.program.perturbation import Perturbation
from simpar.report.accounting import CAUSES, Accounts, account
from simpar.report.result import Result
from simpar.report.slot_facts import COMMUNICATION
from simpar.simulation import lower_job, make_job, simulate
from simpar.stacks.stack import load_stack
from simpar.tracing.load import load_model
from tests.gate import assert_law, some

BUBBLE, WAITING = CAUSES.index("bubble"), CAUSES.index("waiting")
EXPOSED = [CAUSES.index(kind if kind == "offload" else f"exposed_{kind}") for kind in COMMUNICATION]

LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]), "pp": st.sampled_from([1, 2, 4]), "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from(["none", "full"]), "micro_batch": st.just(1),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved"]),
        "offload_optimizer": st.sampled_from(["none", "none", "cpu"]),
    }
)  # fmt: skip
SETTINGS = st.tuples(
    st.sampled_from(["gpt2", "llama-3.2-1b", "mixtral-8x7b"]),
    st.sampled_from(["dgx-h100", "l4-8", "a100-pcie-8"]),
    st.sampled_from(["megatron", "nanotron", "fsdp", "deepspeed", "torchtitan"]),
    st.dictionaries(st.integers(0, 7), st.sampled_from([1.3, 2.0, 3.0]), max_size=2),
    st.sampled_from([1.0, 0.05]),
)


@cache
def cluster_of(hardware: str, link: float) -> Cluster:
    """One node, the port of whose first device may be slow."""
    cluster = load_cluster(hardware)
    return cluster if link == 1.0 else cluster.with_degraded({f"{cluster.blocks[0]}[0]": link})


def accounted(
    model: str, cluster: Cluster, plan: Plan, perturbation: Perturbation, stack: str | None = None, *, batch: int = 32
) -> tuple[Lowered, Accounts]:
    """The account of a step of a batch of sequences of 512 tokens."""
    job = make_job(load_model(model, seq_len=512), cluster, plan, Training(seq_len=512, global_batch=batch), stack)
    lowered = lower_job(job, cluster, perturbation)
    timing = choose_engine("auto", lowered.program)(lowered.program)
    return lowered, account(lowered, timing, perturbation.slow_ranks)


@pytest.mark.parametrize(("examples", "batch"), some([(4, 8), (40, 16)], 1, tuples=True))
def test_every_nanosecond_has_one_cause(examples: int, batch: int) -> None:
    """Of every class of ranks: parts sum to the step, none is negative, exposed <= busy, a bubble needs a pipeline."""
    assert_law(assert_caused, examples, layout=LAYOUTS, setting=SETTINGS, batch=st.just(batch))


def assert_caused(layout: dict[str, object], setting: tuple[object, ...], *, batch: int) -> None:
    """Every cause of a step, whose parts are those of the time line."""
    model, hardware, stack, slow, link = setting
    assume(layout["tp"] * layout["pp"] <= 8)  # one node
    values = {**layout, "vpp": 2 if layout["schedule"] == "interleaved" else 1}
    if layout["pp"] == 1:
        values = {**layout, "schedule": "1f1b"}
    plan = Plan(**values)
    _, found = accounted(model, cluster_of(hardware, link), plan, Perturbation(slow_ranks=slow), stack, batch=batch)
    assert (found.causes_ns.sum(axis=1) == found.step_ns).all()
    assert (found.causes_ns >= 0).all()
    assert (found.kernels_s() >= 0).all()
    assert (found.causes_ns[:, EXPOSED] <= found.busy_ns).all()
    assert layout["pp"] > 1 or not found.causes_ns[:, BUBBLE].any()
    for class_id in range(len(found.causes_ns)):
        waited = found.waiting(class_id)
        assert sum(part.ns for part in waited) == found.causes_ns[class_id, WAITING]
        begin, end, why = found.idle_of(class_id)
        assert (end[:-1] <= begin[1:]).all()
        for cause in (BUBBLE, WAITING):
            assert (end - begin)[why == cause].sum() == found.causes_ns[class_id, cause]


@pytest.mark.parametrize(
    "values", some([{"tp": 4, "pp": 2, "recompute": "full"}, {"zero": 1}, {"cp": 2, "zero": 3}], 1)
)
def test_kernels_are_told_apart(values: dict[str, object]) -> None:
    """Products and kernels bound by memory are all kernels there are, and the same where blocks are written out."""
    job = make_job(
        load_model("llama-3.2-1b", seq_len=512),
        load_cluster("dgx-h100"),
        Plan(micro_batch=1, **values),
        Training(seq_len=512, global_batch=8),
    )
    both = []
    for collapse in (True, False):
        lowered = lower(job, load_cluster("dgx-h100"), schedule_of(job.layout, job.training), collapse=collapse)
        found = account(lowered, choose_engine("auto", lowered.program)(lowered.program))
        kernels_s, causes = found.kernels_s(), [CAUSES.index(cause) for cause in ("compute", "optimizer")]
        assert kernels_s.sum(axis=1) * 1e9 == pytest.approx(found.causes_ns[:, causes].sum(axis=1))
        assert (kernels_s[:, 0] > kernels_s[:, 1]).all()
        assert (kernels_s[:, 1] > 0).all()
        both.append(kernels_s)
    assert both[0] == pytest.approx(both[1], rel=1e-6)


@pytest.mark.parametrize(
    "values",
    some(
        [
            {"zero": 3, "cp": 2}, {"pp": 2, "zero": 2, "vpp": 2, "schedule": "interleaved"},
            {"zero": 1}, {"tp": 4}, {"pp": 4, "tp": 2}, {"pp": 4, "schedule": "dualpipev"},
        ],
        2,
    ),
)  # fmt: skip
def test_folding_changes_no_cause(values: dict[str, object]) -> None:
    """A rank's account is the same whether one rank stands for its class or every rank is simulated."""
    slow = {2: 2.0}
    plan = Plan(micro_batch=1, **values)
    asked = ("llama-3.2-1b", load_cluster("l4-8"), plan)
    batch = 16 if plan.mesh.pp == 4 else 8
    folded, found = accounted(*asked, Perturbation(slow_ranks=slow), batch=batch)
    _, whole = accounted(*asked, Perturbation(slow_ranks=slow, fold=False), batch=batch)
    each = found.causes_ns[folded.quotient.class_of_rank]
    assert each.sum(axis=0) == pytest.approx(whole.causes_ns.sum(axis=0), abs=0.02 * found.step_ns)
    assert (each == whole.causes_ns).mean() > 0.9
    assert np.array_equal(found.busy_ns[folded.quotient.class_of_rank], whole.busy_ns)


def simulated(model: str, hardware: str, nodes: int, plan: Plan, **shape: object) -> Result:
    """One step; ``slow`` are slow ranks."""
    slow = Perturbation(slow_ranks=shape.pop("slow", {}))
    return simulate(model, load_cluster(hardware, nodes=nodes), plan, Training(**shape), perturbation=slow)


def test_a_slow_rank_is_named_with_its_factor() -> None:
    """Eight replicas, one three times slower: two thirds of the step are waiting for it, none is communication."""
    found = simulated("llama-3-8b", "dgx-h100", 1, Plan(zero=1), seq_len=4096, global_batch=32, slow={2: 3.0})
    nominal = simulated("llama-3-8b", "dgx-h100", 1, Plan(zero=1), seq_len=4096, global_batch=32)
    (waited,) = found.waiting
    assert (waited.cause, waited.ranks, waited.factor) == ("slow rank", (2,), 3.0)
    assert waited.seconds == pytest.approx(found.step_time_s - nominal.step_time_s, rel=0.01)
    assert found.time_breakdown_s.waiting == waited.seconds
    assert found.slow_ranks.step_time_without_s == pytest.approx(nominal.step_time_s)
    assert "rank 2 (3 times slower)" in found.why.hints[0]
    assert found.time_breakdown_s.exposed_dp == pytest.approx(nominal.time_breakdown_s.exposed_dp, rel=0.1)
    assert found.bubble_fraction == 0


def test_transfers_that_a_slow_rank_exposes_are_waiting_for_it() -> None:
    """FSDP gathers ahead: what hides behind the slow rank's kernels outlasts those of the others, who wait for it."""
    shape = {"seq_len": 4096, "global_batch": 16}
    nominal = simulated("llama-3.2-1b", "dgx-h100", 1, Plan(zero=3), **shape)
    found = simulated("llama-3.2-1b", "dgx-h100", 1, Plan(zero=3), **shape, slow={0: 1.3})
    longer_s = found.step_time_s - nominal.step_time_s
    assert longer_s > 0.1 * nominal.step_time_s
    (waited,) = found.waiting
    assert (waited.ranks, waited.seconds) == ((0,), pytest.approx(longer_s, rel=0.02))
    assert found.time_breakdown_s.exposed_dp == pytest.approx(nominal.time_breakdown_s.exposed_dp, rel=0.05)


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_waiting_inside_a_group_is_no_bubble(axis: str) -> None:
    """Without a pipeline there is no bubble, wherever the slow rank sits."""
    plan = Plan(tp=8 if axis == "tp" else 1)
    found = simulated("llama-3.2-1b", "dgx-h100", 1, plan, seq_len=1024, global_batch=32, slow={0: 2.0})
    assert found.bubble_fraction == found.time_breakdown_s.bubble == 0
    assert found.time_breakdown_s.waiting > 0.15 * found.step_time_s
    assert {part.ranks for part in found.waiting if part.seconds > 1e-6} == {(0,)}


@pytest.mark.parametrize("slow", [{}, {3: 2.0}])
def test_the_bubble_is_the_schedules_alone(slow: dict[int, float]) -> None:
    """(p-1)/(m+p-1) of the passes, whether a rank is slow or not, and however long reductions take."""
    shape = {"seq_len": 512, "global_batch": 128, "slow": slow}
    found = simulated("gpt3-13b", "l4-8", 4, Plan(pp=4, micro_batch=1), **shape)
    assert found.bubble_fraction == pytest.approx(3 / 19, abs=0.03 if slow else 0.01)
    assert found.time_breakdown_s.waiting > 0.2 * found.step_time_s or not slow


def test_waiting_for_a_stage_with_more_layers() -> None:
    """Of three equal stages and one with more layers, that one is named."""
    layers = [10, 14, 8, 8]
    found = simulated("gpt3-13b", "dgx-h100", 1, Plan(pp=4, layers=layers), seq_len=512, global_batch=128)
    lowered, accounts = accounted("gpt3-13b", load_cluster("dgx-h100"), Plan(pp=4, layers=layers), Perturbation())
    waited = accounts.waiting(0)[0]
    assert (waited.cause, lowered.stage_of_class[waited.class_id]) == ("unequal work", 1)
    assert accounts.causes_ns[0, WAITING] > 0.15 * accounts.step_ns
    assert found.time_breakdown_s.waiting < 0.02 * found.step_time_s  # the report is about the stage with most work


def test_the_timeline_is_as_long_as_the_step() -> None:
    """What the host takes between steps is in the timeline and in the bars of all stages, as in the breakdown."""
    plan = Plan(tp=4, pp=2, micro_batch=1)
    training = Training(seq_len=128, global_batch=16)
    found = simulate("tiny-llama", load_cluster("dgx-h100"), plan, training, stack="nemo")
    assert found.overview.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    for stage in found.overview.stages:
        assert sum(stage.parts_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
        ends = stage.idle.start_s + stage.idle.duration_s
        assert ends.max() == pytest.approx(found.step_time_s, rel=1e-12)
    assert sum(found.why.critical_path_s.values()) == pytest.approx(found.step_time_s, rel=1e-6)


def test_slow_ranks_that_cost_nothing_are_not_advised_about() -> None:
    """Kernels that are hidden behind launches may be slower: repairing their device gains nothing, and is no hint."""
    training = Training(seq_len=128, global_batch=8)
    for factor, hints in ((1.2, 0), (50.0, 1)):
        found = simulate(
            "tiny-llama", load_cluster("dgx-h100"), Plan(tp=8, micro_batch=1), training, stack="nemo",
            perturbation=Perturbation(slow_ranks={3: factor}),
        )  # fmt: skip
        assert found.slow_ranks.step_time_without_s < found.step_time_s
        assert len(found.why.hints) == hints


def test_figures_without_a_timeline_are_those_of_the_whole_report() -> None:
    """Who asks for no timeline gets no picture and no critical path, and every other figure."""
    asked = ("llama-3.2-1b", load_cluster("l4-8"), Plan(pp=2, tp=2, micro_batch=1))
    training, slow = Training(seq_len=512, global_batch=8), Perturbation(slow_ranks={2: 1.5})
    whole = simulate(*asked, training, perturbation=slow).to_dict()
    short = simulate(*asked, training, perturbation=slow, with_timeline=False)
    assert short.timeline is None
    figures = short.to_dict()
    assert (figures.pop("timeline"), figures["why"].pop("critical_path_s")) == (None, {})
    assert whole.pop("timeline")["stages"]
    assert sum(whole["why"].pop("critical_path_s").values()) > 0
    assert figures["engine"].pop("ops") < whole["engine"].pop("ops")  # what is not drawn is written less finely
    assert figures == whole


def test_a_peak_in_the_update_is_behind_the_passes():
    """DeepSpeed copies gradients to fp32 there: what is left of the step is the update and the overhead."""
    plan, training = Plan(zero=3, recompute="full"), Training(seq_len=512, global_batch=8)
    result = simulate("llama-3-8b", "dgx-h100", plan, training, stack="deepspeed")
    (stage,) = result.memory.stages
    assert stage.peak_op == "the optimizer's update"
    left_s = result.time_breakdown_s.optimizer + load_stack("deepspeed").launch.step_overhead_s
    assert stage.peak_time_s == pytest.approx(result.step_time_s - left_s, rel=1e-6)
