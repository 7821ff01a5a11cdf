"""Draw the picture of the local page that docs/ui.md shows: Llama 3.1 405B on 16,384 GPUs, one plan pinned.

Run: ``python benchmarks/ui_picture.py`` in the checkout, with the extra ``ui``. The picture is taken by a headless
chromium (playwright); without one it is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import threading
from pathlib import Path

from simpar.scenario import load_scenario
from simpar.ui.server import AppState, listen, make_app

SCENARIO, TOKENS = "llama-3.1-405b-16384-h100", "training.tokens=15T"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "ui.png"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE_MS = 120_000


def main() -> None:
    """Serve the page, change the plan by keyboard, write docs/images/ui.png."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    browser = shutil.which("chromium")
    if browser is None:
        print("no chromium: the picture is left as it is")
        return
    import uvicorn

    desk = AppState(load_scenario(SCENARIO, settings=[TOKENS]))
    with listen(None) as taken:
        server = uvicorn.Server(uvicorn.Config(make_app(desk), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            photograph(browser, f"http://127.0.0.1:{taken.getsockname()[1]}/")
        finally:
            server.should_exit = True
            thread.join()
            desk.close()
    print("docs/images/ui.png")


def photograph(browser: str, address: str) -> None:
    """The upper part of the page, with the pipeline halved and the plan before pinned."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=SWITCHES)
        page = started.new_page(viewport={"width": 1280, "height": 1340})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(address)
        page.get_by_text("interruptions").wait_for()
        page.get_by_role("button", name="Pin").click()
        page.locator("#pp").focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => location.hash.split('&pin')[0].includes('plan.pp=8')")
        page.get_by_text("interruptions").wait_for()
        page.locator("#took").evaluate("(note) => { note.textContent = ''; }")  # the time of a busy machine
        page.screenshot(path=PICTURE)
        started.close()


if __name__ == "__main__":
    main()
