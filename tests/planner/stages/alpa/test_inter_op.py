"""Cuts of a chain: the bisected dynamic programming finds what trying every cut finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.planner.stages.alpa.inter_op import InterOp

SIZES = (1, 2, 4, 8)


def compositions(total, count):
    """Ordered ways to write ``total`` as ``count`` submesh sizes."""
    if count == 0:
        return [()] if total == 0 else []
    return [(size, *rest) for size in SIZES if size <= total for rest in compositions(total - size, count - 1)]


def every_cut(times, devices, num_microbatches, latency):
    """Estimate of all cuts of all numbers of stages on all submeshes."""
    blocks, table = times.shape[2] - 1, times.tolist()
    for count in range(1, min(blocks, devices) + 1):
        for inner in combinations(range(1, blocks), count - 1):
            ends = list(pairwise((0, *inner, blocks)))
            for sizes in compositions(devices, count):
                each = [
                    table[min(count - 1 - i, len(table) - 1)][SIZES.index(size)][k][j]
                    for i, ((k, j), size) in enumerate(zip(ends, sizes, strict=True))
                ]
                if max(each) < np.inf:
                    waits = sum(latency[j] for _, j in ends)
                    yield sum(each) + waits + (num_microbatches - 1) * max(each)


def random_times(seed, blocks=8, levels=3):
    """Times that shrink with devices, not in proportion, and are impossible for some long ranges early on."""
    draw = np.random.default_rng(seed)
    work = draw.uniform(1.0, 4.0, blocks)
    sums = np.concatenate([[0.0], np.cumsum(work)])
    table = np.full((levels, len(SIZES), blocks + 1, blocks + 1), np.inf)
    for level in range(levels):
        for number, size in enumerate(SIZES):
            for k in range(blocks):
                for j in range(k + 1, blocks + 1):
                    fits = (j - k) * (1 + 0.3 * level) <= draw.uniform(1, 4) * size + 1
                    if fits and (level == 0 or np.isfinite(table[level - 1, number, k, j])):
                        loss = 1.0 + draw.uniform(0.0, 0.15) * number
                        table[level, number, k, j] = (sums[j] - sums[k]) / size * loss
                        if level:
                            table[level, number, k, j] = table[level - 1, number, k, j] * (1 + 0.1 * level)
    return table, work, np.append(draw.uniform(0.0, 0.05, blocks), 0.0)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), num_microbatches=st.sampled_from([1, 2, 8, 64]))
def test_all_cuts_of_eight_layers_on_eight_devices(seed, num_microbatches):
    """Every composition of eight devices, every cut of eight layers: the same optimum, and a plan that has it."""
    times, work, latency = random_times(seed)
    problem = InterOp(times, SIZES, 8, num_microbatches, latency, work)
    found = problem.best()
    best = min(every_cut(times, 8, num_microbatches, latency), default=np.inf)
    if not np.isfinite(best):
        assert found == []
        return
    assert found[0].estimate_s == pytest.approx(best, rel=1e-12)
    stages = found[0].stages
    assert [k for k, _, _ in stages] == [0, *(j for _, j, _ in stages[:-1])]
    assert stages[-1][1] == 8
    assert sum(size for _, _, size in stages) == 8


def test_nothing_above_what_is_known_is_looked_for():
    """A bound just under the optimum finds nothing, one just above finds the optimum."""
    times, work, latency = random_times(5)
    best = InterOp(times, SIZES, 8, 16, latency, work).best()[0].estimate_s
    for below, found in ((best * (1 - 1e-9), 0), (best * (1 + 1e-9), 1)):
        problem = InterOp(times, SIZES, 8, 16, latency, work, below_s=below)
        assert len(problem.best()[:1]) == found


def test_tolerance_bounds_the_loss():
    """With a tolerance the estimate is at most that much above the optimum."""
    for seed in range(10):
        times, work, latency = random_times(seed)
        exact = InterOp(times, SIZES, 8, 32, latency, work).best()
        rough = InterOp(times, SIZES, 8, 32, latency, work, tolerance=0.05).best()
        assert bool(exact) == bool(rough)
        if exact:
            assert exact[0].estimate_s <= rough[0].estimate_s <= exact[0].estimate_s / 0.95
