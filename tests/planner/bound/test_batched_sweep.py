"""Rows swept with the tables of their schedules."""

import numpy as np
import pytest

import simpar
from simpar.planner.bound.batched_sweep import Sweeps
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.problem import Constraints, make_problem
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.units import NS_PER_S


@pytest.fixture(scope="module")
def some_rows(frontier, every):
    """A few rows of several schedules."""
    return every[::5]


def test_rows_together_are_rows_alone(frontier, some_rows):
    """Whichever share a table."""
    whole = Sweeps(frontier.bounds).of(some_rows)
    for at, row in enumerate(some_rows.tolist()):
        assert Sweeps(frontier.bounds).of(np.array([row]))[0] == whole[at]


def test_sweeps_bound_no_less_than_paths(frontier, some_rows):
    """A table has every path of its schedule in it."""
    assert (Sweeps(frontier.bounds).of(some_rows) >= frontier.bounds.of(some_rows) * (1 - 1e-9)).all()


def test_a_table_is_that_of_the_rows_schedule(frontier, some_rows):
    """As many ranks and microbatches as the row has."""
    sweeps = Sweeps(frontier.bounds)
    for row in some_rows.tolist():
        table = sweeps.table_of(row)
        assert table.num_ranks == int(frontier.rows["pp"][row])
        assert table.num_microbatches == int(frontier.rows["microbatches"][row])


def test_reductions_do_not_wait_for_messages_that_block():
    """Where a stack's messages hold up its kernels a reduction begins before the last one, which it outlasts."""
    fixed = {
        "tp": 2, "cp": 2, "pp": 2, "ep": 1, "vpp": 9, "schedule": "interleaved", "zero": (0, 1), "micro_batch": (2, 4),
        "overlap_grad_reduce": True, "order": "tp-cp-dp-pp", "recompute": "none", "tp_overlap": False,
    }  # fmt: skip
    problem = make_problem(
        "olmoe-1b-7b",
        simpar.Cluster("dgx-h100", 1),
        simpar.Training(seq_len=512, global_batch=8),
        stack="nanotron",
        constraints=Constraints(portable="any", fixed=fixed),
    )
    assert problem.stack.overlap.p2p_blocks_compute
    rows = enumerate_space(problem)
    frontier = Frontier.of(rows, needs(rows).needed_bytes)
    assert frontier.rows.count >= 4
    for row in range(frontier.rows.count):
        exact = measure(problem, plan_of(frontier.rows, row))
        step_ns = (exact.step_time_s - problem.stack.launch.step_overhead_s) * NS_PER_S
        assert 0.9 < frontier.sweeps.of(np.array([row]))[0] / step_ns <= 1 + 1e-9
