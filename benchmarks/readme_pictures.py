"""Draw the pictures that README.md shows, from shipped scenarios.

Run: ``python benchmarks/readme_pictures.py`` in the checkout. The picture of the page is taken by a headless
chromium (playwright); without one it is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from simpar.neighbours import advise
from simpar.report.html import save_report
from simpar.report.plots import save_plot
from simpar.report.result import Result
from simpar.scenario import load_scenario
from simpar.simulation import simulate

SCENARIO = "gpt3-175b-64-a100"
FEWER_MICROBATCHES = "training.global_batch=8"  # so that each pass is wide enough to see
KINDS = ("timeline", "memory", "breakdown")
FOLDER = Path(__file__).parent.parent / "docs" / "images"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def main() -> None:
    """Write one PNG per picture to docs/images."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    FOLDER.mkdir(exist_ok=True)
    result = drawn()
    for kind in KINDS:
        save_plot(result, kind, FOLDER / f"{kind}.png")
        print(f"docs/images/{kind}.png")
    inputs = load_scenario(SCENARIO, settings=["training.global_batch=32"]).inputs()
    photograph(advise(simulate(**inputs), inputs), FOLDER / "page.png")


def drawn() -> Result:
    """The step whose pictures README.md shows."""
    return simulate(**load_scenario(SCENARIO, settings=[FEWER_MICROBATCHES]).inputs())


def photograph(result: Result, path: Path) -> None:
    """The part of a result's page from what to try next to memory over time, a microbatch followed."""
    browser = shutil.which("chromium")
    if browser is None:
        print("no chromium: the picture of the page is left as it is")
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        save_report(result, page_file := Path(folder) / "page.html")
        started = driver.chromium.launch(executable_path=browser, args=SWITCHES)
        page = started.new_page(viewport={"width": 1180, "height": 900})
        page.goto(page_file.as_uri())
        page.wait_for_selector("#rows[data-to]")
        top = page.locator("#try").bounding_box()
        bottom = page.locator("#memory-chart").bounding_box()
        if top is None or bottom is None:
            raise RuntimeError("the page lacks one of its sections")
        height = bottom["y"] + bottom["height"] - top["y"]
        page.screenshot(path=path, full_page=True, clip={"x": 0, "y": top["y"], "width": 1180, "height": height + 12})
        started.close()
    print("docs/images/page.png")


if __name__ == "__main__":
    main()
