"""The bound of the Alpa space: below every plan with stages of its own, and the best cut of what it is made from."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.planner.certify.exact import exact, job_of
from simpar.planner.problem import make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.stages.alpa.least import bound_step_s
from simpar.planner.stages.alpa.optimize import AlpaSearch
from simpar.planner.stages.cuts import sum_between
from tests.as_stages import as_stages

CONFIG = {
    "model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1024, "num_hidden_layers": 4,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("hardware", "stack"), [("laptop-cpu-4", "simpar"), ("dgx-h100", "megatron")])
def test_every_plan_with_stages_takes_longer(hardware: str, stack: str) -> None:
    """Megatron's layouts written as stages are plans of the space; none is below the bound, the best is near it."""
    cluster, training = simpar.Cluster(hardware), simpar.Training(seq_len=1024, global_batch=32)
    problem = make_problem(read(CONFIG, "small"), cluster, training, stack=stack)
    search, steps = AlpaSearch(problem, SearchProgress()), []
    search.bound()
    lowest_s = search.lowest_s
    for tp, pp, micro_batch, recompute in product((1, 2), (1, 2, 4), (1, 4), ("none", "full")):
        layout = {"tp": tp, "pp": pp, "micro_batch": micro_batch, "zero": 1, "recompute": recompute}
        try:
            checked = job_of(problem, simpar.Plan(**layout)).layout.to_plan()
        except UserError:
            continue
        steps.append(exact(problem, as_stages(checked, problem.graph)).step_time_s)
    assert len(steps) >= 12
    assert 0.6 * min(steps) < lowest_s <= min(steps)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_step_is_that_of_every_cut(seed: int) -> None:
    """What every cut with every choice of sizes takes, where some blocks divide on some sizes only, too."""
    random, sizes = np.random.default_rng(seed), np.array((1, 2, 4))
    work = random.uniform(1, 4, (3, 4)) / sizes[:, None]
    steps = sum_between(work * 8)
    forwards = sum_between(work * random.uniform(0.2, 0.5, (3, 4)))
    steps[:, np.tril(np.ones((5, 5), dtype=bool))] = np.inf
    if seed % 2:
        steps[2, :3, 3:] = np.inf
    for devices in (1, 3, 5):
        least = np.inf
        for number in range(4):
            for inner in combinations(range(1, 4), number):
                ends = [*pairwise((0, *inner, 4))]
                for which in product(range(3), repeat=len(ends)):
                    if sum(int(sizes[size]) for size in which) > devices:
                        continue
                    before, step = 0.0, 0.0
                    for size, (begin, end) in zip(which, ends, strict=True):
                        step = max(step, before + steps[size, begin, end])
                        before += forwards[size, begin, end]
                    least = min(least, step)
        found = bound_step_s(steps, forwards, sizes, devices)
        assert found == least == np.inf or (1 - 2e-3) * least <= found <= least
