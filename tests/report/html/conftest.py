"""Pages of results in a real headless browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simpar.report.html import save_report
from simpar.report.result import Result


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a result's page: ``visit(result, width=1280, theme="light")``; fails on errors and foreign requests."""
    opened, trouble = [], []

    def show(result: Result, *, width: int = 1280, theme: str = "light", scripts: bool = True) -> Any:
        path = tmp_path / "report.html"
        save_report(result, path)
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=theme, java_script_enabled=scripts
        )
        opened.append(page)
        page.on("console", lambda message: message.type == "error" and trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: request.url == path.as_uri() or trouble.append(request.url[:200]))
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_selector("#rows[data-to]")
        return page

    yield show
    for page in opened:
        page.close()
    assert trouble == []
