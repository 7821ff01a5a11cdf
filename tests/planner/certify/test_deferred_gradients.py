"""Stacks whose gradients wait for the last microbatch: what search certifies is the best that simulate finds."""

import random

import numpy as np
import pytest

import simpar
from simpar.planner import make_problem
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from tests.gate import some
from tests.planner.bound.test_steps import bounds_of
from tests.planner.certify.test_slow_networks import assert_best_of_all

HELD = {
    "cp": 1, "pp": 1, "vpp": 1, "schedule": "1f1b", "tp_overlap": False, "overlap_grad_reduce": True,
    "overlap_param_gather": True, "sequence_parallel": False, "order": "tp-cp-dp-pp",
}  # fmt: skip
NETWORKS = ("dgx-a100-80gb over 1x 10 Gb/s ethernet", "dgx-h100", "l4-8", "rtx-3090-8")
MODELS = ("gpt2", "llama-3.2-1b", "qwen3-0.6b")
CASES = [(stack, seed) for stack in ("huggingface", "automodel", "fsdp") for seed in range(6)]


def drawn(stack, seed):
    """A random small space of layouts with one microbatch and with several, of which some do not fit."""
    rng = random.Random(f"{stack} {seed}")
    asked = (True, False) if stack == "fsdp" or rng.random() < 0.5 else None
    fixed = {
        **HELD,
        "tp": rng.choice((1, (1, 2))),
        "zero": (0, 2, 3),
        "hsdp": rng.choice((1, (1, 2))),
        "micro_batch": (1, 2, 4),
        "recompute": rng.choice(("full", ("none", "full"))),
        **({"defer_grad_reduce": asked} if asked else {}),
    }
    hardware, nodes = rng.choice(NETWORKS), rng.choice((1, 2))
    training = simpar.Training(seq_len=rng.choice((512, 1024)), global_batch=8 * nodes * rng.choice((2, 4)))
    constraints = simpar.Constraints(fixed=fixed, portable="any")
    return make_problem(
        rng.choice(MODELS), simpar.Cluster(hardware, nodes=nodes), training, stack=stack, constraints=constraints
    )


@pytest.mark.parametrize(("stack", "seed"), some(CASES, [("huggingface", 0)], tuples=True))
def test_certified_plans_are_the_best_of_all(stack, seed):
    """The public call simulates every plan of the space, and none that fits is faster."""
    assert_best_of_all(drawn(stack, seed))


@pytest.mark.parametrize(("stack", "seed"), some(CASES, [("automodel", 1)], tuples=True))
def test_no_bound_is_above_the_step_or_the_memory(stack, seed):
    """Of any row: deferred reductions may be faster or slower, and hold more in several microbatches alone."""
    problem = drawn(stack, seed)
    rows = enumerate_space(problem)
    assert len(np.unique(rows["microbatches"] > 1)) == 2
    rows.keep_only(sorted(random.Random(seed).sample(range(rows.count), min(24, rows.count))))
    needed = needs(rows)
    frontier = Frontier.of(rows, needed.needed_bytes)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(rows.count):
        plan = plan_of(rows, row)
        result = simpar.simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack)
        assert measure(problem, plan).step_time_s == result.step_time_s
        assert max(bounds_of(frontier, row)) <= (result.step_time_s - overhead) * (1 + 1e-12), plan
        peak = max(stage.peak_bytes for stage in result.memory.stages)
        assert needed.predicted_bytes[row] <= result.memory.peak_reserved_bytes * (1 + 1e-9), plan
        assert peak <= result.memory.peak_reserved_bytes
