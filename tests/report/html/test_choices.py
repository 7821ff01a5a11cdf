"""The page of a sweep in a real headless browser: what it filters, orders and draws; and who can read it."""

import itertools

import pytest

from simpar.report.grid_page import save_grid_page
from simpar.report.sweep import save_sweep
from simpar.verbs import sweep
from tests.gate import some
from tests.report.test_grid import BEST

SETTINGS = """([values, order, fitting]) => {
    const tools = document.getElementById('choose');
    const boxes = [...tools.querySelectorAll('select')];
    values.forEach((value, at) => { boxes[at].value = value; });
    boxes.at(-1).value = order;
    const only = tools.querySelector('input');
    only.checked = fitting;
    only.dispatchEvent(new Event('change'));
    const rows = [...document.querySelectorAll('#choices tbody tr')];
    return rows.map((row) => row.cells[0].textContent + row.cells[1].textContent);
}"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of four choices, of which one does not fit, and one that is refused; and its page."""
    path = tmp_path_factory.mktemp("sweep") / "s.html"
    flags = {"model": "gpt2", "cluster.hardware": "dgx-v100", "training.seq_len": 512, "training.global_batch": 96}
    result = sweep(None, {"micro_batch": (1, 12, 5), "zero": (0, 1)}, flags=flags)
    save_sweep(result.rows, path, "Some <choices>", "How & why")
    return result, path


def test_the_page_filters_and_orders_its_rows(swept, tab):
    """By the values of keys, by what fits, by speed and by memory; the fastest that fits is named."""
    result, path = swept
    tab.goto(path.as_uri())
    rates = {f"{r.choice['micro_batch']}{r.choice['zero']}": r.result.tokens_per_s for r in result.rows if r.result}
    refused = ["50", "51"]
    assert set(rates) == {"10", "11", "120", "121"}
    assert tab.evaluate(SETTINGS, [["", ""], "at", False]) == ["10", "11", "120", "121", *refused]
    assert tab.evaluate(SETTINGS, [["1", ""], "at", False]) == ["10", "11"]
    best_first = sorted(rates, key=lambda name: -rates[name])
    assert tab.evaluate(SETTINGS, [["", ""], "rate", False]) == [*best_first, *refused]
    fits = {f"{r.choice['micro_batch']}{r.choice['zero']}" for r in result.rows if r.result and r.result.fits}
    assert set(tab.evaluate(SETTINGS, [["", ""], "memory", True])) == fits
    words = tab.locator("#chosen").inner_text()
    best = result.best
    assert words.startswith(
        f"{len(fits)} of 6 choices; fastest that fits: micro_batch {best.choice['micro_batch']}, zero "
    )
    assert tab.locator("#tradeoff svg circle").count() == len(fits)


def test_the_chart_is_as_wide_as_the_page(swept, tab):
    """Its texts are as large on a narrow screen as on a wide one, inside the chart, and no two overlap."""
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto(swept[1].as_uri())
    for width in (1280, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.wait_for_function(
            "() => document.querySelector('#tradeoff svg').viewBox.baseVal.width === tradeoff.clientWidth"
        )
        boxes = tab.evaluate(
            "[...document.querySelectorAll('#tradeoff text')].map((each) => each.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) >= 8
        assert all(box["height"] > 10 and box["left"] >= 0 and box["right"] <= width for box in boxes)
        for a, b in itertools.combinations(boxes, 2):
            assert (
                a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]
            )


def test_a_column_of_layouts_is_there_if_cells_have_any(tmp_path):
    """A layout, or why there is none; cells of a sweep have neither."""
    page, plain = tmp_path / "grid.html", {key: value for key, value in BEST.items() if key != "plan"}
    for best, titles in ((BEST, 1), (None, 1), (plain, 0)):
        cells = [{"nodes": 1, "best": best, "reason": "memory"}]
        save_grid_page({"axes": ["nodes"], "cells": cells, "title": "t"}, page)
        assert page.read_text().count("layout</th>") == titles


def test_the_page_is_read_without_scripts(swept, browser):
    """The table stands alone, with what its texts hold as text."""
    page = browser.new_page(java_script_enabled=False)
    page.goto(swept[1].as_uri())
    assert page.locator("#choices tbody tr").count() == 6
    assert not page.locator("#choose").is_visible()
    assert page.locator("h1").inner_text() == "Some <choices>"
    page.close()


@pytest.mark.parametrize(("theme", "width"), some(itertools.product(["light", "dark"], [1280, 400]), 1, tuples=True))
def test_readers_without_a_mouse_or_sight_find_everything(swept, tab, tmp_path, faults_for_readers, theme, width):
    """No rule of axe-core is broken, of a sweep and of a grid of searches."""
    grid = tmp_path / "grid.html"
    cells = [{"model": "m", "nodes": n, "best": best, "reason": "memory"} for n, best in ((1, None), (2, BEST))]
    save_grid_page({"axes": ["model", "nodes"], "cells": cells, "title": "t"}, grid)
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=theme)
    for path in (swept[1], grid):
        tab.goto(path.as_uri())
        assert faults_for_readers(tab) == {}
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
