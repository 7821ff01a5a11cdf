"""The board of accuracy: what docs/validation.md says, beside releases, nothing left out."""

import pytest

from benchmarks.accuracy_board import ALL, FIGURES, VALIDATION, board, errors, kept, record, tables, worst_rows

PAGE = """
## By source

### Runs of some

| source | rows | modelled | time median | time p90 | memory median | tau | inside | more |
|---|---|---|---|---|---|---|---|---|
| **all** | 3 | 3 | 5 | 20 | 4 | 0.8 | 0.9 | x |
| fine | 1 | 1 | 2 | 3 |  |  | 1 | x |
| far off | 2 | 2 | 9 | 20 | 4 | 0.8 | 0.85 | x |

## The 1 worst step times

| row | source | error % |
|---|---|---|
| 7 | far off | -60 |
"""


def test_figures_are_read_by_population_and_source():
    """Of tables of sources only."""
    assert errors(PAGE)["Runs of some", "far off"] == dict(
        zip(FIGURES, ["2", "9", "20", "4", "0.8", "0.85"], strict=True)
    )
    assert [title for title, _ in tables(PAGE)] == ["Runs of some", "The 1 worst step times"]
    assert worst_rows(PAGE) == [{"row": "7", "source": "far off", "error %": "-60"}]


def test_the_worst_come_first_and_releases_stand_beside():
    """By their ninth tenth; a source that a release did not have is new."""
    before = {"1.0": {("Runs of some", ALL): dict.fromkeys(FIGURES, "8"), ("Runs", "fine"): {"time median": "6"}}}
    text = board(PAGE, before)
    assert text.index("| far off | 2 | 9") < text.index("| fine | 1 | 2")
    assert "| 1.0 | 8 | 8 |" in text
    assert "| now | 3 | 5 |" in text
    assert "| fine | 1 | 2 | 3 |  |  | 1 | 6 |" in text
    assert "| 0.85 | new |" in text
    assert "| 7 | far off | -60 |" in text


DEVICES = """
## By device

| device | rows | modelled | time median | time p90 | memory median | tau | inside |
|---|---|---|---|---|---|---|---|
| **all** | 3 | 3 | 5 | 20 | 4 | 0.8 | 0.9 |
| quick | 1 | 1 | 2 | 3 |  |  | 1 |
| slow | 2 | 2 | 9 | 20 | 4 | 0.8 | 0.85 |
"""


def test_devices_and_stacks_are_read_as_sources_are():
    """Their tables have a section each, the widest errors first, beside what a release knew of them."""
    page = DEVICES + PAGE
    assert errors(page)["By device", "slow"]["time p90"] == "20"
    text = board(page, {"1.0": {("By device", "slow"): dict.fromkeys(FIGURES, "7")}})
    assert "### By device, the widest errors first" in text
    assert "| device | modelled |" in text
    assert text.index("| slow | 2 | 9") < text.index("| quick | 1 | 2")
    assert "| 0.85 | 7 |" in text
    assert "### By source, the widest errors first" in text


def test_a_release_is_kept_once(tmp_path):
    """The same name replaces it."""
    path = tmp_path / "kept.csv"
    for median in ("5", "4"):
        record("1.0", PAGE.replace("| 3 | 3 | 5 |", f"| 3 | 3 | {median} |"), path)
    record("1.1", PAGE, path)
    assert list(kept(path)) == ["1.0", "1.1"]
    assert kept(path)["1.0"]["Runs of some", ALL]["time median"] == "4"
    assert kept(path)["1.1"] == errors(PAGE)


def test_the_present_page_and_the_kept_releases_give_a_board():
    """Every source of every population has a row, and every release that knew a population."""
    text, present = VALIDATION.read_text(encoding="utf-8"), errors(VALIDATION.read_text(encoding="utf-8"))
    page = board(text, kept())
    assert len(present) > 40
    for (_, source), row in present.items():
        if source != ALL:
            assert f"| {source} | {row['modelled']} | {row['time median']} |" in page
    for release, figures in kept().items():
        for population, source in figures:
            if source == ALL:
                assert (population, ALL) in present
                assert f"| {release} | {figures[population, ALL]['modelled']} |" in page
    assert pytest.approx(float(present["Runs as most people do them", ALL]["inside"]), abs=0.2) == 0.9
