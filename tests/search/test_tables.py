"""A search in one line, as a frame, as a page to hand on, and read back."""

import pytest

import simpar
from simpar import cli
from simpar.errors import UserError
from simpar.report.frames import csv_text
from simpar.search.answer.summary import save_summary, summary
from simpar.search.result import SearchResult


@pytest.fixture(scope="module")
def found():
    """A small search."""
    return simpar.search(
        simpar.Model("tiny-llama"),
        simpar.Cluster("dgx-h100", 1),
        simpar.Training(seq_len=128, global_batch=8),
    )


def test_a_search_is_short_in_a_shell_and_a_table_in_a_notebook(found):
    """Its repr is a line, not every candidate's plan; the frame has a row a candidate in SI."""
    assert len(repr(found)) < 250
    assert repr(found).startswith(f"<SearchResult: {len(found.candidates)} candidates, certified")
    frame = found.to_frame()
    assert list(frame.index) == [one.rank for one in found.candidates]
    assert frame.step_time_s.iloc[0] == found.best.step_time_s
    assert frame.tp.iloc[0] == found.best.plan.mesh.tp
    assert found._repr_html_().count("<tr>") == 1 + len(found.candidates)


def test_a_saved_search_is_read_back(found, tmp_path):
    """What is written is read, and nothing else is taken for a search."""
    found.save(tmp_path / "found.json")
    assert SearchResult.load(tmp_path / "found.json").to_json() == found.to_json()
    with pytest.raises(UserError, match="has no search_schema_version"):
        SearchResult.from_dict({})
    with pytest.raises(UserError, match="search_schema_version = 9: allowed: 1"):
        SearchResult.from_dict({"search_schema_version": 9})
    with pytest.raises(UserError, match="not a whole search"):
        SearchResult.from_dict({"search_schema_version": 1, "candidates": []})


def test_why_this_plan_is_one_page(found, tmp_path, capsys):
    """Five questions, each answered; the same from a saved search; names are escaped."""
    found.save(tmp_path / "found.json")
    page = tmp_path / "why.html"
    assert cli.run(["report", str(tmp_path / "found.json"), "--summary", "-o", str(page)]) == 0
    text = page.read_text()
    titles = [section["title"] for section in summary(found)]
    assert titles == ["What was asked", "What was chosen", "By how much", "How sure", "What would change it"]
    assert all(section["lines"] for section in summary(found))
    assert all(f"<h2>{title}</h2>" in text for title in titles)
    named = found.saying({"model": {"name": "<script>alert(1)</script>"}})
    save_summary(named, page)
    assert "<script>" not in page.read_text()


def test_the_page_of_a_run_says_days_and_dollars():
    """Where tokens were given, what the whole run of the chosen plan comes to is said, as the search prints it."""
    training = simpar.Training(seq_len=128, global_batch=8, tokens=10**9)
    found = simpar.search(simpar.Model("tiny-llama"), simpar.Cluster("dgx-h100", 1), training)
    chosen = next(section["lines"] for section in summary(found) if section["title"] == "What was chosen")
    for name in ("days", "GPU-hours", "dollars", "MWh"):
        assert any(line.startswith(f"{name}: ") for line in chosen)


def test_cells_of_a_csv_are_no_formulas():
    """A name that a spreadsheet would compute is text; numbers stay numbers."""
    assert csv_text([["a", "b"], ["=1+1", -2.5]]) == "a,b\n'=1+1,-2.5\n"
