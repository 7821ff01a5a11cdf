"""Bounds of a search against simulated steps: random rows of random problems, models with experts among them.

Usage: python benchmarks/bounds.py [--first 0] [--last 100] [--rows 20] [--seconds S] [--jobs N]

Every problem draws a model, a cluster, a software stack, slow ranks, how experts exchange tokens and how unlike their
loads are; of its whole space a few rows. Each bound (kernels, passes, whole steps, tables, the sweep) has to lie below
the simulated step, and the least memory below what the simulated step needs. Exit code 1 where one does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from functools import partial

import numpy as np

import simpar
from simpar.architectures.graph import ModelGraph
from simpar.plan.plan import Plan
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.tracing.load import load_model
from simpar.units import NS_PER_S
from simpar.workers import Workers

MODELS = ("gpt2", "llama-3.2-1b", "small-llama", "small-mixture", "tiny-mixture", "olmoe-1b-7b", "gemma-3-1b")
CLUSTERS = (
    ("dgx-h100", 1), ("dgx-h100", 2), ("dgx-a100-80gb", 2), ("dgx-a100-80gb", 4), ("a100-pcie-8", 1), ("l4-8", 2),
)  # fmt: skip
STACKS = ("megatron", "nemo", "torchtitan", "fsdp", "deepspeed", "nanotron", "llama3", "automodel", "llm-foundry")
ABOVE = 1e-12
"""Of a step, by which rounding may lift a bound."""


def main() -> int:
    """Check problems one after the other, or several at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=100)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    workers = Workers(options.jobs, Workers.usual().backend)
    end, rows, bad = time.time() + options.seconds, 0, 0
    for count, found in workers.stream(
        partial(checked, count=options.rows, end=end), range(options.first, options.last)
    ):
        rows, bad = rows + count, bad + len(found)
        for line in found:
            print(line, flush=True)
    print(f"{rows} rows, {bad} with a bound above what is simulated")
    return int(bad > 0 or not rows)


def checked(seed: int, count: int, end: float) -> tuple[int, list[str]]:
    """How many rows of a problem were checked, and a line for each of which a bound does not hold."""
    if time.time() > end:
        return 0, []
    problem, found = drawn(seed), list[str]()
    rows = enumerate_space(problem)
    rows.keep_only(sorted(random.Random(seed).sample(range(rows.count), min(count, rows.count))))
    frontier, needed = Frontier.of(rows, needs(rows).needed_bytes), needs(rows).needed_bytes
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        try:
            exact = measure(problem, plan)
        except simpar.UserError:
            continue  # its Program has more ops than are built
        step_ns = (exact.step_time_s - problem.stack.launch.step_overhead_s) * NS_PER_S
        above = {name: ns / step_ns - 1 for name, ns in bounds_ns(frontier, row).items()}
        above |= {"memory": float(needed[row]) / exact.needed_bytes - 1}
        if wrong := {name: f"{100 * by:.4f} %" for name, by in above.items() if by > ABOVE}:
            keys = plan.model_dump(exclude_defaults=True, exclude_none=True)
            found.append(f"seed {seed}: {wrong} {problem.graph.name} {problem.stack.name} {keys}")
    return frontier.rows.count, found


def bounds_ns(frontier: Frontier, row: int) -> dict[str, float]:
    """Everything that a row is bounded by before it is simulated, where its tables are not its own."""
    pipelines, one = frontier.bounds.pipelines, np.array([row])
    found = {
        "kernels": pipelines.kernels_bound_ns()[0][pipelines.index[row]],
        "passes": pipelines.passes_bound_ns(pipelines.index[one])[0],
        "step": frontier.bounds.of(one)[0],
        "table": frontier.sweeps.tables_ns(one)[0],
        "sweep": frontier.sweeps.of(one)[0],
    }
    return {name: float(ns) for name, ns in found.items()}


def drawn(seed: int) -> Problem:
    """A random problem; the seed decides everything."""
    rng = random.Random(seed)
    graph: ModelGraph = load_model(rng.choice(MODELS), seq_len=512)
    hardware, nodes = rng.choice(CLUSTERS)
    power_law = rng.random() < 0.5
    experts = {
        "token_dispatch": rng.choice(("per_expert", "per_rank", "per_node")),
        "ep_overlap": rng.random() < 0.4,
        "expert_distribution": "power_law" if power_law else "normal",
        "expert_imbalance": rng.choice((0.0, 1.2 if power_law else 0.3)),
    }
    slow = {rng.randrange(8 * nodes): 1.3} if rng.random() < 0.2 else {}
    return make_problem(
        graph,
        simpar.Cluster(hardware, nodes=nodes),
        simpar.Training(seq_len=512, global_batch=rng.choice((16, 32))),
        stack=rng.choice(STACKS),
        base=Plan().with_values(**experts) if graph.is_mixture else Plan(),
        perturbation=simpar.Perturbation(slow_ranks=slow),
        constraints=Constraints(portable="any"),
    )


if __name__ == "__main__":
    sys.exit(main())
