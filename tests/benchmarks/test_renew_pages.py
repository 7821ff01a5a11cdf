"""What commands print takes the place of what pages show."""

import pytest

from benchmarks.renew_pages import aligned, renewed

SAID = [
    "step time  7.06 s",
    "",
    "1  8.49 s  tp2",
    "2  8.66 s  tp2 dp4",
    "3  8.69 s  cp2 dp4",
    "- 46.2 GiB: 9.12 s, tp2 dp4",
]


def test_lines_keep_their_order():
    """Rows of a table stay rows, though a later line may be more like one of them."""
    shown = ["step time  7.00 s", "1  8.49 s  tp2", "2  8.69 s  cp2 dp4", "3  8.79 s  tp2 dp4"]
    assert aligned(shown, SAID) == [SAID[0], *SAID[2:5]]


def test_what_nothing_is_like_is_an_error():
    """A line that no command prints any more."""
    with pytest.raises(SystemExit, match="nothing printed is like: memory"):
        aligned(["memory peaks on stage 0"], ["1  8.49 s"])
    with pytest.raises(SystemExit, match="1 lines are printed, 2 shown"):
        aligned(["1  8.49 s", "2  8.69 s"], ["1  8.49 s"])


def test_commands_and_gaps_stay(monkeypatch):
    """The command runs; what it prints between two shown lines is left out as before."""
    monkeypatch.setattr("benchmarks.renew_pages.printed_by", lambda _: SAID)
    block = ["$ simpar simulate x", "step time  7.77 s", "...", "- 46.0 GiB: 9.10 s, tp2 dp4"]
    assert renewed(block) == [block[0], SAID[0], "...", SAID[-1]]
