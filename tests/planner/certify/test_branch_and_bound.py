"""The certified optimum is the optimum: small spaces are simulated in full by the reference engine."""

import random
from dataclasses import replace

import numpy as np
import pytest

from simpar.engine import reference
from simpar.plan.sync import replicas_are_independent
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.exact import exact, measure
from simpar.planner.certify.frontier import SWEPT, Frontier
from simpar.planner.progress import SearchProgress
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.program.footprint import footprints, host_use
from simpar.simulation import lower_job, make_job, simulate
from simpar.units import NS_PER_S
from tests.gate import some

AXES = {
    "tp": ((1, 2), (1, 4), (1, 2, 4)),
    "pp": ((1, 2), (1, 2, 4), (1,)),
    "schedule": (("1f1b",), ("1f1b", "interleaved"), ("zb-h1", "gpipe"), ("zb-v", "1f1b"), ("v-half", "dualpipev")),
    "zero": ((0, 1), (0, 1, 3), (0, 2, 3), (0,)),
    "micro_batch": ((1, 2), (2,), (4,)),
    "recompute": (("none",), ("full", "none"), ("every:2",)),
}


NARROW = {
    "order": "tp-cp-dp-pp", "overlap_grad_reduce": True, "overlap_param_gather": True, "tp_overlap": False,
    "sequence_parallel": False, "micro_batch": 2, "schedule": "1f1b", "recompute": "none",
}  # fmt: skip
"""What axes are held at, one after the other, until a space is small enough."""


def few_rows(problem_of, seed, most=24):
    """A random problem with random restrictions, narrowed until its space has ``most`` rows or nothing is left."""
    rng = random.Random(1000 + seed)
    fixed = {axis: rng.choice(options) for axis, options in AXES.items()} | {"hsdp": 1}
    for axis in (None, *rng.sample(list(NARROW), len(NARROW))):
        fixed |= {} if axis is None else {axis: NARROW[axis]}
        problem = problem_of(seed, **fixed)
        if enumerate_space(problem).count <= most:
            return problem
    return problem


def brute_force(problem):
    """The shortest step of all rows that fit on devices, as surely as is wanted, and hosts.

    Every one of them is run by the reference engine. Where replicas step on their own a step is the mean of a round of
    theirs.
    """
    rows = enumerate_space(problem)
    fit = needs(rows).needed_bytes <= problem.memory_limit_bytes
    best = np.inf
    for row in np.flatnonzero(fit).tolist():
        plan = plan_of(rows, row)
        job = make_job(problem.graph, problem.cluster, plan, problem.training, problem.stack)
        lowered = lower_job(job, problem.cluster)
        timing = reference.run(lowered.program)
        held = footprints(lowered, timing, problem.cluster)
        needed = max(one.needed_at(problem.constraints.fit_probability) for one in held)
        host = host_use(lowered, problem.cluster)
        if needed > problem.memory_limit_bytes or not (host is None or host.fits):
            continue
        step_s = timing.makespan_ns / NS_PER_S + problem.stack.launch.step_overhead_s
        if replicas_are_independent(plan):
            step_s = simulate(
                problem.graph, problem.cluster, plan, problem.training, stack=problem.stack, engine="reference"
            ).step_time_s
        best = min(best, step_s)
    return best


def assert_certified(problem):
    """The certified best step is the best of all rows, each run by the reference engine."""
    under_way = BranchAndBound(fields_of(problem, [problem.cluster.nodes]), SearchProgress())
    under_way.run()
    assert under_way.gap() == 0
    assert under_way.best == pytest.approx(brute_force(problem), rel=1e-12)
    return under_way


GATE = (4, 22)
"""With plain pipelines and pairs; the slow ones go without a pipeline, and have chunks, too."""


@pytest.mark.parametrize("seed", some(range(24), GATE))
def test_search_finds_what_brute_force_finds(seed, problem_of):
    """On random small models, clusters, stacks and restrictions the certified best step is the best step of all."""
    problem = few_rows(problem_of, seed)
    under_way = assert_certified(problem)
    assert under_way.counts().simulated <= under_way.counts().space_size


@pytest.mark.parametrize("seed", some(range(8), [0]))
def test_search_finds_the_least_energy(seed, problem_of):
    """The bounds of the energy of every row, from kernels to sweeps, are bounds; the certified best is the least."""
    problem = replace(few_rows(problem_of, 100 + seed, most=16), objective="energy")
    rows = enumerate_space(problem)
    needed = needs(rows).needed_bytes
    frontier, least = Frontier.of(rows, needed), np.inf
    for row in range(rows.count):
        joules = exact(problem, plan_of(rows, row)).bill.energy_j_per_step
        assert frontier.worth(row) <= joules * (1 + 1e-12)
        while frontier.level[row] < SWEPT and np.isfinite(frontier.bound_s[row]):
            frontier.raise_bound(row)
            assert frontier.worth(row) <= joules * (1 + 1e-12)
        if needed[row] <= problem.memory_limit_bytes:
            least = min(least, joules)
    under_way = BranchAndBound(fields_of(problem, [problem.cluster.nodes]), SearchProgress())
    under_way.run()
    assert under_way.gap() == 0
    assert under_way.best == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize(
    ("seed", "shortest"), some([(4, 4), *((seed, None) for seed in (0, 1, 2, 4, 5, 7, 9))], 1, tuples=True)
)
def test_search_finds_the_least_energy_by_a_deadline(seed, shortest, problem_of):
    """Of the plans that meet it, also where the plan with the least energy of all is late.

    The deadlines are the steps of all plans, or so many of the shortest.
    """
    problem = replace(few_rows(problem_of, 100 + seed, most=16), objective="energy")
    rows = enumerate_space(problem)
    plans = [measure(problem, plan_of(rows, row)) for row in range(rows.count)]
    steps = {found.step_time_s: found.worth for found in plans if found.fits}
    assert len(steps) > 2
    for deadline_s in sorted(steps)[:shortest]:
        limited = replace(problem.constraints, deadline_s=deadline_s)
        under_way = BranchAndBound(
            fields_of(replace(problem, constraints=limited), [problem.cluster.nodes]), SearchProgress()
        )
        under_way.run()
        least = min(found.worth for found in plans if found.fits and found.step_time_s <= deadline_s)
        assert under_way.gap() == 0
        assert under_way.best == pytest.approx(least, rel=1e-12)
