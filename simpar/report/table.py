"""Tables of words: for terminals of any width, as CSV, and as HTML.

On a terminal, words wrap and minor columns are left out where it is narrow, but no cell is cut.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from simpar.dataclass import dataclass
from simpar.files import write_atomic

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

PADDING = 2
"""Characters between two columns."""


@dataclass(frozen=True)
class Column:
    """A column: its title, its justification, and how it adapts to a narrow console.

    ``least`` is the width down to which its words wrap (None: never). Columns with ``spare`` above 0 may be left out,
    the lowest first; those with 0 stay.
    """

    title: str
    justify: Literal["left", "right"] = "right"
    least: int | None = None
    spare: int = 0


def text(title: str = "", least: int | None = None) -> Column:
    """A column of words, justified left."""
    return Column(title, "left", least)


class ReportTable:
    """Columns (a text is the title of a column of numbers) and rows; a row that is too short ends with blank cells.

    A rich console prints it, with lines and bold titles on a terminal only.
    """

    def __init__(
        self, columns: Iterable[Column | str], rows: Iterable[Sequence[Any]] = (), *, header: bool = True
    ) -> None:
        self.columns = [Column(each) if isinstance(each, str) else each for each in columns]
        self.rows = list(rows)
        self.header = header

    @staticmethod
    def of_records(records: Sequence[Mapping[str, Any]]) -> ReportTable:
        """A column for every name in some record, blank where a record lacks it."""
        names = list(dict.fromkeys(name for record in records for name in record))
        return ReportTable(names, [[record.get(name, "") for name in names] for record in records])

    @property
    def titles(self) -> list[str]:
        """The titles of all columns."""
        return [column.title for column in self.columns]

    def add(self, *cells: Any) -> None:
        """Append a row."""
        self.rows.append(cells)

    def csv(self) -> str:
        """As CSV; cells that a spreadsheet would take for a formula become text."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([_safe(cell) for cell in row] for row in (self.titles, *self.rows))
        return stream.getvalue()

    def save_csv(self, path: str | Path) -> None:
        """Write :meth:`csv`, atomically."""
        write_atomic(path, self.csv())

    def html(self) -> str:
        """As an HTML table."""
        from html import escape

        head = "".join(f"<th>{escape(title)}</th>" for title in self.titles)
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{cells}</tr>" for cells in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def plain(self, width: int) -> str | None:
        """As a console of a width that is no terminal writes it, without the cost of importing rich.

        None where that takes more than padding: where words wrap, columns are left out, or cells have other than plain
        characters.
        """
        rows = [[*row, *[""] * (len(self.columns) - len(row))] for row in self.rows]
        if not all(_is_plain(cell) for line in (self.titles, *rows) for cell in line):
            return None
        lines = [self.titles, *rows] if self.header else rows
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        if not any(widths) or sum(_widths(self.titles, rows)) + _frame(False, len(widths)) > width:
            return None
        right = [column.justify == "right" for column in self.columns]
        return "".join(
            (" " * PADDING).join(
                cell.rjust(size) if rightwards else cell.ljust(size)
                for cell, size, rightwards in zip(line, widths, right, strict=True)
            )
            + "\n"
            for line in lines
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table for a console; columns that are left out because it is too narrow are named below.

        Titles take several lines, and words wrap, before a column is left out.
        """
        from rich import box
        from rich.table import Table as RichTable

        columns, titles, width = self.columns, self.titles, options.max_width
        rows = [(*row, *[""] * (len(columns) - len(row))) for row in self.rows]
        is_framed = console.is_terminal and self.header
        if sum(_widths(titles, rows)) + _frame(is_framed, len(titles)) > width:
            titles = [_broken(title, [row[at] for row in rows]) for at, title in enumerate(titles)]
        widths = _widths(titles, rows)
        least = [
            widths[at] if column.least is None else min(column.least, widths[at]) for at, column in enumerate(columns)
        ]
        shown, left_out = list(range(len(columns))), []
        for at in sorted((at for at in shown if columns[at].spare), key=lambda at: columns[at].spare):
            if sum(least[each] for each in shown) + _frame(is_framed, len(shown)) > width:
                shown.remove(at)
                left_out.append(columns[at].title)
        over = sum(widths[at] for at in shown) + _frame(is_framed, len(shown)) - width
        wrapped = dict[int, int]()
        for at in reversed(shown):
            if cut := min(max(over, 0), widths[at] - least[at]):
                wrapped[at], over = widths[at] - cut, over - cut
        table = RichTable(box=box.SIMPLE_HEAD if is_framed else None, show_header=self.header, pad_edge=False)
        for at in shown:
            justify, no_wrap = columns[at].justify, columns[at].least is None
            table.add_column(titles[at], justify=justify, width=wrapped.get(at), no_wrap=no_wrap, overflow="fold")
        for row in rows:
            table.add_row(*(row[at] for at in shown))
        yield table
        if left_out:
            yield f"left out for width: {', '.join(left_out)} (--json has them)"


def print_lines(console: Console, lines: Iterable[str], title: str = "", *, mark: str = "") -> None:
    """Print lines as they are, each behind a ``mark`` and all below a bold ``title``; nothing if there are none."""
    for at, line in enumerate(lines):
        if title and not at:
            console.print(f"\n{title}", style="bold")
        console.print(f"{mark}{line}", soft_wrap=True)


def print_rule(console: Console, title: str = "details") -> None:
    """Print what separates an answer from what stands behind it."""
    if console.is_terminal:
        console.rule(title, align="left", style="dim")
    else:
        console.print(f"--- {title} ---")


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "@", "-") else cell


def _is_plain(cell: Any) -> bool:
    """Whether a cell is written as it is: no tabs, wide characters or lines, and nothing that is cut at its end."""
    return isinstance(cell, str) and cell.isascii() and cell.isprintable() and not cell.endswith(" ")


def _broken(title: str, cells: Sequence[str]) -> str:
    """A title broken into lines as long as its longest cell or word."""
    return "\n".join(wrap(title, max([1, *map(len, (*cells, *title.split()))])))


def _widths(titles: Iterable[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Characters of the longest line of every column."""
    lines = [[title.split("\n"), *([row[at]] for row in rows)] for at, title in enumerate(titles)]
    return [max(len(line) for cell in column for line in cell) for column in lines]


def _frame(is_framed: bool, count: int) -> int:
    """Characters of a line outside the columns: around them and between them."""
    return PADDING * (count - 1) + (count + 1 if is_framed else 0)
