"""The board of accuracy: errors by population and source, by device and by software stack, over releases; worst rows.

Usage: python benchmarks/accuracy_board.py --record RELEASE [--validation FILE]

Every build of the documentation writes the board from docs/validation.md, which holds the present errors, and
docs/accuracy.csv, which keeps those of releases. --record adds a release: run it once docs/validation.md is final.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VALIDATION, KEPT = ROOT / "docs" / "validation.md", ROOT / "docs" / "accuracy.csv"
FIGURES = ("modelled", "time median", "time p90", "memory median", "tau", "inside")
"""Columns of docs/validation.md that are kept of a release: errors in percent, a rank correlation, a share."""
AXES = ("source", "device", "stack")
"""Columns by one of which a table has its rows."""
ALL = "**all**"
NOW = "now"
WORST_BY_SOURCE = "time p90"
INTRODUCTION = """\
# Board of accuracy

Errors of predicted against measured runs that were published, by the population and the source that they are from, by
device and by software stack, at each release and now. Time and memory are in percent (the median, and what nine in ten
rows stay below); tau is the rank correlation of layouts of one job; inside is the share of rows whose time lies in its
90 % interval. Nothing is left out: rows of doubtful sources count, the worst rows are below, and what is not modelled
is listed in [validation](../validation.md), from which every build of these pages makes this one.

A run that is missing is added by one row: "Add a measured run" in the guide for contributors says how.
"""


def tables(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Every table of a Markdown page, behind the title above it."""
    title, rows, names = "", list[dict[str, str]](), list[str]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            title = line.lstrip("# ").strip()
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not names:
                names = cells
            elif not set(line) <= set("|- :"):
                rows.append(dict(zip(names, cells, strict=True)))
        elif names:
            yield title, rows
            rows, names = [], []


def errors(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The figures of a validation page by (population, source), and by (title of the table, device or stack)."""
    result = {}
    for title, rows in tables(text):
        name = next((each for each in AXES if rows and each in rows[0]), None)
        if name and set(FIGURES) <= rows[0].keys():
            for row in rows:
                result[title, row[name]] = {figure: row[figure] for figure in FIGURES}
    return result


def axis_of(text: str, population: str) -> str:
    """What the rows of a population's table are: sources, devices or stacks."""
    (rows,) = [rows for title, rows in tables(text) if title == population and rows and set(FIGURES) <= rows[0].keys()]
    return next(each for each in AXES if each in rows[0])


def worst_rows(text: str) -> list[dict[str, str]]:
    """The table of the worst step times."""
    return next(rows for title, rows in tables(text) if "worst" in title)


def kept(path: Path = KEPT) -> dict[str, dict[tuple[str, str], dict[str, str]]]:
    """Releases with their figures, oldest first."""
    result: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            key = row.pop("population"), row.pop("source")
            result.setdefault(row.pop("release"), {})[key] = row
    return result


def record(release: str, text: str, path: Path = KEPT) -> None:
    """Keep the figures of a release; one of that name is replaced."""
    releases = kept(path) if path.exists() else {}
    releases[release] = errors(text)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["release", "population", "source", *FIGURES])
        for name, figures in releases.items():
            for (population, source), row in figures.items():
                writer.writerow([name, population, source, *(row[figure] for figure in FIGURES)])


def board(text: str, releases: Mapping[str, Mapping[tuple[str, str], Mapping[str, str]]]) -> str:
    """The page."""
    present = errors(text)
    lines = [INTRODUCTION]
    for population in dict.fromkeys(population for population, _ in present):
        lines += ["", f"## {population}", "", "### Over releases", ""]
        every = {**releases, NOW: present}
        rows = [[name, *_figures(each.get((population, ALL)))] for name, each in every.items()]
        lines += table(["release", *FIGURES], [row for row in rows if any(row[1:])])
        axis = axis_of(text, population)
        lines += ["", f"### By {axis}, the widest errors first", ""]
        last = next(reversed(releases.values()), {})
        mine = [(source, row) for (where, source), row in present.items() if where == population and source != ALL]
        mine.sort(key=lambda one: -_number(one[1][WORST_BY_SOURCE]))
        head = [axis, *FIGURES, "time median at the last release"]
        lines += table(head, [[s, *_figures(row), _was(last, s)] for s, row in mine])
    worst = worst_rows(text)
    lines += ["", f"## The {len(worst)} worst rows", ""]
    lines += table(list(worst[0]), [list(row.values()) for row in worst])
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _figures(row: Mapping[str, str] | None) -> list[str]:
    return [row.get(name, "") if row else "" for name in FIGURES]


def _was(last: Mapping[tuple[str, str], Mapping[str, str]], source: str) -> str:
    """The median of a source at a release, whatever its population was called then."""
    return next((row["time median"] for (_, name), row in last.items() if name == source), "new")


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"-?[\d.]+", text) else 0.0


def main() -> None:
    """Keep a release."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--record", required=True, metavar="RELEASE")
    parser.add_argument("--validation", type=Path, default=VALIDATION, help="a page of that release")
    asked = parser.parse_args()
    record(asked.record, asked.validation.read_text(encoding="utf-8"))
    print(f"{KEPT.relative_to(ROOT)}: {', '.join(kept())}")


if __name__ == "__main__":
    main()
