"""The page in a real headless browser: a plan changed by keyboard, pinned, linked, searched, on a narrow screen."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from simpar.scenario import Scenario
from simpar.ui.worker_process import WorkerProcess
from tests.gate import some

PATIENCE_MS = 15_000  # machines that run tests are shared
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def address(state: dict[str, Any]) -> Iterator[str]:
    """A real server on a free port."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from simpar.ui.server import AppState, listen, make_app

    small = Scenario.model_validate({**state, "model": "tiny-llama"})  # whose neighbours are tried sooner
    desk = AppState(small, looking=WorkerProcess(warms=False), searching=WorkerProcess(warms=False))
    with listen(None) as taken:
        config = uvicorn.Config(make_app(desk), log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"
        server.should_exit = True
        thread.join()
    desk.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Any]:
    """Open the page at a link; fails on errors of scripts and on requests to others."""
    opened, trouble = [], []

    def show(link: str = "", *, width: int = 1280) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        opened.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.on("request", lambda request: request.url.startswith((address, "data:")) or trouble.append(request.url))
        page.goto(link or address)
        return page

    yield show
    for page in opened:
        page.close()
    assert trouble == []


def settle(page: Any, layout: str) -> None:
    """Wait until the numbers are those of a layout."""
    page.wait_for_function("(words) => document.getElementById('title').textContent.includes(words)", arg=layout)


def test_a_plan_is_made_by_hand(visit):
    """Keyboard, numbers, timeline, a trial taken, pins, back and forward, a batch typed in."""
    page = visit()
    settle(page, "pp2 dp2")
    before = page.locator("#figures dd").first.inner_text()

    page.locator("#tp:enabled").focus()
    page.keyboard.press("ArrowRight")
    settle(page, "tp2 pp2")
    assert page.locator("#figures dd").first.inner_text() != before
    assert page.locator("#tp").get_attribute("aria-valuetext") == "2"
    assert "plan.tp=2" in page.url
    assert page.locator("#spoken").inner_text().startswith("step time")

    page.get_by_role("button", name="Pin").click()
    page.wait_for_selector("#rows[data-to]")
    link = page.evaluate("() => location.hash")
    page.get_by_role("button", name=re.compile("^Try --")).first.click()
    page.wait_for_function("(link) => location.hash !== link", arg=link)
    title = page.locator("#title").inner_text()
    page.get_by_role("button", name="Back to pin 1").wait_for()
    assert "%" in page.locator("#pins tr", has_text="against this plan").inner_text()

    page.go_back()
    page.wait_for_function("(link) => location.hash.split('&pin')[0] === link", arg=link.split("&pin")[0])
    settle(page, "tp2 pp2")
    page.go_forward()
    page.wait_for_function("(words) => document.getElementById('title').textContent === words", arg=title)

    page.get_by_role("button", name="Back to pin 1").click()
    settle(page, "tp2 pp2")
    page.locator("#training\\.global_batch").fill("32")
    page.locator("#training\\.global_batch").press("Enter")
    page.wait_for_function("() => location.hash.includes('global_batch=32')")


FOCUS = "() => document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.tagName"
IN_VIEW = """() => {
  const of = document.activeElement, box = of.getBoundingClientRect();
  return of === document.body || (box.bottom > 0 && box.top < innerHeight);
}"""
REACHED = """() => {
  const of = document.activeElement, seen = getComputedStyle(of).outlineStyle !== 'none', first = !of.dataset.reached;
  of.dataset.reached = 'yes';
  return of === document.body ? 'end' : first && seen ? 'seen' : first ? of.outerHTML : 'again';
}"""
MISSED = """() => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')].filter((each) =>
  each.tabIndex >= 0 && !each.disabled && each.checkVisibility() && !each.dataset.reached
).map((each) => each.outerHTML)"""


@pytest.mark.slow
def test_the_keyboard_alone_reaches_and_uses_everything(visit):
    """Tab goes to every control, which shows its focus; Enter and Space act and keep the place; Escape closes."""
    page = visit()
    page.get_by_role("button", name=re.compile("^Try --")).first.wait_for()
    reached = []
    while not reached or reached[-1] == "seen":
        page.keyboard.press("Tab")
        page.wait_for_function(IN_VIEW)  # browsers scroll there in some frames
        reached.append(page.evaluate(REACHED))
    assert (reached[-1], page.evaluate(MISSED)) == ("end", [])

    def press(control: Any, key: str) -> None:
        control.focus()
        page.keyboard.press(key)

    press(page.locator("#pin"), "Space")
    press(page.locator("#pin"), "Enter")
    before = page.locator("#figures").get_attribute("data-answered")
    press(page.get_by_role("button", name="Back to pin 2"), "Enter")
    page.wait_for_function("(one) => document.getElementById('figures').dataset.answered !== one", arg=before)
    assert page.evaluate(FOCUS) == "Back to pin 2"
    press(page.get_by_role("button", name="Remove pin 2"), "Space")
    assert page.evaluate(FOCUS) == "Remove pin 1"
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUS) == "figures"
    with page.expect_download():
        press(page.locator("#yaml"), "Enter")
    page.locator("#yaml:enabled:focus").wait_for()
    title = page.locator("#title").inner_text()
    press(page.get_by_role("button", name=re.compile("^Try --")).first, "Enter")
    page.wait_for_function("(words) => document.getElementById('title').textContent !== words", arg=title)
    assert page.evaluate(FOCUS) == "figures"

    press(page.locator("#search summary"), "Enter")
    press(page.locator("#start"), "Escape")
    assert not page.locator("#start").is_visible()
    assert page.locator("#search summary").evaluate("(each) => each === document.activeElement")
    page.evaluate("() => { document.getElementById('target').replaceChildren(new Option('none')); }")
    press(page.locator("#export"), "Enter")
    page.locator("#said:not([hidden])").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#said").is_hidden()


@pytest.mark.slow
def test_an_answer_that_comes_late_leaves_the_history_alone(visit):
    """Back, and forward again before the answer: it is shown, and overwrites no link but its own.

    Browsers say that the address has changed some time after it has; here that is held back until the answer is there.
    """
    page = visit()
    page.add_init_script("addEventListener('hashchange', (event) => window.late && event.stopImmediatePropagation())")
    page.reload()
    settle(page, "pp2 dp2")
    page.locator("#tp:enabled").focus()
    page.keyboard.press("ArrowRight")
    settle(page, "tp2 pp2")
    link = page.evaluate("() => location.hash")
    held: list[Any] = []
    page.route("**/api/answer", lambda request: held.append(request))
    with page.expect_request("**/api/answer"):
        page.go_back()
    page.evaluate("() => { window.late = true; }")
    page.go_forward()
    page.wait_for_function("(link) => location.hash === link", arg=link)
    for request in held:
        request.continue_()
    page.unroute("**/api/answer")
    settle(page, "pp2 dp2")
    assert page.evaluate("() => location.hash") == link
    page.evaluate("() => { window.late = false; dispatchEvent(new HashChangeEvent('hashchange')); }")
    settle(page, "tp2 pp2")


@pytest.mark.slow
def test_a_link_opens_the_same_plan_and_pins_on_a_narrow_screen(visit):
    """The figures of the page that it is from, its pins, the timeline, and nothing wider than 400 pixels."""
    page = visit()
    settle(page, "pp2 dp2")
    page.get_by_role("button", name="Pin").click()
    page.get_by_role("button", name="Back to pin 1").wait_for()
    page.locator("#tp:enabled").focus()
    page.keyboard.press("ArrowRight")
    settle(page, "tp2 pp2")
    figure = page.locator("#figures dd").first.inner_text()

    again = visit(page.url, width=400)
    settle(again, "tp2 pp2")
    again.get_by_role("button", name="Back to pin 1").wait_for()
    assert again.locator("#figures dd").first.inner_text() == figure
    again.wait_for_selector("#rows[data-to]")
    assert again.evaluate("() => document.documentElement.scrollWidth") == 400
    again.get_by_role("button", name="Back to pin 1").click()
    settle(again, "pp2 dp2")


@pytest.mark.slow
def test_a_search_can_be_stopped_by_hand(visit):
    """It says that it was stopped, and another one may be started."""
    page = visit()
    settle(page, "pp2 dp2")
    page.get_by_text("Search for the best layout").click()
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Search", exact=True).and_(page.locator(":enabled")).wait_for()
    assert page.locator("#progress").inner_text().startswith("stopped")


def rl_link(address: str, state: dict[str, Any]) -> str:
    """The link of a state with a section."""
    sections = ("cluster", "training", "plan", "post_training")
    parts = {f"{name}.{key}": value for name in sections for key, value in state[name].items()}
    words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in parts.items()}
    return f"{address}#{urlencode({'model': state['model'], **words})}"


def test_a_step_of_reinforcement_learning_is_planned_by_hand(visit, address, rl_state, faults_for_readers):
    """Both pools over time, waits and staleness; pools apart by a menu, updates off policy by keyboard, and a link."""
    page = visit(rl_link(address, rl_state))
    settle(page, "GRPO colocated, on policy")
    page.wait_for_selector("#rows[data-to]")
    figures = page.locator("#figures").inner_text().lower()
    for words in ("training waits", "a replica waits", "staleness", "responses/s"):
        assert words in figures
    assert page.locator("#stage option").count() == 2
    assert page.locator("label", has_text="Responses an update").count() == 1
    assert faults_for_readers(page) == {}

    page.get_by_label("Placement").select_option("split")
    settle(page, "1 node to generate: GRPO split")
    page.get_by_label("Updates off policy", exact=True).fill("2")
    page.get_by_label("Updates off policy", exact=True).press("Enter")
    settle(page, "split, 2 off policy")
    page.get_by_role("button", name="Pin").click()
    assert "training waits" in page.locator("#pins").inner_text()
    page.get_by_label("Nodes that only generate").fill("3")
    page.get_by_label("Nodes that only generate").press("Enter")
    settle(page, "3 nodes to generate: GRPO split, 2 off policy")
    again = visit(page.url)
    settle(again, "3 nodes to generate: GRPO split, 2 off policy")
    page.go_back()
    settle(page, "1 node to generate: GRPO split, 2 off policy")


def test_names_are_shown_and_never_run(visit, address):
    """HTML in a link is text in the error, nothing else; a plan that cannot be says what is allowed."""
    page = visit(f"{address}#model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&cluster.hardware=dgx-h100"
                 "&training.seq_len=64&training.global_batch=8")  # fmt: skip
    page.locator("#error:not([hidden])").wait_for()
    assert "<img src=x onerror=alert(1)>" in page.locator("#error").inner_text()
    assert page.locator("#error").evaluate("each => getComputedStyle(each).position") == "sticky"  # seen when scrolled
    assert page.locator("img").count() == 0
    page.evaluate(SETTLED)


@pytest.mark.parametrize("width", some([1280, 400], 1))
def test_readers_without_a_mouse_or_sight_find_everything(visit, faults_for_readers, width):
    """No rule of axe-core is broken once a plan is shown: names, contrast, landmarks, what scrolls."""
    page = visit(width=width)
    page.wait_for_selector("#rows[data-to]", timeout=PATIENCE_MS)
    assert faults_for_readers(page) == {}
