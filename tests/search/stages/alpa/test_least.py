"""The bound of the Alpa space: below every plan with stages of its own, and the best cut of what it is made from."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.models.hf_config import read
from simpar.plan.uniform_stages import as_stages
from simpar.search.certify.exact import exact, job_of
from simpar.search.problem import make_problem
from simpar.search.progress import Progress
from simpar.search.stages.alpa.least import _devices
from simpar.search.stages.alpa.optimize import AlpaSearch

CONFIG = {
    "model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1024, "num_hidden_layers": 4,
}  # fmt: skip


@pytest.mark.parametrize(("hardware", "stack"), [("laptop-cpu-4", "simpar"), ("dgx-h100", "megatron")])
def test_every_plan_with_stages_takes_longer(hardware: str, stack: str) -> None:
    """Megatron's layouts written as stages are plans of the space; none is below the bound, the best is near it."""
    cluster, training = simpar.Cluster(hardware), simpar.Training(seq_len=1024, global_batch=32)
    problem = make_problem(read(CONFIG, "small"), cluster, training, stack=stack)
    lowest_s, steps = AlpaSearch(problem, Progress()).lower_bound_s(), []
    for tp, pp, micro_batch, recompute in product((1, 2), (1, 2, 4), (1, 4), ("none", "full")):
        layout = {"tp": tp, "pp": pp, "micro_batch": micro_batch, "zero": 1, "recompute": recompute}
        try:
            checked = job_of(problem, simpar.Plan(**layout)).plan
        except UserError:
            continue
        steps.append(exact(problem, as_stages(checked, problem.graph)).step_time_s)
    assert len(steps) >= 12
    assert 0.6 * min(steps) < lowest_s <= min(steps)


@pytest.mark.parametrize("seed", range(5))
def test_fewest_devices_are_those_of_every_cut(seed: int) -> None:
    """As few as every cut with every choice of sizes needs, where some blocks divide on some sizes only, too."""
    random = np.random.default_rng(seed)
    times = {size: random.uniform(1, 4, 5) / size for size in (1, 2, 4)}
    for size, block in ((4, 2), (2, 4), (4, 0))[: seed % 4]:
        times[size][block] = np.inf
    for limit in (1.5, 3.0, 6.0, 20.0):
        fewest = np.inf
        for number in range(5):
            for inner in combinations(range(1, 5), number):
                ends = [*pairwise((0, *inner, 5))]
                for sizes in product(times, repeat=len(ends)):
                    each = [
                        times[size][begin:end].sum() for size, (begin, end) in zip(sizes, ends, strict=True)
                    ]
                    if max(each) <= limit:
                        fewest = min(fewest, sum(sizes))
        assert _devices(times, limit) == fewest
