"""Low-rank adapters as the plan gives them: layouts of a model of which little is trained, bounded and certified."""

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.search import Constraints, make_problem, search
from simpar.search.arena import Arena
from simpar.search.exact import measure
from simpar.search.fit import needs
from simpar.search.hunt import Hunt, fields_of
from simpar.search.space import enumerate_space, plan_of
from simpar.search.watch import Watch
from tests.search.test_bounds import bounds_of
from tests.search.test_certificate import NARROW, brute_force

HELD = {"micro_batch": 2, "recompute": ("none", "full"), "schedule": ("1f1b", "interleaved", "zb-h1")}


def adapted(problem_of, seed, **held):
    """A random small problem of which adapters of rank 8 are trained."""
    found = problem_of(seed, **held)
    return make_problem(
        found.graph,
        found.cluster,
        found.training,
        stack=found.stack,
        base=simpar.Plan(lora_rank=8),
        constraints=found.constraints,
    )


@pytest.mark.parametrize("seed", [1, 4, 6, 9])
def test_bounds_hold(seed, problem_of, arena_of):
    """No bound is above the executed step."""
    problem = adapted(problem_of, seed, **HELD)
    arena = arena_of(problem, seed, 8)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(arena.rows.count):
        plan = plan_of(arena.rows, row)
        assert plan.tuning.lora_rank == 8
        exact = measure(problem, plan).step_time_s - overhead
        assert max(bounds_of(arena, row)) <= exact * (1 + 1e-12), plan


@pytest.mark.parametrize("seed", [3, 8])
def test_search_finds_what_brute_force_finds(seed, problem_of):
    """The certified best step is the best of all rows by the reference engine."""
    held = {**NARROW, "hsdp": 1, "tp": (1, 2), "pp": (1, 2), "zero": (0, 1, 3), "recompute": ("none", "full")}
    problem = adapted(problem_of, seed, **held)
    hunt = Hunt(fields_of(problem, [problem.cluster.nodes]), Watch())
    hunt.run()
    assert hunt.gap() == 0
    assert hunt.best == pytest.approx(brute_force(problem), rel=1e-12)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "nf4"])
def test_memory_is_that_of_the_program(dtype, zero):
    """Frozen weights, in 4 bits or not, and states of adapters alone are in the closed form for columns."""
    fixed = {"tp": 2, "pp": 1, "zero": zero, "micro_batch": 1, "recompute": "full", "hsdp": 1}
    problem = make_problem(
        "llama-3-8b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=2048, global_batch=32),
        base=simpar.Plan(lora_rank=16, frozen_dtype=dtype),
        constraints=Constraints(fixed=fixed),
    )
    rows = enumerate_space(problem)
    rows.take(np.arange(1))
    plan, needed = plan_of(rows, 0), needs(rows).needed_bytes
    exact = simpar.simulate("llama-3-8b", problem.cluster, plan, problem.training, stack=problem.stack)
    assert float(needed[0]) == pytest.approx(exact.memory.peak_reserved_bytes, rel=0.08)
    assert Arena.of(rows, needed).bound_s[0] <= exact.step_time_s


def test_adapters_fit_where_the_whole_model_does_not():
    """70B on one node: adapters over 4-bit weights; the plan says so and is simulated as predicted."""
    shape = "llama-3-70b", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=2048, global_batch=16)
    base = simpar.Plan(lora_rank=16, frozen_dtype="nf4")
    constraints = Constraints(fixed={"micro_batch": 1, "recompute": "full", "schedule": "1f1b"})
    found = search(*shape, base=base, constraints=constraints)
    assert found.certified_optimal
    assert found.best.plan.tuning.lora_rank == 16
    again = simpar.simulate(*shape[:2], found.best.plan, shape[2])
    assert again.step_time_s == found.best.step_time_s


def test_frozen_layers_are_refused(problem_of):
    """One line: where they lie in a pipeline decides what fits, which the closed form does not know."""
    problem = problem_of(1)
    with pytest.raises(UserError, match="frozen_layers"):
        make_problem(problem.graph, problem.cluster, problem.training, base=simpar.Plan(frozen_layers=1))
