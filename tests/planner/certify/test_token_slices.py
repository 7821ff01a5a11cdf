"""Slices of tokens as a row of the space: legal rows, bounds, brute force, and where they win."""

import numpy as np
import pytest

import simpar
from simpar.cost.operators import operator_times
from simpar.errors import Infeasible, UserError
from simpar.planner import Constraints, make_problem, search
from simpar.planner.certify.exact import measure
from simpar.planner.certify.token_slices import select_sliced, slice_kernels_ns
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.program.blocks.rank_view import RankView
from simpar.program.resolve.token_slices import slice_view
from simpar.simulation import make_job
from simpar.units import NS_PER_S
from tests.gate import some
from tests.planner.certify.test_branch_and_bound import NARROW, assert_certified

BOTH = ("1f1b", "terapipe")


@pytest.mark.slow
def test_slices_are_where_they_can_be(problem_of):
    """Only on request, in pipelines whose ranks hold whole sequences of causal models; also of one microbatch."""
    assert "terapipe" not in enumerate_space(problem_of(2)).domain["schedule"]
    training = simpar.Training(seq_len=32768, global_batch=8)
    fixed = {"schedule": BOTH, "micro_batch": (1, 4), "cp": (1, 2), "recompute": ("none", "optimal")}
    problem = make_problem("llama-3-8b", simpar.Cluster("dgx-h100"), training, constraints=Constraints(fixed=fixed))
    rows = enumerate_space(problem)
    cut = rows.subset(select_sliced(rows))
    assert cut.count
    assert set(cut["cp"]) == set(cut["vpp"]) == {1}
    assert (cut["pp"] > 1).all()
    assert (cut["microbatches"] == 1).any()
    assert not cut.one_of("recompute", "optimal").any()
    for row in range(0, cut.count, 17):
        assert make_job(problem.graph, problem.cluster, plan_of(cut, row), training).layout.to_plan().pipeline.slices
    both_ways = simpar.Training(seq_len=512, global_batch=8)
    with pytest.raises(Infeasible, match="schedule"):
        search("bert-base", problem.cluster, both_ways, constraints=Constraints(fixed={"schedule": "terapipe"}))
    with pytest.raises(UserError, match="slices"):
        make_problem("llama-3-8b", problem.cluster, training, base=simpar.Plan(pp=2, slices=(32768,)))


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_of_slices_are_those_of_their_views(tp):
    """The bulk table has what every slice takes by itself, rounded down."""
    training = simpar.Training(seq_len=2048, global_batch=8)
    plan = simpar.Plan(pp=2, tp=tp, sequence_parallel=tp > 1, schedule="terapipe", micro_batch=2)
    job = make_job("mixtral-8x7b", simpar.Cluster("dgx-h100"), plan, training)
    view = RankView.of(job)
    for block in (job.graph.embedding, *job.graph.blocks.values(), job.graph.head):
        forward, backward = slice_kernels_ns(block, view, (256, 8), again=True)
        for begin, end in ((0, 1), (0, 8), (3, 4), (2, 7)):
            dims = slice_view(view, 256 * begin, 256 * end).dims.of_block(block)
            times = operator_times(block.operators, dims, job.kernels, job.stack)
            slow = job.stack.launch.kernel_overhead * NS_PER_S
            ahead = slow * sum(time.forward_s for time in times)
            back = slow * sum(time.backward_input_s + time.backward_weight_s for time in times)
            assert 0 <= ahead - forward[begin, end] <= 4 * len(times)
            assert 0 <= ahead + back - backward[begin, end] <= 4 * len(times)
        assert np.isinf(forward[3, 3])
        assert np.isinf(forward[4, 3])


def assert_own_bounds(problem, frontier):
    """Rows bounded by themselves: by kernels, then by their own Program swept, never above the executed step."""
    overhead = problem.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        by_kernels = float(frontier.bound_s[row])
        frontier.raise_bound(row)
        plan = plan_of(frontier.rows, row)
        exact = measure(problem, plan).step_time_s
        assert overhead < by_kernels <= float(frontier.bound_s[row]) <= exact * (1 + 1e-12), plan


def assert_memory_of_programs(problem):
    """The bound of some rows is no more than what their Programs need, and little less."""
    rows = enumerate_space(problem)
    rows.keep_only(np.arange(0, rows.count, max(1, rows.count // 6)))
    for row, needed in enumerate(needs(rows).predicted_bytes.tolist()):
        exact = simpar.simulate(problem.graph, problem.cluster, plan_of(rows, row), problem.training)
        assert 0.8 < needed / exact.memory.peak_reserved_bytes <= 1.0


@pytest.mark.parametrize(("seed", "count"), some([(2, 4), *((seed, 8) for seed in (1, 2, 4, 7))], 1, tuples=True))
def test_bounds_hold(seed, count, problem_of, frontier_of):
    """Kernels over all ways to slice, and the row's own Program swept, are below the executed step."""
    problem = problem_of(seed, schedule="terapipe", pp=(2, 4), cp=1, recompute=("none", "full"))
    frontier = frontier_of(problem, seed, count)
    assert_own_bounds(problem, frontier)
    assert all(plan_of(frontier.rows, row).pipeline.slices for row in range(frontier.rows.count))


@pytest.mark.parametrize(("seed", "zero"), some([(8, 0), (8, (0, 1)), (3, (0, 1))], 1, tuples=True))
def test_search_finds_what_brute_force_finds(seed, zero, problem_of):
    """The certified best step is the best of all rows by the reference engine, sliced or not."""
    held = {**NARROW, "schedule": BOTH, "hsdp": 1, "tp": (1, 2), "pp": (1, 2, 4), "zero": zero, "cp": 1}
    problem = problem_of(seed, **held)
    rows = enumerate_space(problem)
    assert select_sliced(rows).any()
    assert rows.count <= 40
    assert_certified(problem)


@pytest.mark.slow
def test_memory_is_that_of_the_program():
    """What waits for its backward is that of whole sequences: the closed form, and a little above the Program."""
    fixed = {"schedule": "terapipe", "micro_batch": 1, "recompute": ("none", "full"), "tp": 1, "pp": (2, 4)}
    problem = make_problem(
        "llama-3-8b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=4096, global_batch=8),
        constraints=Constraints(fixed=fixed),
    )
    assert_memory_of_programs(problem)


@pytest.mark.slow
def test_one_long_sequence_over_pcie_is_sliced():
    """A batch of one sequence has nothing else to pipeline; the plan found has its slices and is simulated so."""
    fixed = {"schedule": BOTH, "cp": 1, "recompute": "full", "tp": (1, 2)}
    shape = "llama-3.2-1b", simpar.Cluster("l4-8"), simpar.Training(seq_len=8192, global_batch=1)
    found = search(*shape, constraints=Constraints(fixed=fixed))
    best = found.best.plan
    assert found.certified_optimal
    assert best.schedule == "terapipe"
    assert len(best.pipeline.slices) > 1
    assert simpar.simulate(*shape[:2], best, shape[2]).step_time_s == found.best.step_time_s
