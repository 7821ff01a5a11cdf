"""What a search found, on its page: candidates, ties, the certificate, time against memory."""

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
    """By the memory in which they surely fit; no candidate is below the front."""
    axes = plot_front(found).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    points = lines[CANDIDATES].get_xydata()
    assert len(points) == len(found.candidates)
    assert points[0][0] == pytest.approx(found.best.figures["reserved_memory_interval_bytes"][1] / GIB)
    front = [(one["needed_bytes"] / GIB, one["step_time_s"]) for one in found.details["pareto"]]
    assert FRONT in lines
    scale = found.best.step_time_s / points[0][1]
    for memory, seconds in points:
        best = min((step for needed, step in front if needed <= memory * 1.0001), default=0.0)
        assert seconds * scale >= best * 0.9999


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
