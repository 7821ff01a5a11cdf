"""Action tables: text, verification, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.errors import UserError
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import Action, columns, from_csv, verify, waits_for

TWO_RANKS = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_the_text_is_torchs():
    """A table is written as torch's compute-only CSV, with I and W where the backward is split."""
    assert make_schedule("1f1b", 2, 2).to_csv() == TWO_RANKS
    assert make_schedule("zb-h1", 2, 1).to_csv() == "0F0,0I0,0W0\n1F0,1I0,1W0\n"
    assert str(Action("I", 3, 12)) == "3I12"


def test_overlapped_pairs_are_written_together():
    """A forward and a backward that run together are one cell, in torch's words."""
    text = make_schedule("dualpipev", 2, 4).to_csv()
    assert "(0F3;3B1)OVERLAP_F_B" in text.splitlines()[0]
    assert from_csv(text).to_csv() == text


def test_blanks_are_waiting():
    """Empty cells and spaces, as torch writes them for bubbles, mean nothing."""
    assert from_csv("0F0, 0F1,,0B0 ,0B1\n\n,1F0,1B0,1F1,1B1,\n").to_csv() == TWO_RANKS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 pairs"),
        ("0F0,0X0", "'0X0' is not an action"),
        ("0F0", "needed are one F and either one B or one I and one W"),
        ("0F0,0I0", "needed are one F and either"),
        ("0F0,0B0,0W0", "needed are one F and either"),
        ("0F0,0F0,0B0", "0F0 appears 2 times"),
        ("0F0,0B0\n2F0,2B0", "2 pairs of stage and microbatch; needed: every one"),
        ("0F0,0B0,0F999999,0B999999", "2 pairs of stage and microbatch; needed: every one"),
        ("0F9999999,0B0", "is not an action"),
        ("0B0,0F0", "0B0 on rank 0 can never start"),
        ("0F0,0W0,0I0", "0W0 on rank 0 can never start"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0", "0B0 on rank 0 can never start"),
        ("0F0,0B0,1F0\n0F1,0B1,1B0,1F1,1B1", "its stage runs on another"),
        ("(0B0;0F0)OVERLAP_F_B", "a forward overlaps with a B or an I"),
        ("(0F0;0B0)OVERLAP_F_B", "0F0 on rank 0 can never start"),
    ],
)
def test_what_cannot_run_is_refused(text, words):
    """A malformed or impossible table gets one line that names the first thing wrong."""
    with pytest.raises(UserError) as caught:
        from_csv(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_memory_cap_is_checked():
    """A table that keeps more forwards than the cap names the rank."""
    with pytest.raises(UserError, match="rank 0 keeps 8 forwards; allowed: 7"):
        verify(make_schedule("gpipe", 2, 8), memory_cap=7)


def test_a_stage_outside_the_table_is_refused():
    """An action of a stage that does not exist is named."""
    table = make_schedule("gpipe", 1, 1)
    with pytest.raises(UserError, match="3F0 names a stage or microbatch that does not exist"):
        verify(type(table)("broken", 1, (0,), (columns([0, 1], 3, 0),)))


def test_what_an_action_waits_for():
    """Forwards wait for the stage before, backwards for the stage behind, a W for its I."""
    assert waits_for(make_schedule("gpipe", 2, 1)).tolist() == [-1, 3, 0, 2]
    assert waits_for(make_schedule("zb-h1", 2, 1)).tolist() == [-1, 4, 1, 0, 3, 4]


def test_in_a_bidirectional_table_late_microbatches_are_mirrored():
    """DualPipe runs stage v of the second half of the microbatches on rank p - 1 - v."""
    table = make_schedule("dualpipe", 4, 8)
    assert table.num_mirrored == 4
    assert [table.rank_of(1, microbatch) for microbatch in (0, 3, 4, 7)] == [1, 1, 2, 2]
    assert table.rank_of(np.array([0, 3]), 7).tolist() == [3, 0]


@given(st.text(alphabet="0123FBIW,\n();OVERLAP_ ", max_size=60))
def test_reading_never_breaks(text):
    """Any text is a table that round-trips, or a UserError."""
    try:
        table = from_csv(text)
    except UserError:
        return
    assert from_csv(table.to_csv()).to_csv() == table.to_csv()


@given(st.permutations(list(range(8))))
def test_any_order_of_microbatches_is_a_schedule(order):
    """Forwards and backwards in any order of microbatches can run, if it is the same on every rank."""
    forwards = [[f"{rank}F{m}" for m in order] for rank in range(2)]
    backwards = [[f"{rank}B{m}" for m in order] for rank in range(2)]
    verify(from_csv("\n".join(",".join(f + b) for f, b in zip(forwards, backwards, strict=True))))
