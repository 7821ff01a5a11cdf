"""The page in a real headless browser: what is drawn, what moves, what is read out."""

import itertools
import re
from dataclasses import replace

import pytest

from simpar.report.certainty import Certainty
from simpar.report.palette import KIND_COLOUR
from simpar.report.plots import KINDS_OF_PLOT, save_plot
from simpar.report.timeline import KINDS
from simpar.units import NS_PER_S
from tests.gate import some

WINDOW = "() => { const d = document.getElementById('rows').dataset; return [Number(d.from), Number(d.to)]; }"
# A quarter into a block, clear of its label: in pixels of the window and of the canvas; and the colour there.
LOCATE = """([stage, row]) => {
    const box = document.getElementById('rows').getBoundingClientRect();
    const at = simpar.scale(box.width), column = simpar.stages[stage].lanes[0];
    const x = Math.round(0.75 * at.x(column.begin[row]) + 0.25 * at.x(column.end[row]));
    const rowHeight = (box.height - 26) / simpar.stages.length;
    return [box.left + x, box.top + 22 + (stage + 0.2) * rowHeight, x, 22 + (stage + 0.2) * rowHeight];
}"""
PIXEL = """([x, y]) => {
    const ratio = window.devicePixelRatio;
    const pixel = document.getElementById('rows').getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data;
    return '#' + [...pixel].slice(0, 3).map((c) => c.toString(16).padStart(2, '0')).join('').toUpperCase();
}"""
BLOCKS = f"""([stage, number]) => Array.from({{ length: number }}, (_, row) => {{
    const [, , x, y] = ({LOCATE})([stage, row]);
    return [simpar.stages[stage].lanes[0].kind[row], ({PIXEL})([x, y])];
}})"""  # what the first blocks of a stage are, and their colours
CONTRAST = """() => {
    const style = getComputedStyle(document.documentElement);
    const light = (name) => {
        const hex = style.getPropertyValue(name).trim();
        const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const names = ['--ink', '--soft', '--accent', '--good', '--bad'], papers = ['--paper', '--panel'];
    return names.flatMap((name) => papers.map((paper) => {
        const pair = [light(name), light(paper)].sort();
        return (pair[1] + 0.05) / (pair[0] + 0.05);
    }));
}"""


def window(page):
    """The visible window of time in ns, after the next drawing."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(WINDOW)


def hover(page, stage, row):
    """Put the pointer on a block; returns where that is."""
    place = page.evaluate(LOCATE, [stage, row])
    page.mouse.move(place[0], place[1])
    return place


def test_blocks_are_drawn_in_their_colours(visit, result):
    """The pixel in the middle of every compute block of a stage has the colour of its kind."""
    page = visit(result)
    page.locator("#rows").scroll_into_view_if_needed()
    blocks = result.overview.stages[2].blocks
    compute = [k for k in blocks.kind.tolist() if KIND_COLOUR[KINDS[k]] != KIND_COLOUR["pp"]]
    drawn = [(KINDS[kind], colour) for kind, colour in page.evaluate(BLOCKS, [2, len(compute)])]
    assert len(compute) == 2 * 8 + 1
    assert drawn == [(kind, KIND_COLOUR[kind]) for kind, _ in drawn]


def test_pointing_at_a_pass_tells_op_start_duration_and_microbatch(visit, result):
    """The tip has the figures of the block under the pointer; over a gap it says that the stage waits."""
    page = visit(result)
    page.locator("#rows").scroll_into_view_if_needed()
    hover(page, 1, 0)
    words = page.locator("#tip").inner_text()
    assert words.splitlines() == ["forward", "stage 1", "microbatch 0", "start 4 ms", "duration 3 ms"]
    box = page.locator("#rows").bounding_box()
    _, y, *_ = page.evaluate(LOCATE, [3, 0])
    left = page.evaluate("() => simpar.scale(document.getElementById('rows').clientWidth).x(1e6)")
    page.mouse.move(box["x"] + left, y)
    assert page.locator("#tip").inner_text().splitlines()[:2] == ["waits", "stage 3"]


def test_the_wheel_zooms_around_the_pointer_and_dragging_moves(visit, result):
    """The time under the pointer stays where it is; a drag shifts the window by as much; the button resets."""
    page = visit(result)
    page.locator("#rows").scroll_into_view_if_needed()
    span = result.overview.step_time_s * NS_PER_S
    assert window(page) == [0, pytest.approx(span)]
    x, y, inside, _ = hover(page, 0, 5)
    time_at = "(x) => simpar.scale(document.getElementById('rows').clientWidth).ns(x)"
    before = page.evaluate(time_at, inside)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -80)
    page.keyboard.up("Control")
    start, end = window(page)
    assert 0 < start < end < span
    assert page.evaluate(time_at, inside) == pytest.approx(before, rel=1e-3)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=2)
    page.mouse.up()
    moved = window(page)
    assert moved[0] > start
    assert moved[1] - moved[0] == pytest.approx(end - start)
    assert page.evaluate(time_at, inside - 100) == pytest.approx(before, rel=1e-3)
    page.get_by_role("button", name="Whole step").click()
    assert window(page) == [0, pytest.approx(span)]


def test_the_page_scrolls_with_a_plain_wheel(visit, result):
    """A timeline that was not clicked does not swallow the wheel."""
    page = visit(result)
    page.locator("#rows").scroll_into_view_if_needed()
    hover(page, 0, 0)
    before = window(page)
    page.mouse.wheel(0, 120)
    assert window(page) == before


def test_a_click_follows_a_microbatch(visit, result):
    """Others fade until Escape."""
    page = visit(result)
    page.locator("#rows").scroll_into_view_if_needed()
    x, y, inside, high = hover(page, 0, 2)
    page.mouse.click(x, y)
    page.mouse.move(x, 2)
    window(page)
    assert page.locator("#rows").get_attribute("data-microbatch") == "2"
    other = page.evaluate(LOCATE, [0, 0])
    assert page.evaluate(PIXEL, other[2:]) != KIND_COLOUR["forward"]
    assert page.evaluate(PIXEL, [inside, high]) == KIND_COLOUR["forward"]
    page.keyboard.press("Escape")
    window(page)
    assert page.locator("#rows").get_attribute("data-microbatch") == ""


def test_the_keyboard_reaches_every_pass_and_reads_it_out(visit, result):
    """Arrows step through passes and stages; the live region speaks; zoom and back by key."""
    page = visit(result)
    page.locator("#rows").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#spoken").inner_text() == "forward, stage 0, microbatch 1, start 3 ms, duration 3 ms"
    page.keyboard.press("ArrowDown")
    assert "stage 1" in page.locator("#spoken").inner_text()
    page.keyboard.press("+")
    start, end = window(page)
    assert end - start == pytest.approx(0.6 * result.overview.step_time_s * NS_PER_S, rel=1e-6)
    page.keyboard.press("0")
    assert window(page)[0] == 0


@pytest.mark.parametrize(("width", "room"), [(1280, (150, 220)), (400, (112, 112))])
def test_long_names_of_rows_have_room(visit, result, width, room):
    """A slow rank's, beside which those of stages are short; a telephone gives up less of the drawing."""
    named = [replace(stage, name="stage 0 rank 12, 1.25 x slower") for stage in result.overview.stages]
    page = visit(replace(result, overview=replace(result.overview, stages=tuple(named))))
    page.set_viewport_size({"width": width, "height": 800})
    assert room[0] <= page.evaluate("() => simpar.gutter()") <= room[1]


def test_the_strip_chooses_a_window(visit, result):
    """Dragging over the middle half of the strip shows about the middle half of the step."""
    page = visit(result)
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    left = box["x"] + page.evaluate("() => simpar.gutter()")
    width = box["x"] + box["width"] - 8 - left
    page.mouse.move(left + 0.25 * width, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(left + 0.75 * width, box["y"] + 10, steps=2)
    page.mouse.up()
    span = result.overview.step_time_s * NS_PER_S
    assert window(page) == [pytest.approx(0.25 * span, rel=0.02), pytest.approx(0.75 * span, rel=0.02)]


def test_memory_shows_the_chosen_stage(visit, result):
    """The fullest stage first; pointing at the curve gives its parts, which add up."""
    page = visit(result)
    assert page.locator("#curve").get_attribute("data-stage") == "0"
    page.locator("#stage").select_option("3")
    window(page)
    assert page.locator("#curve").get_attribute("data-stage") == "3"
    page.locator("#curve").scroll_into_view_if_needed()
    box = page.locator("#curve").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100)
    words = page.locator("#curve-tip").inner_text().splitlines()
    total, *parts = (float(re.search(r"([\d.]+) GiB", line).group(1)) for line in words if "GiB" in line)
    assert len(words) == 7
    assert sum(parts) == pytest.approx(total, abs=0.2)


def test_the_fullest_stage_shows_where_its_reserved_peak_may_be(visit, result):
    """A band from low to high on the scale of the chart; none on other stages, nor where a result does not say."""
    peak = result.memory.peak_reserved_bytes
    known = Certainty(
        step_time_interval_s=(0.9 * result.step_time_s, 1.3 * result.step_time_s),
        reserved_memory_interval_bytes=(0.9 * peak, 1.2 * peak),
        fit_probability=0.61,
        support=1,
    )
    page = visit(replace(result, why=result.why.model_copy(update={"certainty": known})))
    low, high = map(float, page.locator("#curve").get_attribute("data-reserved").split())
    capacity, bottom, top = result.memory.capacity_bytes, 250 - 22, 10
    full = 1.05 * max(capacity, 1.2 * peak)
    assert low == pytest.approx(bottom - 0.9 * peak / full * (bottom - top), abs=0.5)
    assert high == pytest.approx(bottom - 1.2 * peak / full * (bottom - top), abs=0.5)
    page.locator("#stage").select_option("3")
    window(page)
    assert page.locator("#curve").get_attribute("data-reserved") == ""
    bare = visit(replace(result, why=result.why.model_copy(update={"certainty": None})))
    assert bare.locator("#curve").get_attribute("data-reserved") == ""
    assert "90 % interval" not in bare.locator("#memory").inner_text()


def test_text_is_readable_in_both_themes(visit, result):
    """Contrast of every text colour on both papers is at least 4.5 to 1."""
    page, found = visit(result), []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        found.append(page.evaluate(CONTRAST))
    assert min(map(min, found)) >= 4.5
    assert found[0] != found[1]


def test_the_theme_can_be_chosen(visit, result):
    """The button goes from the system's theme to light, dark and back, and charts are drawn anew."""
    page = visit(result)
    paper = "() => getComputedStyle(document.body).backgroundColor"
    colours = []
    for _ in range(3):
        colours.append(page.evaluate(paper))
        page.locator("#theme").click()
    assert colours[0] == colours[1] == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate(paper) != "rgb(255, 255, 255)"


@pytest.mark.parametrize(
    ("width", "stages", "microbatches"),
    some([(width, *size) for width in (390, 1280) for size in ((64, 128), (16, 64), (16, 128))], 1, tuples=True),
)
def test_large_pipelines_stay_legible(visit, timeline_of, result_of, width, stages, microbatches):
    """Rows of at least 13 pixels, all stages named, nothing wider than the window, drawn in under a second."""
    large = result_of(timeline_of(stages, microbatches))
    page = visit(large, width=width)
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("#rows").bounding_box()["height"] >= 13 * stages
    elapsed = page.evaluate("""() => { const start = performance.now();
        simpar.listeners.forEach((draw) => draw()); return performance.now() - start; }""")
    assert elapsed < 1000
    page.locator("#rows").focus()
    for _ in range(12):
        page.keyboard.press("+")
    start, end = window(page)
    assert end - start < 0.01 * large.overview.step_time_s * NS_PER_S


def test_tables_are_there_without_scripts(visit, result):
    """With scripts switched off the page says so and still has its figures."""
    page = visit(result, scripts=False)
    assert "switched off" in page.locator("noscript").inner_text()
    assert page.get_by_role("heading", name="Every stage at its peak").is_visible()
    assert not page.locator("#theme").is_visible()


def test_a_single_device_has_a_page(visit, timeline_of, result_of):
    """One stage, one microbatch, no message."""
    alone = result_of(timeline_of(1, 1))
    page = visit(replace(alone, communication={}))
    assert "no communication" in page.locator("#communication").inner_text()


@pytest.mark.parametrize(("theme", "width"), some(itertools.product(["light", "dark"], [1280, 400]), 1, tuples=True))
def test_readers_without_a_mouse_or_sight_find_everything(visit, result, faults_for_readers, width, theme):
    """No rule of axe-core is broken, of one result and of two: names, contrast, landmarks, what scrolls."""
    for shown in (result, (result, result)):
        page = visit(shown, width=width)
        page.emulate_media(color_scheme=theme)
        assert faults_for_readers(page) == {}


@pytest.mark.parametrize("kind", some(KINDS_OF_PLOT, 1))
def test_pages_of_pictures_have_no_faults_for_readers(tab, result, faults_for_readers, tmp_path, kind):
    """A picture as a page, with the tables of the result below it."""
    save_plot(result, kind, tmp_path / "p.html")
    tab.goto((tmp_path / "p.html").as_uri())
    assert faults_for_readers(tab) == {}
