"""Tables for terminals of any width: words wrap and minor columns are left out, but no cell is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WRAPPED = "wrapped"
PADDING = 2
"""Characters between two columns."""


@dataclass(frozen=True)
class Column:
    """A column: its title, its justification, and how it adapts to a narrow console.

    ``least`` is the width down to which its words wrap (None: never). Columns with ``spare`` above 0 may be left out,
    the lowest first; those with 0 stay.
    """

    title: str
    justify: Any = "right"
    least: int | None = None
    spare: int = 0


def table_of(console: Console, *columns: tuple[str, Any], header: bool = True) -> Table:
    """An empty table of columns (title, justification); lines and bold titles on a terminal only.

    A column of words that is justified as WRAPPED takes several lines on a narrow console, so that no other is cut.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal and header else None, show_header=header, pad_edge=False
    )
    for name, justify in columns:
        wraps = justify == WRAPPED
        table.add_column(name, justify="left" if wraps else justify, no_wrap=not wraps)
    return table


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under columns; name the columns that are left out if the console is too narrow.

    Titles take several lines, and words wrap, before a column is left out.
    """
    shown, left_out = list(range(len(columns))), []
    spare = sorted((at for at in shown if columns[at].spare), key=lambda at: columns[at].spare)
    titles = [column.title for column in columns]
    if sum(_widths(titles, rows)) + _frame(console, len(titles)) > console.width:
        titles = [_broken(title, [row[at] for row in rows]) for at, title in enumerate(titles)]
    widths = _widths(titles, rows)
    for at in spare:
        if _needed(console, columns, widths, shown) > console.width:
            shown.remove(at)
            left_out.append(columns[at].title)
    table = table_of(console, *((titles[at], columns[at].justify) for at in shown))
    over = sum(widths[at] for at in shown) + _frame(console, len(shown)) - console.width
    for at, drawn in reversed(list(zip(shown, table.columns, strict=True))):
        drawn.no_wrap, drawn.overflow = columns[at].least is None, "fold"
        if over > 0 and not drawn.no_wrap:
            cut = min(over, max(widths[at] - (columns[at].least or 0), 0))
            drawn.width, over = widths[at] - cut, over - cut
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    console.print(table)
    if left_out:
        console.print(f"left out for width: {', '.join(left_out)} (--json has them)", soft_wrap=True)


def _broken(title: str, cells: Sequence[str]) -> str:
    """A title broken into lines as long as its longest cell or word."""
    return "\n".join(wrap(title, max(map(len, (*cells, *title.split())), default=1)))


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Characters of the longest line of every column."""
    lines = [[title.split("\n"), *([row[at]] for row in rows)] for at, title in enumerate(titles)]
    return [max(len(line) for cell in column for line in cell) for column in lines]


def _needed(console: Console, columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int]) -> int:
    """Characters of a line of the table if all words are wrapped as far as allowed."""
    least = [widths[at] if (least := columns[at].least) is None else min(least, widths[at]) for at in shown]
    return sum(least) + _frame(console, len(shown))


def _frame(console: Console, count: int) -> int:
    """Characters of a line outside the columns: around them and between them."""
    return PADDING * (count - 1) + (count + 1 if console.is_terminal else 0)
