"""Tables swept level by level and action by action give the same times, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simpar.native import NativeLibrary
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import LETTERS, waits_for
from simpar.planner.bound import action_tables, batched_sweep
from simpar.planner.bound.action_tables import PrecedenceGraph, finishes_ns
from simpar.planner.bound.paths import Hops
from tests.compilers import needs_compiler

TABLES = [("1f1b", 4, 8, 1), ("interleaved", 4, 8, 3), ("v-min", 5, 9, 2), ("dualpipe", 4, 12, 1), ("naive", 1, 3, 1)]


def drawn(table, rows, blocking, seed):
    """Durations, messages (of some stages none), floors and pairs for some rows."""
    draw, stages = np.random.default_rng(seed), len(table.schedule.rank_of_stage)
    times = {
        (letter, boundary): draw.uniform(1.0, 3.0, (rows, stages)) for letter in LETTERS for boundary in (False, True)
    }
    ahead, back = draw.uniform(0.0, 0.5, (2, rows, stages - 1)) * draw.integers(0, 2, (2, 1, stages - 1))
    pairs = {pair: draw.uniform(2.0, 5.0, rows) for pair in table.pairs}
    return times, Hops(ahead, back, blocking), draw.uniform(0.0, 9.0, (rows, stages)), pairs


def forms():
    """The sweeps in Python and compiled."""
    source = action_tables.LIBRARY.source
    return [NativeLibrary(source, worth=0, why_not=why_not) for why_not in ("not here", "")]


@needs_compiler
@pytest.mark.parametrize(("name", "p", "m", "chunks"), TABLES)
@pytest.mark.parametrize("blocking", [False, True])
def test_compiled_sweeps_are_those_by_level(name, p, m, chunks, blocking, monkeypatch):
    """Any durations, messages and floors, passes together or apart."""
    whole = PrecedenceGraph.of(make_schedule(name, p, m, chunks))
    for table in (whole, whole.split(frozenset({("F", True)}))):
        for rows in (1, 5):
            times, hops, floors, pairs = drawn(table, rows, blocking, rows)
            least = np.random.default_rng(rows).uniform(0.0, 40.0, (len(table.code), rows))
            for given, ends in ((None, None), (floors, None), (floors, least)):
                found = []
                for library in forms():
                    monkeypatch.setattr(action_tables, "LIBRARY", library)
                    found.append(finishes_ns(table, times, hops, given, pairs, ends))
                assert found[0].tobytes() == found[1].tobytes()
                assert ends is None or (found[0] >= ends).all()


@needs_compiler
@pytest.mark.parametrize(("name", "p", "m", "chunks"), TABLES)
def test_no_action_waits_for_one_of_its_own_level(name, p, m, chunks, monkeypatch):
    """Every action is in one level, behind all that it waits for, compiled or not."""
    table = PrecedenceGraph.of(make_schedule(name, p, m, chunks))
    level = np.empty(len(table.code), dtype=np.int64)
    for depth, actions in enumerate(table.levels):
        level[actions] = depth
    assert sorted(np.concatenate(table.levels).tolist()) == list(range(len(table.code)))
    for waits in (table.before, table.source, table.other):
        assert (level[waits[waits >= 0]] < level[waits >= 0]).all()
    ends = np.cumsum([len(columns) for columns in table.schedule.ranks])
    for library in forms():
        monkeypatch.setattr(action_tables, "LIBRARY", library)
        assert (action_tables.depths(ends, table.source, table.other) == level + 1).all()


@pytest.mark.parametrize("apart", [{("F", False)}, {("B", False)}, {("B", True), ("I", False)}])
def test_passes_that_run_alone_wait_for_their_own_inputs(apart):
    """The others are the pairs of the schedule; everything else is that of the whole table."""
    whole = PrecedenceGraph.of(make_schedule("dualpipe", 4, 12, 1))
    table, inputs = whole.split(frozenset(apart)), waits_for(whole.schedule)
    kind = [(LETTERS[code], bool(last)) for code, last in zip(whole.code, whole.boundary, strict=True)]
    pairs = [at for at in whole.joined.tolist() if kind[at] not in apart and kind[at + 1] not in apart]
    assert table.joined.tolist() == pairs
    assert len(pairs) < len(whole.joined)
    for at, kept in enumerate(inputs.tolist()):
        if whole.code[at] != LETTERS.index("W"):
            assert table.source[at] == (-1 if at - 1 in pairs else kept)
        assert table.other[at] == (inputs[at + 1] if at in pairs else -1)
    for name in ("boundary", "message", "queue"):
        assert np.array_equal(getattr(table, name), getattr(replace(table, whole=None), name)), name


def test_tables_are_kept_until_there_are_too_many_actions(frontier, monkeypatch):
    """The most recently used ones, and always the last; a table with split pairs shares what it can with its whole."""
    made = []
    original = batched_sweep._made
    monkeypatch.setattr(batched_sweep, "_made", lambda *key: made.append(key) or original(*key))
    monkeypatch.setattr(batched_sweep, "MOST_ACTIONS", 300)
    sweeps, costs = batched_sweep.Sweeps(frontier.bounds), (1.0, 1.0, 1.0)
    one, two, large, more = (("1f1b", 4, count, 1, costs) for count in (8, 16, 64, 24))
    for key in (one, two, one, large, one, more, one, large):
        assert sweeps._table(key, frozenset()).schedule.num_microbatches == key[2]
    assert [key[2] for key in made] == [8, 16, 64, 24, 64]
