"""The page of an explained run: what it shows, and that names in traces stay text."""

import json
import re

import pytest

from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.diagnosis.page import render, save_page
from tests.diagnosis.kineto_files import Rank, data_parallel_step
from tests.diagnosis.predicted_traces import traces
from tests.diagnosis.test_against import RANKS, scenario

HOSTILE = "</script><script>document.title='x'</script><img src=x onerror=alert(1)>"


def series_of(page):
    """What the scripts of a page draw."""
    return json.loads(re.search(r'<script type="application/json" id="series">(.*?)</script>', page, re.DOTALL)[1])


def test_both_timelines_stand_above_each_other(tmp_path, capsys):
    """Rows of measured ranks, then of predicted stages, in one window; equal input gives equal bytes."""
    plan = scenario()
    made, result = traces(plan.inputs(), RANKS, 8)
    found = explain(*(each.save(tmp_path) for each in made), plan=plan, changes=False)
    page = render(found)
    data = series_of(page)
    assert [row["name"] for row in data["stages"]] == ["rank 0", "rank 3", "rank 5", "predicted 0"]
    assert data["step_ns"] == pytest.approx(1e9 * result.step_time_s, rel=0.01)
    for row in data["stages"]:
        kinds = [data["kinds"][kind]["lane"] for kind in row["blocks"]["kind"]]
        busy = sum(ns for ns, lane in zip(row["blocks"]["duration"], kinds, strict=True) if lane == 0)
        assert busy == pytest.approx(1e9 * (result.step_time_s - found.measured.mean_s()["exposed_dp"]), rel=0.02)
    save_page(found, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    assert cli.run(["explain", str(tmp_path / "trace-rank0.json"), "--html", str(tmp_path / "one.html")]) == 0
    assert "what would change" not in (tmp_path / "one.html").read_text()
    capsys.readouterr()


def hostile(tmp_path):
    """A trace whose kernels, groups and device are named to break a page."""
    made = Rank(0, 1)
    made.kernel(f"{HOSTILE} backward", 0, 500)
    made.collective("allreduce", 500, 100, (0, 1), description=HOSTILE, group=HOSTILE)
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps({"classes": [{"name": HOSTILE, "patterns": ["nothing", "gemm"]}]}))
    made.kernel("gemm", 600, 100)
    return explain(made.save(tmp_path), kernel_classes=own)


def test_names_in_traces_stay_text(tmp_path):
    """Kernels, groups and classes with markup in their names are escaped, in the text and in what scripts read."""
    found = hostile(tmp_path)
    page = render(found)
    assert HOSTILE not in page
    assert "<img" not in page
    assert HOSTILE in {kind["name"] for kind in series_of(page)["kinds"]}


def test_readers_without_a_mouse_or_sight_find_everything(browser, faults_for_readers, tmp_path):
    """No rule of axe-core is broken."""
    path = tmp_path / "page.html"
    save_page(hostile(tmp_path), path)
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#rows[data-to]")
    assert faults_for_readers(page) == {}
    page.close()


@pytest.mark.slow
def test_the_page_in_a_browser(browser, tmp_path):
    """It draws without an error at both widths, runs no name as code, and is no wider than the window."""
    path = tmp_path / "page.html"
    save_page(hostile(tmp_path), path)
    for width in (1280, 400):
        page, trouble = browser.new_page(viewport={"width": width, "height": 900}), []
        page.on("console", lambda message, seen=trouble: message.type == "error" and seen.append(message.text))
        page.on("pageerror", lambda error, seen=trouble: seen.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("#rows[data-to]")
        assert page.title().startswith("simpar: measured step")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()
        assert trouble == []


def test_very_long_traces_are_drawn_by_samples(tmp_path):
    """More pieces than a row can show become as many moments; the row still ends where the step does."""
    made = Rank(0, 1)
    for number in range(5000):
        made.kernel("gemm_bwd" if number % 2 else "flash_fwd", 3 * number, 2)
    data = series_of(render(explain(made.save(tmp_path))))
    (row,) = data["stages"]
    assert 1000 < len(row["blocks"]["kind"]) <= 6000
    assert sum(row["blocks"]["start"]) <= data["step_ns"]


def test_a_run_of_many_ranks_draws_some(tmp_path):
    """Sixteen of twenty ranks have a row, the slow one among them."""
    slow = [1.0] * 20
    slow[7] = 1.5
    made = [data_parallel_step(rank, slow=slow, world_size=20) for rank in range(20)]
    data = series_of(render(explain(*(each.save(tmp_path) for each in made))))
    assert len(data["stages"]) == 16
    assert "rank 7" in {row["name"] for row in data["stages"]}
