"""Greedy tables: the same whether they were simulated by compiled code or by plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.native import NativeLibrary
from simpar.plan.schedules import SCHEDULES, greedy, make_schedule
from tests.compilers import needs_compiler

NAMES = [name for name, each in SCHEDULES.items() if each.looks_at_costs]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_compiled_tables_are_the_plain_ones(name, monkeypatch):
    """Random durations, odd and even ranks, fewer and more microbatches than ranks."""
    draw = np.random.default_rng(5)
    cases = [(p, m, tuple(draw.uniform(0.2, 3.0, 3).tolist())) for p in (1, 2, 5, 8) for m in (1, 3, 24)]
    texts = []
    for why_not in ("not here", ""):
        monkeypatch.setattr(greedy, "LIBRARY", NativeLibrary(greedy.LIBRARY.source, worth=0, why_not=why_not))
        made = [make_schedule.__wrapped__(name, p, m, costs=costs) for p, m, costs in cases]
        texts.append([table.to_csv() for table in made])
        greedy._even_table.cache_clear()
    assert greedy.LIBRARY.loaded
    assert texts[0] == texts[1]


def test_the_makespan_of_a_table_is_that_of_its_simulation():
    """A table replayed under the durations that it was made for ends when its simulation did, or before."""
    for p, m, costs in ((3, 7, (1.0, 1.5, 0.5)), (6, 20, (2.0, 1.0, 3.0))):
        place, rule = tuple(range(p)), greedy._turns(p)
        actions, seconds = greedy.simulate(place, m, rule, costs)
        replayed = greedy.makespan(greedy.GreedyPipeline.idle(place, m, actions), m, costs)
        assert m * sum(costs) < replayed <= seconds


@pytest.mark.parametrize("name", [name for name, each in SCHEDULES.items() if each.beginnings])
@pytest.mark.parametrize("forwards", [1, 4, 30])
def test_a_table_begins_like_one_of_its_beginnings(name, forwards):
    """On every rank; on the first there are as many forwards of its first stage as were asked for."""
    for p, m, costs in ((3, 30, (1.0, 1.5, 0.5)), (8, 40, (2.0, 1.0, 3.0)), (4, 30, (1.0, 1.0, 1.0))):
        table = [columns.texts() for columns in make_schedule(name, p, m, costs=costs).ranks]
        begun = [
            [columns.texts() for columns in one.ranks] for one in SCHEDULES[name].beginnings(p, m, costs, forwards)
        ]
        assert len(begun) == len({costs, greedy.UNIT})
        assert any(all(whole[: len(part)] == part for whole, part in zip(table, ranks, strict=True)) for ranks in begun)
        for ranks in begun:
            assert sum(text.startswith("0F") for text in ranks[0]) == forwards
