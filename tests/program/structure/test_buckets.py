"""Gradient buckets: as many reductions as buckets fill, each with its latency; the last one is what shows."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.cost.collectives.choice import fastest, offers
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.program.lower import Lowered
from simpar.simulation import lower_job, make_job
from simpar.units import MB, NS_PER_S

CLUSTER = load_cluster("dgx-h100", 8)
TRAINING = simpar.Training(seq_len=4096, global_batch=64)
SIZES = (100 * MB, 200 * MB, 400 * MB, 1000 * MB, 4000 * MB)


def lowered(bucket_bytes: float) -> Lowered:
    """Llama 3 8B on 64 GPUs, data parallel, one microbatch."""
    job = make_job("llama-3-8b", CLUSTER, simpar.Plan(micro_batch=1, bucket_bytes=bucket_bytes), TRAINING)
    return lower_job(job, CLUSTER, {})


def reductions(entry: Lowered) -> list[tuple[float, int]]:
    """(bytes of one, how many) of the reductions of a step."""
    (actions,) = entry.actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.collective is not None]
    return [(use.size_bytes, use.count) for use in uses if use.op == "all_reduce"]


@pytest.mark.parametrize("size", SIZES)
def test_buckets_hold_all_gradients_and_no_more_than_they_may(size: float) -> None:
    """Bytes add up; a bucket closes with the block that fills it, and larger ones are cut into equal calls."""
    found = reductions(lowered(size))
    parameters = simpar.Model("llama-3-8b").num_parameters()
    width = sum(each * count for each, count in found) / parameters
    assert width == pytest.approx(4)  # fp32
    layer = width * (parameters - 2 * 128256 * 4096) / 32
    for each, _ in found[1:-1]:
        assert 0.65 * size <= each <= max(size + layer, 1.5 * size)
    calls = sum(count for _, count in found)
    assert calls == pytest.approx(width * parameters / size, rel=0.35, abs=1)


@pytest.mark.parametrize("size", [10 * MB, *SIZES])
def test_each_reduction_costs_its_latency(size: float) -> None:
    """Busy time is that of every call alone: latency and bytes of the fastest algorithm at its size."""
    entry, cluster = lowered(size), CLUSTER.in_training
    program = entry.program
    timing = choose_engine("auto", program)[1](program)
    reduces = np.array([program.labels[label].kind == "dp" for label in program.ops.label])
    busy_ns = (timing.finish_ns - timing.start_ns)[reduces].sum()
    found = offers("all_reduce", np.arange(64), cluster)
    alone_s = sum(count * fastest(found, each).time_s(each) for each, count in reductions(entry))
    assert busy_ns / NS_PER_S == pytest.approx(alone_s, rel=1e-3)


def test_small_buckets_pay_latency_and_large_ones_wait() -> None:
    """Busy time falls with the size; exposed time falls, then grows up to a reduction after all of the backward."""
    plans = {size: simpar.Plan(micro_batch=1, bucket_bytes=size) for size in (10 * MB, 400 * MB, 40000 * MB)}
    found = [
        simpar.simulate("llama-3-8b", CLUSTER, plan, TRAINING).communication["dp"] for plan in plans.values()
    ]
    busy, exposed = [one.busy_s for one in found], [one.exposed_s for one in found]
    assert busy == sorted(busy, reverse=True)
    assert exposed[1] < min(exposed[0], exposed[2])


def test_blocks_of_few_parameters_are_gathered_in_full_buckets() -> None:
    """Adapters of 32 layers: all bytes once, and the latency of as many calls as they fill buckets; own calls else."""
    size, rank = 10 * MB, 8
    plan = simpar.Plan(zero=1, micro_batch=1, bucket_bytes=size, overlap_param_gather=True, lora_rank=rank)
    job = make_job("llama-3-8b", CLUSTER, plan, TRAINING)
    entry = lower_job(job, CLUSTER, {})
    (actions,) = entry.actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.name == "all_gather parameters" and node.collective]
    trained = sum(each.moved_bytes for each in uses)
    assert len(uses) == 32
    assert {use.size_bytes for use in uses} == {
        size * 2 / 4
    }  # as many parameters, of two bytes instead of four
    assert sum(float(use.count) for use in uses) == pytest.approx(trained / (size / 2))
    whole = make_job(
        "llama-3-8b", CLUSTER, plan.model_copy(update={"tuning": simpar.Plan().tuning}), TRAINING
    )
    (actions,) = lower_job(whole, CLUSTER, {}).actions
    nodes = [node for index in actions.template for node in actions.templates[index].nodes]
    uses = [node.collective for node in nodes if node.name == "all_gather parameters" and node.collective]
    assert {use.count for use in uses} == {1.0}
