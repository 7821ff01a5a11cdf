"""The contract of every schedule in the table, one suite for all."""

from __future__ import annotations

import time

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.plan import schedules
from simpar.plan.schedules import SCHEDULES, default_schedule, describe, make_schedule, natural_vpp, schedule_named
from simpar.plan.schedules.actions import from_csv, verify
from tests.gate import some

SHAPES = [(1, 2), (1, 8), (2, 4), (2, 12), (3, 9), (4, 8), (4, 20), (5, 10), (6, 36), (7, 14), (8, 32)]
COSTS = [(1.0, 1.0, 1.0), (10.0, 12.0, 8.0), (3.0, 9.0, 1.0)]


def tables(name, costs=(1.0, 1.0, 1.0)):
    """The schedule at every shape it allows."""
    for p, m in SHAPES:
        table, _ = attempt(name, p, m, costs)
        if table is not None:
            yield p, m, table


def attempt(name, p, m, costs=(1.0, 1.0, 1.0)):
    """The table and "", or None and why not."""
    try:
        return make_schedule(name, p, m, costs=costs), ""
    except UserError as error:
        return None, str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_is_sound_and_stays_under_its_memory(name):
    """Each action once, on its rank, executable, and no more forwards in flight than promised."""
    found = [(p, m, table) for costs in COSTS for p, m, table in tables(name, costs)]
    assert len(found) > 5
    for p, m, table in found:
        verify(table, memory_cap=SCHEDULES[name].promise.most_in_flight(p, m))


@pytest.mark.parametrize("name", SCHEDULES)
def test_csv_round_trip(name):
    """What is written as CSV is read as the same table."""
    for _, m, table in tables(name):
        again = from_csv(table.to_csv(), name=name)
        assert again.to_csv() == table.to_csv()
        assert again.rank_of_stage == table.rank_of_stage
        assert (again.num_microbatches, again.num_mirrored) == (m, table.num_mirrored)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_bubble_has_its_closed_form(name, execute):
    """With F = I = W, the makespan exceeds a rank's work by the published bubble."""
    few = 3 if SCHEDULES[name].beginnings else 1
    shapes = [(p, m) for p, m, _ in tables(name) if p > few and m >= 2 * p]
    assert shapes
    for p, m in shapes:
        work = 3 * m * natural_vpp(name)
        assert execute(make_schedule(name, p, m)).makespan - work == SCHEDULES[name].promise.bubble(p, m), (p, m)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_peak_is_reached_where_the_schedule_says(name, peaks):
    """The largest peak of a rank is the schedule's cap, and the table's own count agrees with the list's."""
    for p, m, table in tables(name):
        counted = peaks(table)
        assert counted == [table.peak_in_flight(rank) for rank in range(p)]
        if p > 3 and m >= 3 * p:
            assert max(counted) == SCHEDULES[name].promise.most_in_flight(p, m)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_microbatch_and_one_rank_work_or_say_why_not(name):
    """The smallest shapes give a sound table or a UserError that names what is allowed."""
    for p, m in ((1, 1), (2, 1), (4, 1), (1, 5), (3, 2)):
        table, words = attempt(name, p, m)
        if table is None:
            assert "allowed" in words
        else:
            verify(table)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_wrong_number_of_chunks_is_refused(name):
    """A schedule with a fixed number of chunks a rank names it when asked for another."""
    if SCHEDULES[name].any_chunks:
        verify(make_schedule(name, 4, 8, 3))
        return
    with pytest.raises(UserError, match=rf"schedule {name}: vpp = 3; allowed: {natural_vpp(name)}"):
        make_schedule(name, 4, 8, 3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_making_a_large_table_is_quick(name):
    """A table of 32 ranks and 128 microbatches takes less than a tenth of a second (twice that where others work)."""

    def taken(microbatches):
        begin = time.process_time()
        make_schedule.__wrapped__(name, 32, microbatches)
        return time.process_time() - begin

    assert any(taken(128 + 32 * n) < 0.2 for n in range(3))


def test_columns_are_small_integers():
    """Bulk columns are int8 and int32, and agree with the actions as objects."""
    table = make_schedule("1f1b", 2, 3)
    code, stage, microbatch = table.arrays(0)
    assert (code.dtype, stage.dtype, microbatch.dtype) == (np.int8, np.int32, np.int32)
    assert [str(action) for action in table.actions[0]] == ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]
    assert table.letters(0)[0] == [action.kind for action in table.actions[0]]


def test_names_are_found_as_people_write_them():
    """Spelling with capitals, underscores, or torch's class names leads to the same schedule."""
    for written, name in (("1F1B", "1f1b"), ("ZB_H1", "zb-h1"), ("Interleaved1F1B", "interleaved"), ("ZBV", "zb-v")):
        assert schedule_named(written) == name
    assert schedule_named("2f2b") is None


def test_an_unknown_name_gets_a_suggestion():
    """A misspelt schedule is refused with the nearest name and the list."""
    with pytest.raises(UserError, match=r"did you mean 'interleaved'.*allowed: 1f1b"):
        make_schedule("interleave", 2, 4)


def test_every_schedule_describes_itself():
    """Each producer has a sentence that says what it is."""
    assert list(describe()) == list(SCHEDULES)
    assert all(len(text) > 20 for text in describe().values())


@pytest.mark.parametrize("name", some(SCHEDULES, [name for name in SCHEDULES if name != "zb-h2"]))
def test_a_table_is_there_for_the_numbers_that_are_allowed(name):
    """And for no other; the declaration takes arrays as it takes numbers."""
    p, m = np.meshgrid(np.arange(1, 9), np.arange(1, 25))
    allowed = np.broadcast_to(SCHEDULES[name].allows(p, m), p.shape)
    made = [attempt(name, *each)[0] is not None for each in zip(p.ravel().tolist(), m.ravel().tolist(), strict=True)]
    assert made == allowed.ravel().tolist()
    assert [bool(SCHEDULES[name].allows(*each)) for each in ((4, 8), (4, 6), (3, 5))] == [
        bool(allowed[row - 1, column - 1]) for column, row in ((4, 8), (4, 6), (3, 5))
    ]


def test_names_mean_one_schedule():
    """No two have a name or an alias in common, and one is the usual of a single chunk, one of several."""
    aliases = [alias for each in SCHEDULES.values() for alias in each.names.aliases]
    assert sorted({*aliases}) == sorted(aliases)
    assert not {*aliases} & {name.replace("-", "") for name in SCHEDULES}
    assert sorted(min(each.chunks, 2) for each in SCHEDULES.values() if each.usual) == [1, 2]
    assert default_schedule() == default_schedule(1) != default_schedule(2) == default_schedule(3)


def test_a_new_schedule_is_one_file(tmp_path, monkeypatch):
    """A producer in a file that is dropped into the folder is listed in its place and made like the others."""
    (tmp_path / "backwards_first.py").write_text(
        "from dataclasses import replace\n"
        "from simpar.plan.schedules import ordered\n\n"
        "GPIPE = next(each for each in ordered.PRODUCERS if each.make is ordered.gpipe)\n"
        "PRODUCERS = (replace(GPIPE, name='dummy'),)\n"
    )
    monkeypatch.setattr(schedules, "__path__", [*schedules.__path__, str(tmp_path)])
    listed = schedules._listed()
    assert set(listed) == {*SCHEDULES, "dummy"}
    monkeypatch.setitem(SCHEDULES, "dummy", listed["dummy"])
    assert make_schedule("dummy", 2, 2).to_csv() == make_schedule("gpipe", 2, 2).to_csv()
