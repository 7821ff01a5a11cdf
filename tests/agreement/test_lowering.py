"""Reductions are exact: collapsed equals flat, folded equals unfolded, contention only adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.engine import reference, sweep
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.plan.schedules.actions import Schedule
from simpar.program.ir.program import Timing
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered, lower, outline
from simpar.program.perturbation import Perturbation
from simpar.simulation import make_job, simulate
from tests.gate import some
from tests.rules import verify

PLANS = {
    "ddp": {"dp": 16},
    "zero1": {"dp": 16, "zero": 1},
    "zero2": {"dp": 16, "zero": 2},
    "fsdp": {"dp": 16, "zero": 3},
    "hsdp": {"dp": 16, "zero": 3, "hsdp": 2},
    "deferred": {"dp": 16, "zero": 3, "hsdp": 2, "defer_grad_reduce": True},
    "deferred-pp": {"pp": 2, "dp": 8, "zero": 2, "kind": "fsdp", "defer_grad_reduce": True},
    "tp": {"tp": 8, "dp": 2, "zero": 1},
    "tp-overlap": {"tp": 8, "dp": 2, "tensor_parallel": {"overlap": True}},
    "pp": {"pp": 4, "dp": 4, "schedule": "gpipe"},
    "pp-tp": {"pp": 2, "tp": 4, "dp": 2, "zero": 1, "recompute": "full"},
    "interleaved": {"pp": 2, "vpp": 2, "tp": 2, "dp": 4, "recompute": "selective"},
    "dualpipev": {"pp": 2, "vpp": 2, "tp": 4, "dp": 2, "schedule": "dualpipev", "zero": 1},
    "dualpipev-zero2": {"pp": 2, "vpp": 2, "tp": 2, "dp": 4, "schedule": "dualpipev", "zero": 2},
    "pp-fsdp": {"pp": 2, "dp": 8, "zero": 3},
    "layer-fsdp": {"pp": 2, "vpp": 4, "dp": 8, "zero": 3, "kind": "fsdp"},
    "layer-fsdp-zero2": {"pp": 8, "dp": 2, "zero": 2, "kind": "fsdp", "schedule": "zb-h1"},
    "ring": {"cp": 4, "dp": 4, "zero": 1},
    "ring-across-nodes": {"cp": 16, "recompute": "full"},
    "ring-striped-tp": {"cp": 4, "tp": 2, "dp": 2, "cp_balance": "striped", "recompute": "selective"},
    "ring-contiguous": {"cp": 4, "dp": 4, "cp_balance": "contiguous"},
    "ring-contiguous-pp": {"cp": 4, "pp": 2, "tp": 2, "cp_balance": "contiguous", "zero": 2},
    "ulysses": {"cp": 4, "dp": 4, "cp_method": "ulysses", "zero": 3},
    "ulysses-ring": {"cp": 8, "ulysses": 2, "pp": 2, "cp_method": "ring"},
    "all-gather": {"cp": 4, "pp": 2, "tp": 2, "cp_method": "all_gather", "cp_balance": "zigzag"},
    "all-gather-contiguous": {"cp": 4, "dp": 4, "cp_method": "all_gather", "cp_balance": "contiguous"},
    "experts": {"ep": 8, "zero": 1},
    "experts-everywhere": {"ep": 16, "recompute": "full"},
    "experts-tp": {"tp": 4, "ep": 4, "pp": 2, "zero": 1},
    "experts-sliced": {"tp": 4, "ep": 2, "etp": 2, "zero": 2, "recompute": "selective"},
    "experts-on-tp": {"tp": 4, "zero": 1, "sequence_parallel": False},
    "experts-fsdp": {"ep": 4, "zero": 3},
    "experts-deferred": {"ep": 4, "zero": 3, "defer_grad_reduce": True},
    "experts-hsdp": {"ep": 2, "zero": 3, "hsdp": 2},
    "experts-overlap": {"ep": 8, "tp": 2, "ep_overlap": True},
    "experts-cp": {"ep": 8, "cp": 4, "pp": 2, "vpp": 2},
    "experts-sampled": {"ep": 4, "zero": 1, "expert_imbalance": 0.5, "expert_load": "sampled"},
    "experts-capacity": {"ep": 4, "capacity_factor": 1.25, "schedule": "zb-h1", "pp": 2},
    "tp-across-nodes": {"tp": 8, "dp": 2, "rank_order": "dp-tp-cp-pp"},
}
MIXTURES = [plan for name, plan in PLANS.items() if name.startswith("experts")]
GATE = (
    "ddp", "hsdp", "deferred", "tp-overlap", "pp", "pp-tp", "interleaved", "dualpipev-zero2", "layer-fsdp-zero2",
    "ring-striped-tp", "ulysses-ring", "all-gather", "experts-everywhere", "experts-sliced", "experts-overlap",
    "experts-capacity", "tp-across-nodes",
)  # fmt: skip
"""Every axis, and every kind of data parallelism, schedule, context parallelism and recomputation."""


def asked(plan: dict[str, object]) -> tuple[TrainingJob, Cluster, Schedule]:
    """A small Llama, or a small mixture where the plan speaks of experts, on two DGX H100: of few microbatches each."""
    cluster = load_cluster("dgx-h100", 2)
    pp = int(plan.get("pp", 1))
    dp = 16 // (pp * int(plan.get("tp", 1)) * int(plan.get("cp", 1)))
    training = Training(seq_len=512, global_batch=min(32, dp * max(4, 2 * pp)))
    model = "small-mixture" if plan in MIXTURES else "small-llama"
    job = make_job(model, cluster, Plan(**plan), training)
    return job, cluster, schedule_of(job.layout, training)


def lowered(plan: dict[str, object], **options: object) -> Lowered:
    """One of the plans, lowered."""
    return lower(*asked(plan), **options)


@dataclass(frozen=True)
class Case:
    """A plan as it is simulated."""

    plan: dict[str, object]
    entry: Lowered
    timing: Timing


@pytest.fixture(scope="module", params=some(PLANS, GATE))
def case(request: pytest.FixtureRequest) -> Case:
    """Each of the plans, run once by the reference engine for all laws."""
    plan = PLANS[request.param]
    entry = lowered(plan)
    return Case(plan, entry, reference.run(entry.program))


def test_columns_of_ops_and_of_slots(case: Case) -> None:
    """A column over ops is the same after it was one over slots, and an op takes the value of its first slot."""
    entry, ops = case.entry, np.arange(len(case.entry.program))
    assert (entry.of_ops(entry.of_slots(ops)) == ops).all()
    first = {op: slot for slot, op in reversed(list(enumerate(entry.op_of_slot.tolist())))}
    assert entry.of_ops(np.arange(len(entry.op_of_slot))).tolist() == [first[op] for op in ops.tolist()]


def test_collapsed_equals_flat(case: Case) -> None:
    """One op per block gives every action the same finish as one op per kernel, to the nanosecond."""
    short, long = case.entry, lowered(case.plan, collapse=False)
    verify(short.program)
    verify(long.program)
    assert len(short.program) <= len(long.program)
    ends = _action_ends(short, case.timing), _action_ends(long, reference.run(long.program))
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize("name", some([name for name, plan in PLANS.items() if "pp" in plan], ("pp-tp", "experts-cp")))
def test_passes_that_nothing_disturbs_end_as_step_by_step(name: str) -> None:
    """As single ops where pictures are not wanted, every action ends when it does with one op per kernel."""
    job, cluster, schedule = asked(PLANS[name])
    short = outline(job, cluster, schedule, apart=False).lowered()
    long = lower(job, cluster, schedule, collapse=False)
    verify(short.program)
    ends = _action_ends(short, reference.run(short.program)), _action_ends(long, reference.run(long.program))
    assert (ends[0] == ends[1]).all()
    assert reference.run(short.program).makespan_ns == reference.run(long.program).makespan_ns


def test_only_passes_beside_data_parallelism_are_step_by_step() -> None:
    """Tensor- and data-parallel groups share a node's links: only passes that gather or reduce are long."""
    job, cluster, schedule = asked(PLANS["pp-tp"])
    short = outline(job, cluster, schedule, apart=False).lowered()
    assert not any(short.maker.collapsible(each) for each in range(short.quotient.num_classes))
    first = short.slots.of_class(0)
    slots = np.bincount(short.slots.action[first])
    assert (slots > 2).tolist() == [True, *[False] * 6, True, False]  # F0 gathers, the last backward reduces


JOBS = {
    "dense": ("llama-3-8b", {"tp": 2, "pp": 2, "vpp": 2, "zero": 1}, 8192),
    "context": ("llama-3-8b", {"tp": 2, "cp": 2, "pp": 2, "zero": 1, "recompute": "full"}, 16384),
    "ring": ("llama-3-8b", {"tp": 4, "cp": 2, "pp": 2, "rank_order": "tp-pp-cp-dp"}, 16384),
    "mixture": ("mixtral-8x7b", {"tp": 2, "ep": 4, "pp": 2, "zero": 1}, 4096),
}
"""Jobs on nodes of eight, whose kernels outlast their launches: model, plan and tokens of a sequence."""


@pytest.mark.parametrize("name", JOBS)
def test_figures_are_the_same_without_pictures(name: str) -> None:
    """Time, its parts, what is sent and memory do not depend on whether passes are written step by step."""
    model, plan, seq_len = JOBS[name]
    cluster, training = load_cluster("dgx-h100", 2), Training(seq_len=seq_len, global_batch=32)
    with_it, without = (simulate(model, cluster, Plan(**plan), training, with_timeline=each) for each in (True, False))
    assert with_it.setup.engine["ops"] > 1.5 * without.setup.engine["ops"]
    one, other = with_it.to_dict(), without.to_dict()
    for key in ("step_time_s", "communication", "peak_memory_bytes", "peak_reserved_bytes", "mfu", "hfu"):
        assert one[key] == other[key]
    parts, others = one["time_breakdown_s"], other["time_breakdown_s"]
    idle = [each.pop("bubble") + each.pop("waiting") for each in (parts, others)]
    assert parts == pytest.approx(others, rel=1e-6, abs=1e-8)
    assert idle[0] == pytest.approx(idle[1], rel=1e-6)
    # kernels beside exposed exchanges count as unequal in a pass that is one op; step by step, only those waited for
    assert one["bubble_fraction"] == pytest.approx(other["bubble_fraction"], rel=0.03)


def _action_ends(entry: Lowered, timing: Timing) -> np.ndarray:
    """Finish of every action of every class, int64 ns."""
    finish = timing.finish_ns[entry.op_of_slot]
    key = entry.slots.class_id * (entry.slots.action.max() + 1) + entry.slots.action
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    return np.maximum.reduceat(finish, starts)


def test_folded_equals_unfolded(case: Case) -> None:
    """A class's representative finishes every action when each of its ranks does on its own."""
    folded = case.entry
    alone = lowered(case.plan, perturbation=Perturbation(fold=False))
    assert alone.quotient.num_classes == 16
    folded_ends = _ends_by_class(folded, case.timing)
    alone_ends = _ends_by_class(alone, reference.run(alone.program))
    for rank in range(16):
        assert folded_ends[folded.quotient.class_of_rank[rank]] == alone_ends[alone.quotient.class_of_rank[rank]]


def _ends_by_class(entry: Lowered, timing: Timing) -> dict[int, list[int]]:
    finish = timing.finish_ns[entry.op_of_slot]
    found: dict[int, list[int]] = {}
    for class_id in range(entry.quotient.num_classes):
        mine = entry.slots.class_id == class_id
        action = entry.slots.action[mine]
        found[class_id] = np.maximum.reduceat(finish[mine], np.flatnonzero(np.diff(action, prepend=-1))).tolist()
    return found


@pytest.mark.parametrize("name", ["ddp", "tp", "pp", "fsdp"])
def test_straggler_unfolds_and_slows(name: str) -> None:
    """One slow rank makes more classes and a longer step; the fold still equals the unfolded run."""
    plain = lowered(PLANS[name])
    slow = lowered(PLANS[name], perturbation=Perturbation(slow_ranks={3: 30.0}))  # beyond the host
    assert slow.quotient.num_classes > plain.quotient.num_classes
    assert reference.run(slow.program).makespan_ns > reference.run(plain.program).makespan_ns


def test_contention_only_adds(case: Case) -> None:
    """Without contention the step is a lower bound, and the sweep engine agrees with the reference."""
    free = lowered(case.plan, contention=False)
    bound = sweep.run(free.program)
    assert (bound.finish_ns == reference.run(free.program).finish_ns).all()
    assert bound.makespan_ns <= case.timing.makespan_ns


def test_degraded_link_slows_the_pipeline_that_crosses_it() -> None:
    """A send between nodes pays for every link on its way."""
    training = Training(seq_len=512, global_batch=16)
    graph = load_model("small-llama")
    spans = []
    for factor in (1.0, 0.01):
        cluster = load_cluster("dgx-h100", 2).with_degraded({"nic_tx[0]": factor})
        job = make_job(graph, cluster, Plan(pp=2, dp=8), training)
        spans.append(reference.run(lower(job, cluster, schedule_of(job.layout, training)).program).makespan_ns)
    assert spans[1] > spans[0]


def test_one_process_for_all_devices_is_the_slowest() -> None:
    """DataParallel copies parameters every forward, sums through the first device, and one interpreter issues all."""
    graph, cluster = load_model("small-llama"), load_cluster("dgx-h100", 1)
    training = Training(seq_len=512, global_batch=64)
    spans = {}
    for kind in ("ddp", "single_process"):
        job = make_job(graph, cluster, Plan(dp=8, kind=kind), training, "ddp")
        entry = lower(job, cluster, schedule_of(job.layout, training))
        spans[kind] = reference.run(entry.program).makespan_ns
        names = {entry.program.labels[label].name for label in entry.program.ops.label}
        assert ("broadcast parameters" in names) == (kind == "single_process")
    assert spans["single_process"] > spans["ddp"]
