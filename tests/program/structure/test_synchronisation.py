"""What data parallelism moves in a step, in closed form."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.structure.synchronisation import Synchronisation
from simpar.simulation import lower_job, make_job, simulate
from simpar.stacks.stack import Stack, load_stack
from simpar.units import NS_PER_S, US

MODEL = load_model("tiny-llama")
BATCH = Training(seq_len=128, global_batch=64)


def dp_bytes(microbatches: int, *, stack: str = "torchtitan", zero: int = 3, pp: int = 1, **said: bool) -> float:
    """Bytes that the critical rank of eight gathers and reduces."""
    plan = Plan(pp=pp, zero=zero, kind="fsdp", micro_batch=1, stack=stack, **said)
    training = Training(seq_len=128, global_batch=8 // pp * microbatches)
    return simulate(MODEL, load_cluster("dgx-h100", 1), plan, training).communication["dp"].bytes_per_rank


@pytest.mark.parametrize("zero", [2, 3])
def test_torch_s_pipelines_move_once_a_step(zero: int) -> None:
    """One bf16 gather and one fp32 reduction, whatever the microbatches: as with one of them and ZeRO-2."""
    once = dp_bytes(4, zero=zero, pp=2)
    assert dp_bytes(16, zero=zero, pp=2) == once
    assert once == pytest.approx(dp_bytes(4, zero=2, pp=2, stack="megatron") * (2 + 4) / (2 + 4 * 4), rel=1e-6)


def test_fsdp_moves_for_every_microbatch_elsewhere() -> None:
    """Two gathers and a reduction a microbatch with ZeRO-3; with ZeRO-2 parameters are gathered once."""
    whole = MODEL.num_parameters()
    assert dp_bytes(4) == pytest.approx(4 * (2 + 2 + 4) * whole, rel=0.01)
    assert dp_bytes(4, zero=2) == pytest.approx((2 + 4 * 4) * whole, rel=0.01)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_gradients_that_wait_are_reduced_once_a_step(microbatches: int) -> None:
    """Gathers stay as they are; of the reductions of so many microbatches, 4 bytes each, one is left."""
    whole = MODEL.num_parameters()
    for zero, gathers in ((3, microbatches * (2 + 2)), (2, 2)):
        each, once = (dp_bytes(microbatches, zero=zero, defer_grad_reduce=waits) for waits in (False, True))
        assert each == pytest.approx((gathers + 4 * microbatches) * whole, rel=0.01)
        assert once == pytest.approx((gathers + 4) * whole, rel=0.01)
    assert dp_bytes(microbatches, pp=2, defer_grad_reduce=True) == dp_bytes(microbatches, pp=2)  # once a step anyway


def test_gradients_that_wait_are_reduced_beside_the_last_backward() -> None:
    """Most of them hide in it.

    A step of one microbatch is the same to the nanosecond, with as many bytes held; of more every further one takes
    what it takes without a reduction, in which nothing waits for one.
    """
    cluster, found = load_cluster("dgx-h100", 1), {}
    for microbatches in (1, 2, 3):
        for waits in (False, True):
            plan = Plan(zero=2, kind="fsdp", micro_batch=1, stack="fsdp", defer_grad_reduce=waits)
            training = Training(seq_len=2048, global_batch=8 * microbatches)
            found[microbatches, waits] = simulate("llama-3.1-8b", cluster, plan, training)
    assert found[1, True].step_time_s == found[1, False].step_time_s
    assert found[1, True].peak_memory_bytes == found[1, False].peak_memory_bytes
    more = [found[each + 1, True].step_time_s - found[each, True].step_time_s for each in (1, 2)]
    assert more[0] == pytest.approx(more[1], rel=1e-6)
    assert found[3, True].step_time_s < found[3, False].step_time_s
    late = Plan(zero=2, kind="fsdp", micro_batch=1, stack="fsdp", overlap_grad_reduce=False)
    behind = simulate("llama-3.1-8b", cluster, late, Training(seq_len=2048, global_batch=24)).communication["dp"]
    beside = found[3, True].communication["dp"]
    assert beside.bytes_per_rank == behind.bytes_per_rank
    assert beside.exposed_s < behind.exposed_s / 2


@pytest.mark.parametrize("hsdp", [2, 4])
def test_replicas_of_shards_that_reduce_everywhere_at_once(hsdp: int) -> None:
    """ZeRO-1 that all-reduces (DDP below it) moves as much with copies of the shards as with one of them."""
    found = []
    for copies in (1, hsdp):
        plan = Plan(zero=1, hsdp=copies, micro_batch=1, stack="simpar")
        found.append(simulate(MODEL, load_cluster("dgx-h100", 1), plan, Training(seq_len=128, global_batch=8)))
    one, several = (each.communication["dp"] for each in found)
    assert several.bytes_per_rank == one.bytes_per_rank
    assert several.busy_s > one.busy_s / 2
    assert "all_reduce" in several.algorithm


@pytest.mark.parametrize("zero", [2, 3])
def test_buckets_that_are_reduced_in_turn_leave_no_whole_gradients(zero: int) -> None:
    """DeepSpeed's overlap_comm chooses the stream: memory and bytes are the same without it, and time is more."""
    found = {}
    for overlaps in (True, False):
        plan = Plan(zero=zero, overlap_grad_reduce=overlaps, micro_batch=1, stack="deepspeed")
        found[overlaps] = simulate(MODEL, load_cluster("dgx-h100", 1), plan, Training(seq_len=128, global_batch=32))
    beside, in_turn = (found[overlaps] for overlaps in (True, False))
    assert in_turn.peak_memory_bytes == beside.peak_memory_bytes
    assert in_turn.communication["dp"].bytes_per_rank == beside.communication["dp"].bytes_per_rank
    reduced_s = in_turn.communication["dp"].busy_s * 4 * 2 / (4 * 2 + (2 if zero == 2 else 4 * 2 * 2))
    assert in_turn.step_time_s > beside.step_time_s
    assert in_turn.communication["dp"].exposed_s > 0.8 * reduced_s


def test_gradients_that_wait_for_the_end_of_the_step_are_kept_whole() -> None:
    """Megatron reduces once behind the last backward: whole gradients of 4 bytes instead of an eighth of them."""
    found = {}
    for overlaps in (True, False):
        plan = Plan(zero=2, overlap_grad_reduce=overlaps, micro_batch=1, stack="megatron")
        found[overlaps] = simulate(MODEL, load_cluster("dgx-h100", 1), plan, Training(seq_len=128, global_batch=32))
    late, beside = (found[overlaps].memory.stages[0].gradients_bytes for overlaps in (False, True))
    more = late - beside
    assert more == pytest.approx(4 * MODEL.num_parameters() * 7 / 8, rel=1e-3)


def test_replicas_that_sum_behind_the_backward_do_so_once() -> None:
    """Shards of two ranks in four copies: three microbatches more are three sums of a bf16 half less, not hidden."""
    found = {}
    for microbatches in (1, 4):
        plan = Plan(zero=3, hsdp=4, kind="fsdp", micro_batch=1, stack="maxtext")
        training = Training(seq_len=128, global_batch=8 * microbatches)
        found[microbatches] = simulate(MODEL, load_cluster("dgx-h100", 1), plan, training).communication["dp"]
    saved = 4 * found[1].bytes_per_rank - found[4].bytes_per_rank
    assert saved == pytest.approx(3 * MODEL.num_parameters() * 2 / 2, rel=0.01)


@pytest.mark.parametrize(("nodes", "calls"), [(1, 8), (8, 27)])
def test_owners_of_whole_arrays_broadcast_them_one_after_the_other(nodes: int, calls: int) -> None:
    """As many calls as ranks, but no more than arrays: six of a layer, two tables, the last norm; a gather's bytes."""
    job = make_job(MODEL, load_cluster("hgx-a100-80gb", nodes), Plan(zero=1, micro_batch=1), BATCH, "internevo")
    (use,) = Synchronisation.of(job).late_gathers({"dp": 1e6})
    assert (use.op, use.count) == ("broadcast", calls)
    assert use.size_bytes * use.count == pytest.approx(2e6)


def test_each_broadcast_is_a_chain_through_all_ranks() -> None:
    """27 of them among 64 ranks, where a gather has the latency of one: 26 x 63 steps of a microsecond and more."""
    cluster, plan = load_cluster("hgx-a100-80gb", 8), Plan(zero=1, micro_batch=1)
    gathers, broadcasts = (
        step_s(cluster, plan, BATCH, changed("internevo", "overlap", owner_broadcasts=there)) for there in (False, True)
    )
    assert broadcasts - gathers > 26 * 63 * US


def test_units_are_copied_between_the_kernels() -> None:
    """ZeRO-3 under DeepSpeed: two gathers of 2 bytes are read and written, gradients of 2 bytes three times so."""
    cluster, plan = load_cluster("hgx-a100-80gb", 1), Plan(zero=3, kind="fsdp", micro_batch=8)
    training = Training(seq_len=8192, global_batch=64)
    stacks = [changed("deepspeed", "launch", copy_out_passes=out, copy_in_passes=6) for out in (0, 2)]
    stacks.append(changed("deepspeed", "launch", copy_out_passes=0, copy_in_passes=0))
    out, both, none = (step_s(cluster, plan, training, stack) for stack in stacks)
    pass_s = 2 * MODEL.num_parameters() / make_job(MODEL, cluster, plan, training, "deepspeed").kernels.bandwidth
    assert both - out == pytest.approx(2 * 2 * pass_s, rel=0.05)
    assert out - none == pytest.approx(6 * pass_s, rel=0.05)


def step_s(cluster: Cluster, plan: Plan, training: Training, stack: Stack) -> float:
    """Seconds of a step of the model without the stack's overhead."""
    program = lower_job(make_job(MODEL, cluster, plan, training, stack), cluster).program
    return float(choose_engine("auto", program)(program).makespan_ns) / NS_PER_S


def changed(name: str, section: str, **habits: object) -> Stack:
    """A stack with other habits."""
    stack = load_stack(name)
    return stack.model_copy(update={section: getattr(stack, section).model_copy(update=habits)})
