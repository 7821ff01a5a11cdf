"""Optimal recomputation as a choice of the space: bounded before it is made, made where it may win, certified."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.engine import reference
from simpar.errors import Infeasible, UserError
from simpar.plan.choices.memory import select_undecided
from simpar.planner import Constraints, make_problem, search
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import PASSES, STEP, Frontier
from simpar.planner.progress import SearchProgress
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.recomputation import _lower_hull, decide
from simpar.planner.space.rows import enumerate_space
from simpar.program.footprint import footprints
from simpar.simulation import lower_job, make_job
from simpar.units import NS_PER_S
from tests.gate import some
from tests.planner.certify.test_branch_and_bound import NARROW

HELD = {
    **NARROW, "hsdp": 1, "tp": (1, 2), "pp": (1, 2), "zero": (0, 1), "micro_batch": (4, 8),
    "recompute": ("none", "full", "optimal"), "schedule": ("1f1b", "zb-h1"),
}  # fmt: skip


def tight(problem):
    """The problem on devices that hold what recomputes and not what keeps, for most layouts."""
    rows = enumerate_space(problem)
    need, least = needs(rows).needed_bytes, {}
    for policy in ("none", "full"):
        least[policy] = float(np.median(need[rows.one_of("recompute", policy)]))
    device = problem.cluster.device.model_copy(update={"memory_bytes": sum(least.values()) / 2})
    return replace(problem, cluster=problem.cluster.with_device(device))


def executed_s(problem, plan):
    """The step of a plan by the reference engine where it fits as surely as is wanted, else infinity."""
    sure = problem.constraints.fit_probability
    try:
        job = make_job(problem.graph, problem.cluster, plan, problem.training, problem.stack, sure)
    except Infeasible:
        return np.inf
    lowered = lower_job(job, problem.cluster)
    timing = reference.run(lowered.program)
    needed = max(one.needed_at(sure) for one in footprints(lowered, timing, problem.cluster))
    step_s = timing.makespan_ns / NS_PER_S + problem.stack.launch.step_overhead_s
    return step_s if needed <= problem.memory_limit_bytes else np.inf


@pytest.mark.parametrize(
    ("seed", "narrow"), some([(7, {"micro_batch": 8, "zero": 1, "tp": 1}), (1, {}), (4, {}), (7, {})], 1, tuples=True)
)
def test_search_finds_what_brute_force_finds(seed, narrow, problem_of):
    """With memory that binds, the certified best step is the best of all rows, each chosen and run by itself.

    In the first case an optimal choice of layers is the best.
    """
    problem = tight(problem_of(seed, **{**HELD, **narrow}))
    rows = enumerate_space(problem)
    under_way = BranchAndBound(fields_of(problem, [problem.cluster.nodes]), SearchProgress())
    under_way.run()
    best = min(executed_s(problem, plan_of(rows, row)) for row in range(rows.count))
    assert under_way.gap() == 0
    assert under_way.best == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("held", [{}, {"pp": 2, "vpp": 2, "schedule": ("interleaved", "breadth-first")}])
@pytest.mark.parametrize("seed", some([8, 7], 1))
def test_bounds_of_undecided_rows_hold(seed, held, problem_of):
    """What dropping activations costs at least is no more than what the choice costs, in chunks or not."""
    problem = tight(problem_of(seed, **{**HELD, "cp": 1, **held}))
    rows = enumerate_space(problem)
    rows.keep_only(needs(rows).needed_bytes <= problem.memory_limit_bytes)
    rows.keep_only(select_undecided(rows, np.arange(rows.count)))
    rows.keep_only(np.arange(0, rows.count, max(1, rows.count // 6)))
    frontier = Frontier.of(rows, needs(rows).needed_bytes)
    squeezed = 0
    for row in range(rows.count):
        plan = plan_of(rows, row)
        frontier._passes(row)
        assert frontier.level[row] == PASSES
        squeezed += bool(frontier.recompute_bounds.dropped_bytes[0, :, row].any())
        try:
            exact = measure(problem, plan).step_time_s
        except Infeasible:
            continue
        assert frontier.bound_s[row] <= exact * (1 + 1e-12), plan
    assert squeezed


def test_a_choice_is_made_once_for_rows_that_differ_in_overlap(problem_of):
    """Made at the first look behind passes, kept by the rows alike."""
    problem = tight(problem_of(1, **{**HELD, "overlap_grad_reduce": (True, False)}))
    frontier = fields_of(problem, [problem.cluster.nodes])[0].frontier
    row = int(np.flatnonzero(select_undecided(frontier.rows, np.arange(frontier.rows.count)))[0])
    while select_undecided(frontier.rows, row).any() and frontier.level[row] < STEP:
        frontier.raise_bound(row)
    policy = plan_of(frontier.rows, row).memory.recompute
    assert policy == "none" or policy.startswith("layers:")
    assert decide(frontier.rows, row) in (policy, "none")


def test_the_hull_is_convex_and_below():
    """Vertices in order with growing slopes, below every point."""
    points = [(0.0, 0.0), (1.0, 3.0), (2.0, 1.0), (3.0, 2.0), (4.0, 8.0), (2.5, 5.0)]
    x, y = _lower_hull(points)
    slopes = np.diff(y) / np.diff(x)
    assert (np.diff(slopes) > 0).all()
    assert all(np.interp(px, x, y) <= py + 1e-12 for px, py in points)


@pytest.mark.slow
def test_headroom_counts_for_the_choice():
    """A search that leaves room chooses for what is left."""
    fixed = {"tp": 1, "pp": 1, "zero": 0, "micro_batch": 8, "recompute": "optimal"}
    shape = "gpt2", simpar.Cluster("rtx-3090-8"), simpar.Training(seq_len=1024, global_batch=64)
    roomy = search(*shape, objective="time", constraints=Constraints(fixed=fixed))
    narrow = search(*shape, objective="time", constraints=Constraints(fixed=fixed, headroom=0.75))
    assert roomy.certified_optimal
    assert narrow.certified_optimal
    assert narrow.best.step_time_s >= roomy.best.step_time_s
    assert narrow.best.figures["peak_reserved_bytes"] <= 0.25 * shape[1].device.memory_bytes
    assert narrow.best.plan.memory.recompute.startswith("layers:")


def test_other_spaces_and_choices_by_layer_are_refused():
    """One line that names what is allowed."""
    shape = "tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=512, global_batch=16)
    for space in ("alpa", "uneven"):
        with pytest.raises(UserError, match="space uniform"):
            search(*shape, space=space, constraints=Constraints(fixed={"recompute": "optimal"}))
    with pytest.raises(UserError, match="optimal"):
        make_problem(*shape, constraints=Constraints(fixed={"recompute": "layers:none*4"}))
