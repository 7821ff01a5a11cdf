"""DataParallel: everything passes through the first device, which computes the loss of all."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from simpar.architectures.training import Training
from simpar.engine import reference
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.ir.memory import memory_uses
from simpar.program.lower import Lowered, lower
from simpar.simulation import make_job
from tests.rules import verify

DEVICES = 4


@lru_cache
def one_process() -> Lowered:
    """GPT-2 on four devices of a DGX V100, two microbatches of two sequences."""
    cluster = load_cluster("dgx-v100", 1)
    cluster = type(cluster)(cluster.profile.model_copy(update={"devices_per_node": DEVICES}), 1)
    training = Training(seq_len=256, global_batch=4 * DEVICES)
    plan = Plan(dp=DEVICES, kind="single_process", micro_batch=2, precision="fp16")
    job = make_job("gpt2", cluster, plan, training, "ddp")
    return lower(job, cluster, schedule_of(job.layout, training))


def ops_named(name: str) -> np.ndarray:
    """Ops with a label of that name."""
    program = one_process().program
    return np.flatnonzero([program.labels[label].name == name for label in program.ops.label])


def test_the_first_device_is_a_class_of_its_own() -> None:
    """One device does more, the others behave alike."""
    entry = one_process()
    verify(entry.program)
    assert entry.quotient.multiplicity.tolist() == [1, DEVICES - 1]


def test_a_step_passes_through_the_first_device() -> None:
    """Inputs and parameters go out, outputs come in, their gradients go out, gradients come in; once a microbatch."""
    entry, finish = one_process(), reference.run(one_process().program).finish_ns
    order = ["scatter inputs", "broadcast parameters", "gather outputs", "scatter gradients of outputs"]
    for name in order:
        assert len(ops_named(name)) == 2, name
    ends = [finish[ops_named(name)[0]] for name in order]
    assert ends == sorted(ends)
    assert len(ops_named("reduce gradients")) == 1
    assert (entry.program.ops.class_id[ops_named("loss of all outputs")] == 0).all()


def test_others_wait_for_the_loss_of_all() -> None:
    """Between gathering outputs and sending gradients back only the first device works."""
    entry = one_process()
    timing = reference.run(entry.program)
    gathered = timing.finish_ns[ops_named("gather outputs")[0]]
    sent = timing.start_ns[ops_named("scatter gradients of outputs")[0]]
    loss = ops_named("loss of all outputs")[:2]
    assert sent - gathered == (timing.finish_ns - timing.start_ns)[loss].sum() > 0
    other = entry.program.ops.class_id == 1
    busy = other & (timing.start_ns < sent) & (timing.finish_ns > gathered)
    assert not busy.any()


def test_the_first_device_holds_the_logits_of_all() -> None:
    """Its peak exceeds the others' by three replicas' logits and their loss."""
    entry = one_process()
    timing = reference.run(entry.program)
    peaks = [memory_uses(entry.program, timing)[c].peak_bytes for c in range(2)]
    job = entry.job
    logits = 2 * 256 * job.graph.dims["vocab"] * (DEVICES - 1)
    saved, peak = job.stack.memory.loss_bytes(logits)
    assert saved < peaks[0] - peaks[1] <= peak
    assert peaks[0] - peaks[1] == pytest.approx(peak, rel=0.4)
