"""The page of two results: one scale of time, figures side by side, sentences that say why."""

from dataclasses import replace

import pytest

import simpar
from simpar import cli
from simpar.report.html.pair import WITHOUT_TIMELINE, pair_data, render_pair
from simpar.units import NS_PER_S


@pytest.fixture(scope="module")
def pair():
    """A pipeline of four, one forward one backward and interleaved."""
    training = simpar.Training(seq_len=2048, global_batch=32)
    plans = ({"tp": 2, "pp": 4}, {"tp": 2, "pp": 4, "vpp": 2, "schedule": "interleaved"})
    return tuple(
        simpar.simulate("llama-3-8b", simpar.Cluster("dgx-h100", nodes=2), simpar.Plan(**plan), training)
        for plan in plans
    )


def test_stages_of_both_stand_below_each_other(pair):
    """Names by letter; the scale is the longer step, each stage ends with its own."""
    series = pair_data(pair, ("", ""))["series"]
    assert [stage["name"] for stage in series["stages"]] == [f"{name} stage {at}" for name in "AB" for at in range(4)]
    ends = [round(result.step_time_s * NS_PER_S) for result in pair]
    assert [stage["end_ns"] for stage in series["stages"]] == [ends[0]] * 4 + [ends[1]] * 4
    assert series["step_ns"] == max(ends)
    known = [stage["reserved_kib"] is not None for stage in series["stages"]]
    assert (sum(known[:4]), sum(known[4:])) == (1, 1)


def test_bars_are_on_one_scale(pair):
    """The longer step fills the width, the other its share of it."""
    shares = [sum(bar["share"] for bar in each["breakdown"]) for each in pair_data(pair, ("", ""))["results"]]
    steps = [result.step_time_s for result in pair]
    assert shares == pytest.approx([step / max(steps) for step in steps])


def test_the_page_loads_nothing_and_is_the_same_each_time(pair):
    """One file for a colleague."""
    text = render_pair(pair)
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
    assert text == render_pair(pair)


def test_a_result_without_timeline_leaves_the_rest(pair):
    """Said in a sentence; figures and reasons stay."""
    text = render_pair((pair[0], replace(pair[1], overview=None)))
    assert WITHOUT_TIMELINE in text
    assert 'id="rows"' not in text
    assert "pipeline bubble" in text


def test_it_is_drawn_in_a_browser(pair, visit):
    """A row a stage; nothing is drawn behind the end of the shorter step."""
    page = visit(pair)
    box = page.locator("#rows").bounding_box()
    assert page.evaluate("() => simpar.stages.length") == 8
    shorter = min(range(2), key=lambda at: pair[at].step_time_s)
    tip = page.locator("#tip")
    x = page.evaluate("() => simpar.scale(document.getElementById('rows').clientWidth).x(simpar.span) - 2")
    page.locator("#rows").scroll_into_view_if_needed()
    box = page.locator("#rows").bounding_box()
    row = (box["height"] - 26) / 8
    page.mouse.move(box["x"] + x, box["y"] + 22 + (4 * shorter + 0.3) * row)
    assert tip.is_hidden()
    page.mouse.move(box["x"] + x, box["y"] + 22 + (4 * (1 - shorter) + 0.3) * row)
    assert tip.is_visible()
    assert "capacity" in page.locator("#curve-words").inner_text()


def test_on_the_command_line(pair, tmp_path, capsys):
    """A page and a picture beside the table."""
    for name, result in zip("ab", pair, strict=True):
        result.save(tmp_path / f"{name}.json")
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    page, picture = tmp_path / "both.html", tmp_path / "both.svg"
    assert cli.run(["compare", *files, "--html", str(page), "--timeline", str(picture)]) == 0
    assert files[1] in page.read_text()
    assert picture.read_bytes().startswith(b"<?xml")
    capsys.readouterr()
    assert cli.run(["compare", *files, "--timeline", str(tmp_path / "both.jpg")]) == 2
    assert "allowed .png, .svg, .pdf, .html" in capsys.readouterr().err
