"""Ranks that share the cores of a node: closed forms, and nothing changes where there are cores for all."""

from dataclasses import replace

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.simulation import lower_job, make_job, simulate
from tests.rules import verify

TRAINING = Training(seq_len=256, global_batch=8)


def machine(capacity: float | None, load: float = 0.0):
    """Four ranks over shared memory on cores for ``capacity`` of them."""
    cluster = load_cluster("laptop-cpu-4")
    host = cluster.profile.host.model_copy(update={"compute_capacity": capacity, "collective_load": load})
    return replace(cluster, profile=cluster.profile.model_copy(update={"host": host}))


def step_s(cluster, **layout):
    """Seconds of a step of a tiny model."""
    plan = Plan.model_validate({"micro_batch": 1, **layout})
    result = simulate(load_model("tiny-llama"), cluster, plan, TRAINING, stack="simpar")
    assert sum(result.time_breakdown_s.model_dump().values()) == pytest.approx(result.speed.step_time_s)
    return result.speed.step_time_s


@pytest.mark.parametrize("layout", [{"dp": 4}, {"pp": 4}, {"tp": 4}, {"tp": 2, "pp": 2}, {"dp": 4, "zero": 3}])
def test_cores_for_everybody_change_nothing(layout):
    """With as many cores as ranks, and collectives that take none, a step is as long as on devices of one's own."""
    assert step_s(machine(4.0), **layout) == pytest.approx(step_s(machine(None), **layout), rel=1e-4)


@pytest.mark.parametrize("capacity", [1.0, 2.0, 3.0])
def test_ranks_in_step_take_as_much_longer_as_cores_are_missing(capacity):
    """Data parallelism keeps all ranks busy: kernels take ranks / cores as long, messages what they took."""
    plan = Plan.model_validate({"micro_batch": 1, "dp": 4})
    alone = simulate(load_model("tiny-llama"), machine(None), plan, TRAINING, stack="simpar")
    parts = alone.time_breakdown_s
    busy_s = parts.compute + parts.optimizer
    expected = alone.speed.step_time_s + busy_s * (4 / capacity - 1)
    assert step_s(machine(capacity), dp=4) == pytest.approx(expected, rel=0.02)


def test_a_stage_that_waits_leaves_its_cores_to_the_others():
    """A naive pipeline has one stage at work at a time: half the cores are enough for it, and for 1F1B they are not."""
    assert step_s(machine(2.0), pp=4, schedule="naive") == pytest.approx(
        step_s(machine(None), pp=4, schedule="naive"), rel=0.05
    )
    slow, fast = step_s(machine(2.0), pp=4, schedule="gpipe"), step_s(machine(None), pp=4, schedule="gpipe")
    assert 1.1 * fast < slow < 1.9 * fast


def test_overlapped_messages_take_cores_from_kernels():
    """Where cores are full, a reduction beside the backward gains less."""
    assert step_s(machine(2.0, 1.0), dp=4) > step_s(machine(2.0, 0.0), dp=4)


def test_the_program_stays_well_formed():
    """Shared cores are links like others: the rules of the Program hold."""
    plan = Plan.model_validate({"micro_batch": 1, "tp": 2, "pp": 2})
    cluster = machine(2.0, 0.5)
    lowered = lower_job(make_job("tiny-llama", cluster, plan, TRAINING, "simpar"), cluster)
    assert verify(lowered.program).routes.link_names[-1] == "cores[0]"
