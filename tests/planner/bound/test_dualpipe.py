"""DualPipe in a search: rows bounded by what their ranks do, memory of two copies, the same best as brute force."""

import numpy as np
import pytest

import simpar
from simpar.plan.choices.pipeline import select_two_ended
from simpar.planner import Constraints, make_problem
from simpar.planner.space.rows import enumerate_space
from tests.gate import some
from tests.planner.certify.test_branch_and_bound import NARROW, assert_certified
from tests.planner.certify.test_token_slices import assert_memory_of_programs, assert_own_bounds

BOTH = ("1f1b", "dualpipe")


def test_only_asked_for(problem_of):
    """No row has it unasked; asked for it needs pairs of ranks and of microbatches, at least two a rank."""
    assert not select_two_ended(enumerate_space(problem_of(1, micro_batch=2))).any()
    rows = enumerate_space(problem_of(1, schedule=BOTH))
    mine = np.flatnonzero(select_two_ended(rows))
    assert len(mine)
    pp, microbatches = rows["pp"][mine], rows["microbatches"][mine]
    assert ((pp % 2 == 0) & (microbatches % 2 == 0) & (microbatches >= 2 * pp)).all()
    assert (rows["vpp"][mine] == 1).all()


def test_replicas_on_their_own_have_one_copy_each(problem_of):
    """Both copies of a stage reduce inside the step."""
    rows = enumerate_space(problem_of(1, schedule=BOTH, sync=("bsp", "local-sgd"), sync_every=4, hsdp=1))
    alone = rows.one_of("sync", "local-sgd")
    assert select_two_ended(rows).any()
    assert alone.any()
    assert not (select_two_ended(rows) & alone).any()


@pytest.mark.parametrize(("seed", "count"), some([(1, 3), (1, 6), (2, 6), (4, 6)], 1, tuples=True))
def test_bounds_hold(seed, count, problem_of, frontier_of):
    """Kernels of the busiest rank, and the row's own Program swept, are below the executed step."""
    problem = problem_of(seed, schedule="dualpipe", recompute=("none", "full"), micro_batch=(1, 2))
    assert_own_bounds(problem, frontier_of(problem, seed, count))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8, 11])
def test_search_finds_what_brute_force_finds(seed, problem_of):
    """The certified best step is the best of all rows by the reference engine, from both ends or not."""
    held = {**NARROW, "schedule": BOTH, "hsdp": 1, "tp": (1, 2), "pp": (1, 2, 4), "zero": (0, 1), "micro_batch": 1}
    problem = problem_of(seed, **held)
    rows = enumerate_space(problem)
    assert select_two_ended(rows).any()
    assert rows.count <= 40
    assert_certified(problem)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", some(["dgx-h100", "a100-pcie-8"], 1))
def test_pairs_that_exchange_tokens_are_bounded(cluster):
    """On links of their own and on shared ones: what the other pass leaves of an exchange is in the certified best."""
    fixed = {
        **NARROW,
        "schedule": ("1f1b", "dualpipev"),
        "tp": 1,
        "cp": 1,
        "pp": (2, 4),
        "ep": (2, 4),
        "zero": (0, 1),
        "hsdp": 1,
        "micro_batch": 1,
        "ep_overlap": (False, True),
        "recompute": ("none", "full"),
    }
    problem = make_problem(
        "olmoe-1b-7b",
        simpar.Cluster(cluster),
        simpar.Training(seq_len=1024, global_batch=16),
        constraints=Constraints(fixed=fixed, portable="any"),
    )
    rows = enumerate_space(problem)
    assert rows.one_of("schedule", "dualpipev").any()
    assert rows.count <= 60
    assert_certified(problem)


def test_memory_is_that_of_the_program():
    """Two copies of every stage and what is in flight: the closed form, and a little above the Program."""
    fixed = {"schedule": "dualpipe", "micro_batch": 1, "recompute": ("none", "full"), "tp": 1, "cp": 1}
    fixed |= {"pp": (2, 4)}
    problem = make_problem(
        "llama-3.2-3b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=4096, global_batch=64),
        constraints=Constraints(fixed=fixed),
    )
    assert_memory_of_programs(problem)
