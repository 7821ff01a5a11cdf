"""Offload as a choice: offered on request, bounded from below, taken where nothing else fits."""

from dataclasses import replace

import pytest

import simpar
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.planner import Constraints, search
from simpar.planner.certify.exact import measure
from simpar.planner.space.axes import list_offered
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from tests.gate import some
from tests.planner.bound.test_steps import bounds_of

TRAINING = simpar.Training(seq_len=1024, global_batch=8)


def test_states_stay_where_the_plan_has_them(problem_of):
    """Homes on the host are offered by fixing the axis to several."""
    problem = problem_of(2, micro_batch=2)
    assert list_offered(problem) == ()
    away = replace(problem, base=simpar.Plan(offload_optimizer="cpu"))
    rows = enumerate_space(away)
    assert [axis.name for axis in list_offered(away)] == ["offload_optimizer"]
    assert not rows.one_of("offload_optimizer", "none")[rows.code["offload_optimizer"] > 0].any()


@pytest.mark.parametrize(("seed", "count"), some([(2, 5), (2, 10), (5, 10), (9, 10)], 1, tuples=True))
def test_bounds_hold_with_updates_on_the_host(seed, count, problem_of, frontier_of):
    """No bound is above the executed step where the host updates some."""
    problem = problem_of(seed, offload_optimizer=("none", "cpu"))
    frontier = frontier_of(problem, seed, count)
    overhead = problem.stack.launch.step_overhead_s
    seen = set()
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        seen.add(plan.offload.offload_optimizer)
        exact = measure(problem, plan).step_time_s - overhead
        assert max(bounds_of(frontier, row)) <= exact * (1 + 1e-12), plan
    assert seen == {"none", "cpu"}


def test_search_offloads_where_nothing_else_fits():
    """1.6B parameters in 20 GB: only with states on the host, and certified."""
    profile = load_cluster("dgx-h100").profile.model_copy(update={"devices_per_node": 1})
    fixed = {"offload_optimizer": ("none", "cpu"), "micro_batch": 1}
    problem = {"constraints": Constraints(fixed=fixed, headroom=0.75)}
    found = search("gpt2-xl", make_cluster(profile, 1), TRAINING, **problem)
    assert found.best.plan.offload.offload_optimizer == "cpu"
    assert found.certified_optimal
    roomy = search("gpt2-xl", make_cluster(profile, 1), TRAINING, constraints=Constraints(fixed=fixed))
    assert roomy.best.plan.offload.offload_optimizer == "none"


def test_a_full_host_is_no_place(problem_of):
    """What the host cannot hold does not count as fitting."""
    problem = problem_of(2)
    host = problem.cluster.profile.host.model_copy(update={"memory_bytes": 1e6})
    cluster = replace(problem.cluster, profile=problem.cluster.profile.model_copy(update={"host": host}))
    plan = simpar.Plan(zero=2, offload_optimizer="cpu")
    assert measure(problem, plan).fits
    assert not measure(replace(problem, cluster=cluster), plan).fits
