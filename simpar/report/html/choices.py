"""The page of choices: a table with filters, an order and a chart of speed over memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.files import write_atomic
from simpar.report.html import FOLDER, environment, fill_template


@dataclass(frozen=True)
class ChoiceFacts:
    """What the page's script knows of a row: its shade, how fast it is (0: not simulated), memory, and whether it fits.

    Of the rows that fit, the fastest has the highest ``rate``.
    """

    shade: str
    rate: float
    memory_gib: float
    fits: bool


def save_choices(page: Mapping[str, Any], facts: Sequence[ChoiceFacts], path: str | Path) -> None:
    """Write the page atomically; ``facts`` are those of the rows of its table."""
    shown = [
        {"shade": fact.shade, "rate": f"{fact.rate:.6g}", "memory": f"{fact.memory_gib:.4g}", "fits": fact.fits}
        for fact in facts
    ]
    template = environment().get_template("sweep.html.j2")
    script = (FOLDER / "choose.js").read_text(encoding="utf-8")
    write_atomic(path, fill_template(template, {**page, "facts": shown, "choose": script}))
