"""Tables on narrow terminals: no cell is cut, what decides stays, and what is left out is named."""

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simpar.diagnosis.answer import Explanation
from simpar.diagnosis.changes import Changes, Fitted, Gain
from simpar.diagnosis.terminal import print_explanation
from simpar.plan.plan import Plan
from simpar.planner.answer.terminal import _print_candidates
from simpar.planner.result import Candidate, Counts, SearchResult
from simpar.report.parts import Trial
from simpar.report.table import Column, ReportTable
from simpar.report.terminal import print_report
from simpar.units import GIB

COLUMNS = [
    Column("change", "left", least=20), Column("step"), Column("against this"), Column("MFU", spare=1),
    Column("memory", spare=2), Column("", "left", least=12),
]  # fmt: skip
ROWS = [
    ("--zero 2 --set plan.kind=null --set plan.reshard_after_forward=null", "97.3 ms", "-10.1%", "40.2%", "94.8 GiB",
     "fits, 66 % sure"),
    ("--tp 2", "2.96 s", "+11.7%", "32.4%", "40.0 GiB", "fits, over 99 % sure"),
]  # fmt: skip


def lines_of(draw, width, *, is_terminal=True):
    """What something writes to a console of a width, in lines."""
    out = Console(width=width, file=io.StringIO(), force_terminal=is_terminal, no_color=True)
    draw(out)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.file.getvalue()).splitlines()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_cell_is_cut(width, is_terminal):
    """Lines are as long as the console allows, all words of what stays are there, and the rest is named."""
    said = lines_of(lambda out: out.print(ReportTable(COLUMNS, ROWS)), width, is_terminal=is_terminal)
    told = [line for line in said if line.startswith("left out for width: ")]
    assert all(len(line.rstrip()) <= width for line in said if line not in told)
    assert not any("…" in line for line in said)
    flat = "".join("".join(said).split())
    gone = [name for name in ("MFU", "memory") if told and name in told[0]]
    assert gone == {60: ["MFU", "memory"]}.get(width, gone)
    for row in ROWS:
        for column, cell in zip(COLUMNS, row, strict=True):
            words = cell.split() if column.least else [cell]
            assert (column.title in gone) != all("".join(word.split()) in flat for word in words[:1])
    for title in ("step", "against"):
        assert title in " ".join(said)


WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\t\n\u00e9\u4e2d"), max_size=12)


@given(st.data())
def test_plain_tables_are_those_of_rich(data):
    """What is written without rich is what rich writes to a console that is no terminal."""
    count, width = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([20, 60, 200]))
    column = st.builds(
        Column, WORDS, st.sampled_from(["left", "right"]), st.sampled_from([None, 3, 10]), st.integers(0, 1)
    )
    columns = data.draw(st.lists(column, min_size=count, max_size=count))
    rows = data.draw(st.lists(st.lists(WORDS, min_size=max(1, count - 1), max_size=count).map(tuple), max_size=3))
    table = ReportTable(columns, rows, header=data.draw(st.booleans()))
    out = Console(width=width, file=io.StringIO(), force_terminal=False, markup=False, emoji=False, highlight=False)
    out.print(table)
    assert table.plain(width) in (None, out.file.getvalue())


def test_plain_tables_are_written_where_they_fit():
    """The tables of every day need no rich; those that have to wrap, and other characters, are left to it."""
    assert ReportTable(COLUMNS, ROWS).plain(200).splitlines()[0].split() == [
        "change", "step", "against", "this", "MFU", "memory",
    ]  # fmt: skip
    assert ReportTable(COLUMNS, ROWS).plain(60) is None
    assert ReportTable(["step"], [("5 \u00b5s",)]).plain(200) is None


def test_titles_break_before_columns_go():
    """A title is no reason to leave a column out."""
    columns = [Column("a very long title", spare=1), Column("b")]
    said = lines_of(lambda out: out.print(ReportTable(columns, [("1", "2")])), 20)
    assert not any("left out" in line for line in said)
    assert {"very", "long", "title"} <= set(" ".join(said).split())


def flat(said):
    """All that is said, without spaces."""
    return "".join("".join(said).split())


@pytest.mark.parametrize("width", [60, 80])
def test_neighbours_of_a_report_keep_what_decides(width, result):
    """The change, its step, the gain, and whether it fits."""
    trial = Trial(
        change="--zero 2 --set plan.kind=null", step_time_s=2.43, mfu=0.394, peak_reserved_bytes=60.6 * GIB,
        fits=True, fit_probability=0.999,
    )  # fmt: skip
    result = replace(result, why=result.why.model_copy(update={"trials": (trial,)}))
    said = lines_of(lambda out: print_report(result, out), width)
    at = next(at for at, line in enumerate(said) if line.startswith("Neighbouring layouts"))
    gain = f"{2.43 / result.step_time_s - 1:+.1%}"
    assert all(word in flat(said[at:]) for word in ("--zero2", "2.43s", gain, "fits,over"))
    assert "…" not in "".join(said[at:])


@pytest.mark.parametrize("width", [60, 80])
def test_changes_of_a_run_keep_what_decides(width):
    """The change, its gain, and that it does not fit."""
    change = "--zero 1 --set plan.kind=null --set plan.reshard_after_forward=null"
    gains = (Gain(change, 0.141, (0.02, 1.24), 6.7, fits=False),)
    found = Explanation(changes=Changes(gains, Fitted((), 8.49, 6.99), {}))
    said = lines_of(lambda out: print_explanation(found, out), width)
    assert all(word in flat(said) for word in ("--zero1", "141ms", "20.0msto1.24s", "NO"))
    assert "…" not in "".join(said)


@pytest.mark.parametrize("width", [60, 80])
def test_candidates_of_a_search_say_their_plans(width):
    """Rank, step, how surely it fits, and the plan in a column to read."""
    plan = Plan(tp=2, pp=4, zero=1, sequence_parallel=True)
    figures = {"fit_probability": 0.999, "best_probability": 0.3, "peak_reserved_bytes": 57.6 * GIB}
    found = SearchResult(
        tuple(Candidate(rank, plan, 6.76 + rank / 100, 0.568, 1e9, figures=figures) for rank in (1, 2)),
        Counts(1000, 400, 400, 20, 3), "time", certified_optimal=True, gap=0.0, search_seconds=2.5, details={},
    )  # fmt: skip
    said = lines_of(lambda out: _print_candidates(found, out), width)
    assert all(word in flat(said) for word in ("6.77s", "over99%", "sequence"))
    assert "…" not in "".join(said)
    assert len(said) < 16


def test_cells_of_a_csv_are_no_formulas():
    """A name that a spreadsheet would compute is text; numbers stay numbers; what a record lacks is blank."""
    table = ReportTable.of_records([{"a": "=1+1", "b": -2.5}, {"b": 1}])
    assert table.csv() == "a,b\n'=1+1,-2.5\n,1\n"


def test_cells_of_html_are_no_markup():
    """Names come from files."""
    table = ReportTable(["a"], [["<b>"]])
    assert table.html() == "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>"
