"""Pages of results in a real headless browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simpar.report.html import save_report
from simpar.report.html.pair import save_pair
from simpar.report.result import Result


@pytest.fixture(scope="session")
def tab(browser: Any) -> Iterator[Any]:
    """One page for all tests of pages with scripts: a new one takes as long as what most of them do on it."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def visit(browser: Any, tab: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open the page of a result, or of two: ``visit(result, width=1280)``; fails on errors and foreign requests."""
    written, opened, trouble = [], [], []
    heard = {
        "console": lambda message: message.type == "error" and trouble.append(message.text),
        "pageerror": lambda error: trouble.append(str(error)),
        "request": lambda request: request.url in written or trouble.append(request.url[:200]),
    }

    def show(result: Result | tuple[Result, Result], *, width: int = 1280, scripts: bool = True) -> Any:
        path = tmp_path / f"report-{len(written)}.html"
        if isinstance(result, tuple):
            save_pair(result, path)
        else:
            save_report(result, path)
        written.append(path.as_uri())
        page = tab if scripts else browser.new_page(java_script_enabled=False)
        if page not in opened:
            opened.append(page)
            for event, hear in heard.items():
                page.on(event, hear)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_selector("#rows[data-to]")
        return page

    yield show
    for page in opened:
        for event, hear in heard.items():
            page.remove_listener(event, hear)
        if page is not tab:
            page.close()
    assert trouble == []
