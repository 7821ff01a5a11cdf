"""What a search found, on its page: candidates, ties, the certificate, time against memory."""

from dataclasses import replace
from itertools import pairwise

import pytest

import simpar
from simpar import cli
from simpar.planner.answer.found import CANDIDATES, FRONT, candidate_table, found_section, plot_front
from simpar.units import GIB


@pytest.fixture(scope="module")
def found():
    """A small search with several candidates."""
    few = {"cp": 1, "ep": 1, "micro_batch": (1, 2)}
    return simpar.search("gpt2", "dgx-h100", {"seq_len": 1024, "global_batch": 64}, constraints=few)


def test_a_row_a_candidate(found):
    """In the order of the search, with the figures of each."""
    table = candidate_table(found)
    assert [row[0] for row in table.rows] == [str(each.rank) for each in found.candidates]
    assert table.rows[0][4] == f"{found.best.mfu:.1%}"
    marked = [row[-1] == "yes" for row in table.rows]
    assert marked == [bool(each.figures.get("tied")) for each in found.candidates]


def test_the_picture_has_every_candidate_and_the_front(found):
    """By the memory in which they surely fit."""
    axes = plot_front(found).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    points = lines[CANDIDATES].get_xydata()
    assert len(points) == len(found.candidates)
    needed = {one["step_time_s"]: one["needed_bytes"] / GIB for one in found.details["pareto"]}
    assert points[0][0] == pytest.approx(needed[found.best.step_time_s])
    assert points[1][0] == pytest.approx(found.candidates[1].figures["reserved_memory_interval_bytes"][1] / GIB)


def test_no_candidate_lies_below_the_front(found):
    """Its stairs go down from left to right; a candidate that takes less memory than the first is a step of it."""
    spare = replace(
        found.candidates[1],
        step_time_s=1.001 * found.best.step_time_s,
        figures={**found.candidates[1].figures, "reserved_memory_interval_bytes": (1.0 * GIB, 2.0 * GIB)},
    )
    lines = {
        line.get_label(): line for line in plot_front(replace(found, candidates=(found.best, spare))).axes[0].lines
    }
    stairs = [tuple(each) for each in lines[FRONT].get_xydata()]
    assert (2.0, pytest.approx(lines[CANDIDATES].get_xydata()[1][1])) in stairs
    assert all(one[0] < two[0] and one[1] > two[1] for one, two in pairwise(stairs))
    for memory, seconds in lines[CANDIDATES].get_xydata():
        assert min(step for needed, step in stairs if needed <= memory) <= seconds


def test_reports_of_searches_show_it(found, tmp_path):
    """The report and the summary of a saved search; a result's report has no such section."""
    found.save(tmp_path / "s.json")
    for flags in ([], ["--summary"]):
        page = tmp_path / "page.html"
        assert cli.run(["report", str(tmp_path / "s.json"), *flags, "-o", str(page)]) == 0
        text = page.read_text()
        assert 'id="found"' in text
        assert "<svg" in text
        assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "").replace(
            "http://purl.org", ""
        ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")
    assert found_section(found)["lines"][0].startswith("certified")
    found.candidates[0].plan.save(tmp_path / "plan.json")
    assert cli.run(["report", str(tmp_path / "plan.json"), "-o", str(page)]) == 0
    assert 'id="found"' not in page.read_text()
