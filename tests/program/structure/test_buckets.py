"""Gradient buckets: as many reductions as buckets fill, each with its latency; the last one is what shows."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.cost.collectives.choice import choose_fastest, offers
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.program.lower import Lowered
from simpar.program.structure.buckets import mean_bucket
from simpar.simulation import lower_job, make_job
from simpar.units import MB, NS_PER_S

CLUSTER = load_cluster("dgx-h100", 8)
TRAINING = simpar.Training(seq_len=4096, global_batch=64)
SIZES = (100 * MB, 200 * MB, 400 * MB, 1000 * MB, 4000 * MB)


TABLE, LAYER = 128256 * 4096, (4096, 4096 * 6144, 4096 * 4096, 4096, 4096 * 28672, 14336 * 4096)
TENSORS = (TABLE, *LAYER * 32, 4096, TABLE)
"""Parameters of the tensors of Llama 3 8B in their order, of which projections of one input are one."""


def whole_buckets(least: float) -> list[int]:
    """Buckets that close with the tensor that fills them, from the end of the model on."""
    found, pending = [], 0
    for size in TENSORS[::-1]:
        pending += size
        if pending >= least:
            found, pending = [*found, pending], 0
    return [*found, pending] if pending else found


def lowered(bucket_bytes: float) -> Lowered:
    """Llama 3 8B on 64 GPUs, data parallel, one microbatch."""
    job = make_job("llama-3-8b", CLUSTER, simpar.Plan(micro_batch=1, bucket_bytes=bucket_bytes), TRAINING)
    return lower_job(job, CLUSTER)


def reductions(entry: Lowered) -> list[tuple[float, int]]:
    """(bytes of one, how many) of the reductions of a step."""
    (actions,) = entry.actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.collective is not None]
    return [(use.size_bytes, use.count) for use in uses if use.op == "all_reduce"]


@pytest.mark.parametrize("size", SIZES)
def test_buckets_hold_all_gradients_in_as_many_calls_as_whole_tensors_fill(size: float) -> None:
    """Bytes add up; a bucket closes with the block that fills it, and is cut into calls of one tensor or more."""
    found = reductions(lowered(size))
    parameters = simpar.Model("llama-3-8b").num_parameters()
    assert sum(TENSORS) == parameters
    width = sum(each * count for each, count in found) / parameters
    assert width == pytest.approx(4)  # fp32
    expected = whole_buckets(size / width)
    calls = sum(count for _, count in found)
    whole_blocks = 0.25 if size > width * sum(LAYER) else 0.15  # a call of more than a layer waits for the next one
    assert calls == pytest.approx(len(expected), rel=whole_blocks, abs=1)
    assert all(0.65 * size <= each <= size + width * TABLE for each, _ in found[:-1])


@pytest.mark.parametrize("least", [1.0, 5e6, 3e7, 1e8, 2e9])
def test_the_mean_is_that_of_full_buckets(least: float) -> None:
    """By brute force, the rest that fills none left out; nothing that can be filled is asked for where none is full."""
    *full, last = whole_buckets(least)
    full = [*full, last] if last >= least else full
    assert mean_bucket(TENSORS, least) == pytest.approx(sum(full) / len(full))
    assert mean_bucket(TENSORS, 2.0 * sum(TENSORS)) == 2.0 * sum(TENSORS)
    assert simpar.Model("llama-3-8b").tensor_sizes == TENSORS


@pytest.mark.parametrize("size", [10 * MB, *SIZES])
def test_each_reduction_costs_its_latency(size: float) -> None:
    """Busy time is that of every call alone: latency and bytes of the fastest algorithm at its size."""
    entry, cluster = lowered(size), CLUSTER.in_training
    program = entry.program
    timing = choose_engine("auto", program)(program)
    reduces = np.array([program.labels[label].kind == "dp" for label in program.ops.label])
    busy_ns = (timing.finish_ns - timing.start_ns)[reduces].sum()
    found = offers("all_reduce", np.arange(64), cluster)
    alone_s = sum(count * choose_fastest(found, each).time_s(each) for each, count in reductions(entry))
    assert busy_ns / NS_PER_S == pytest.approx(alone_s, rel=1e-3)


def test_small_buckets_pay_latency_and_large_ones_wait() -> None:
    """Busy time falls with the size; exposed time falls, then grows up to a reduction after all of the backward."""
    plans = {size: simpar.Plan(micro_batch=1, bucket_bytes=size) for size in (10 * MB, 400 * MB, 40000 * MB)}
    found = [simpar.simulate("llama-3-8b", CLUSTER, plan, TRAINING).communication["dp"] for plan in plans.values()]
    busy, exposed = [one.busy_s for one in found], [one.exposed_s for one in found]
    assert busy == sorted(busy, reverse=True)
    assert exposed[1] < min(exposed[0], exposed[2])


def test_blocks_of_few_parameters_are_gathered_in_full_buckets() -> None:
    """Adapters of 32 layers: all bytes once, and the latency of as many calls as they fill buckets; own calls else."""
    size, rank = 10 * MB, 8
    plan = simpar.Plan(zero=1, micro_batch=1, bucket_bytes=size, overlap_param_gather=True, lora_rank=rank)
    job = make_job("llama-3-8b", CLUSTER, plan, TRAINING, "megatron")
    entry = lower_job(job, CLUSTER)
    (actions,) = entry.actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.name == "all_gather parameters" and node.collective]
    trained = sum(each.moved_bytes for each in uses)
    assert len(uses) == 32
    (call,) = {use.size_bytes for use in uses}
    assert size / 2 <= call < 1.1 * size / 2  # as many parameters, of two bytes instead of four; tensors are whole
    assert sum(float(use.count) for use in uses) == pytest.approx(trained / call)
    whole = make_job("llama-3-8b", CLUSTER, plan.model_copy(update={"tuning": simpar.Plan().tuning}), TRAINING)
    (actions,) = lower_job(whole, CLUSTER).actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.name == "all_gather parameters" and node.collective]
    assert {use.count for use in uses} == {1.0}
