"""Blocks step by step: the host launches beside what ranks wait for, not behind it."""

from __future__ import annotations

import pytest

import simpar
from simpar.report.result import Result
from simpar.validation.predict import change_stack
from tests.gate import some

TRAINING = simpar.Training(seq_len=128, global_batch=8)
STACK = change_stack("nemo", {"launch.step_overhead_s": 0.06})
"""What the host needs once a step is most of so small a one, whatever a fit says of it."""


def launched(slow: dict[int, float], *, links: float = 1.0) -> Result:
    """A tiny model whose kernels are shorter than their launches, on eight ranks that meet in every block."""
    cluster = simpar.Cluster("dgx-h100", nodes=1)
    up = cluster.profile.scale_up
    faster = up.model_copy(update={"bandwidth": links * up.bandwidth})
    cluster = simpar.Cluster(cluster.profile.model_copy(update={"scale_up": faster}), nodes=1)
    plan = simpar.Plan(tp=8, micro_batch=1)
    return simpar.simulate(
        "tiny-llama", cluster, plan, TRAINING, stack=STACK, perturbation=simpar.Perturbation(slow_ranks=slow),
        with_timeline=False,
    )  # fmt: skip


@pytest.mark.parametrize("factor", some([1.2, 50.0, 3.0], 2))
def test_one_slow_rank_costs_at_most_what_all_would(factor: float) -> None:
    """Where every block waits for all ranks, one slow rank makes a step no longer than eight of them."""
    nominal, one, all_slow = (launched(dict.fromkeys(ranks, factor)).step_time_s for ranks in ((), (3,), range(8)))
    assert nominal <= one <= all_slow


def test_faster_links_help_beside_a_slow_rank() -> None:
    """Less time in collectives is no more time for launches behind them."""
    slow = {3: 3.0}
    times = [launched(slow, links=links).step_time_s for links in (0.1, 0.7, 1.0, 1.5, 4.0)]
    assert times == sorted(times, reverse=True)


def test_waiting_for_launches_is_the_hosts() -> None:
    """Where kernels of a slow rank hide behind launches, these stay what the step consists of."""
    found = launched({3: 1.2})
    parts = found.time_breakdown_s
    assert parts.host > 0.7 * found.step_time_s
    assert sum(parts.model_dump().values()) == pytest.approx(found.step_time_s, rel=1e-9)
