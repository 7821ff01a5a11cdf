"""Eager 1F1B: what it holds, and that messages cost it their way through the pipeline and no more."""

from __future__ import annotations

import pytest

from simpar.plan.schedules import make_schedule


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("c", [1, 500])
def test_messages_are_hidden(p, groups, c, execute):
    """A message of latency c costs 2(p-1)c in all, where it costs 1F1B more with every group of microbatches."""
    spans = {}
    for name in ("eager-1f1b", "1f1b"):
        table = make_schedule(name, p, groups * p)
        without = execute(table, 1000, 1000, 1000).makespan
        assert without == (3 * groups * p + 3 * (p - 1)) * 1000, "the bubble is that of 1F1B"
        spans[name] = execute(table, 1000, 1000, 1000, c=c).makespan - without
    assert spans["eager-1f1b"] == 2 * (p - 1) * c
    assert (spans["1f1b"] > spans["eager-1f1b"]) == (p > 2 or groups > 1)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_that_takes_activations(p, peaks):
    """Rank r keeps 2(p - r) - 1 microbatches, as far as there are so many; 1F1B keeps p - r [arXiv 2211.05322]."""
    for m in (1, p, 4 * p):
        assert peaks(make_schedule("eager-1f1b", p, m)) == [min(2 * (p - r) - 1, m) for r in range(p)]


def test_one_rank_has_nothing_to_hide():
    """Without a pipeline it is 1F1B."""
    assert make_schedule("eager-1f1b", 1, 6).to_csv() == make_schedule("1f1b", 1, 6).to_csv()
