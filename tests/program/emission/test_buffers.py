"""Two buffers for gathered parameters and two for gradients, counted through all passes of a rank."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest
from numpy.typing import NDArray

from simpar.architectures.training import Training
from simpar.engine import reference, sweep
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.ir.memory import memory_uses
from simpar.program.ir.program import Program, Timing
from simpar.program.lower import Lowered, lower
from simpar.simulation import make_job
from simpar.units import Ints
from tests.gate import some

TRAINING = Training(seq_len=512, global_batch=64)
PLANS = {
    "one layer a stage": {"pp": 2, "vpp": 4, "dp": 8},
    "two layers a stage": {"pp": 2, "vpp": 2, "dp": 8},
    "four layers a stage": {"pp": 2, "dp": 8, "recompute": "full"},
    "no pipeline": {"dp": 16, "micro_batch": 1},
    "zero bubble": {"pp": 8, "dp": 2, "schedule": "zb-h1"},
    "replicas": {"pp": 2, "vpp": 4, "dp": 8, "hsdp": 2},
    "experts": {"model": "small-mixture", "pp": 2, "dp": 8, "ep": 2},
}
WAITING = [name for name in PLANS if name not in ("experts", "replicas")]


def slow(factor: float = 0.02) -> Cluster:
    """Two DGX H100 whose network takes far longer than their kernels."""
    links = ("nic_tx", "nic_rx", "port_tx", "port_rx")
    cluster = load_cluster("dgx-h100", 2)
    known = {cluster.link_name(index) for index in range(cluster.num_links)}
    names = [name for name in known if name.startswith(links)]
    assert names, "links are named after what they are"
    return cluster.with_degraded(dict.fromkeys(names, factor))


def lowered(plan: dict[str, object], zero: int, *, contention: bool = False) -> Lowered:
    """A small Llama or mixture under fully sharded data parallelism."""
    given = {"model": "small-llama", "zero": zero, "kind": "fsdp", "micro_batch": 1, **plan}
    cluster = slow()
    job = make_job(str(given["model"]), cluster, Plan(**given), TRAINING)
    return lower(job, cluster, schedule_of(job.layout, TRAINING), contention=contention)


def ops_of(entry: Lowered, class_id: int, *kinds: str, name: str = "") -> NDArray[np.int64]:
    """Ops of a class in its program order, of some kinds and one name."""
    ops = entry.op_of_slot[entry.slots.class_id == class_id]
    labels = [entry.program.labels[label] for label in entry.program.ops.label[ops].tolist()]
    chosen = [label.kind in kinds and (not name or label.name == name) for label in labels]
    return np.asarray(ops[chosen])


def left_bytes(program: Program) -> Ints:
    """Bytes that every class of ranks still holds when all ops have ended, int64[classes]."""
    result, memory = np.zeros(len(program.class_names), dtype=np.int64), program.memory
    np.add.at(result, memory.class_id, memory.delta_bytes)
    return result


def timed(plan: str, zero: int) -> tuple[Lowered, Timing]:
    """A plan with its times."""
    entry = lowered(PLANS[plan], zero)
    return entry, sweep.run(entry.program)


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "experts"])
def test_a_gather_waits_for_the_unit_two_before(plan: str) -> None:
    """However many passes there are: the k-th gather of a rank starts behind the pass of its unit k - 2."""
    entry, times = timed(plan, 3)
    for class_id in range(entry.quotient.num_classes):
        gathers = ops_of(entry, class_id, "dp", name="all_gather parameters")
        passes = ops_of(entry, class_id, "forward", "backward", "input_gradient")
        assert len(gathers) == len(passes) > 2
        assert (times.start_ns[gathers[2:]] >= times.finish_ns[passes[:-2]]).all()
        assert (times.start_ns[passes] >= times.finish_ns[gathers]).all()


@pytest.mark.parametrize("stack", ["fsdp", "torchtitan"])
def test_adapters_that_are_units_leave_no_block_gathered_ahead(stack: str) -> None:
    """Under FSDP1 a block's gather waits for the block before; where adapters are no units, for the one before that."""
    tuned = {"lora_rank": 8, "dp": 16, "recompute": "full", "stack": stack}
    entry = lowered(tuned, 3)
    times = sweep.run(entry.program)
    waits = {"fsdp": 1, "torchtitan": 2}[stack]
    gathers = ops_of(entry, 0, "dp", name="all_gather parameters")
    passes, first = ops_of(entry, 0, "forward", "backward"), ops_of(entry, 0, "backward", name="embedding")
    passes = passes[~np.isin(passes, first)]  # which is not trained and has nothing to gather
    assert len(gathers) == len(passes) > 2
    assert (times.start_ns[gathers[waits:]] >= times.finish_ns[passes[:-waits]]).all()
    assert waits == 1 or (times.start_ns[gathers[1:]] < times.finish_ns[passes[:-1]]).any()
    assert left_bytes(entry.program)[0] == 0


@pytest.mark.parametrize(("plan", "zero"), some(product(WAITING, [2, 3]), zip(WAITING, cycle([3, 2])), tuples=True))
def test_a_backward_waits_for_the_reduction_two_before(plan: str, zero: int) -> None:
    """Of all reductions of the rank, in whatever pass they were; on a slow network some backward does wait."""
    entry, times = timed(plan, zero)
    waited = 0
    for class_id in range(entry.quotient.num_classes):
        reductions = ops_of(entry, class_id, "dp", name="reduce_scatter gradients")
        passes = ops_of(entry, class_id, "weight_gradient" if plan == "zero bubble" else "backward")
        assert len(reductions) == len(passes) > 2
        start, free = times.start_ns[passes[2:]], times.finish_ns[reductions[:-2]]
        assert (start >= free).all()
        waited += int((start == free).sum())
    assert waited or plan == "no pipeline"  # which waits for its gathers


@pytest.mark.parametrize(("plan", "zero"), some(product(PLANS, [2, 3]), zip(PLANS, cycle([2, 3])), tuples=True))
def test_a_slow_step_frees_all_that_it_holds(plan: str, zero: int) -> None:
    """Communication slower than passes leaves no memory behind."""
    entry, times = timed(plan, zero)
    assert all(use.peak_bytes > 0 for use in memory_uses(entry.program, times))
    assert not left_bytes(entry.program).any()


def test_engines_agree_on_waits_for_buffers() -> None:
    """With contention too, the step of a slow network is that of its buffers, in both forms of the Program."""
    entry = lowered(PLANS["one layer a stage"], 3, contention=True)
    free = lowered(PLANS["one layer a stage"], 3)
    assert reference.run(entry.program).makespan_ns >= sweep.run(free.program).makespan_ns
    assert (reference.run(free.program).finish_ns == sweep.run(free.program).finish_ns).all()
