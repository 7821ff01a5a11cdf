"""Renew what commands print in docs/questions.md and docs/tutorial.md: after a calibration, or a change of a report.

    python benchmarks/renew_pages.py [--check]

The commands of a page run one after the other. Every line that it shows is replaced by the printed line that is most
like it, in order; a line that nothing printed is like is an error. The sentences around them are not touched, and may
name figures: read what this changes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from simpar.cli import run
from simpar.files import write_atomic

PAGES = ("questions.md", "tutorial.md")
DOCS = Path(__file__).parents[1] / "docs"
LIKE = 0.5
"""Least share of a line's characters that a line in its place has in common with it, digits taken as alike."""
COMMAND, LEFT_OUT = "$ simpar ", "..."


def printed_by(command: str) -> list[str]:
    """The lines that a command prints, as wide as the pages show them. Raises SystemExit if it fails."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = run(shlex.split(command.removeprefix(COMMAND)))
    if code:
        sys.exit(f"{command}: exit code {code}\n{text.getvalue()}")
    return [line.rstrip() for line in text.getvalue().splitlines()]


def likeness(one: str, two: str) -> float:
    """How alike two lines are if figures and spaces do not count."""
    return SequenceMatcher(None, *(re.sub(r"[\d.,]+", "0", " ".join(line.split())) for line in (one, two))).ratio()


def aligned(shown: Sequence[str], said: Sequence[str]) -> list[str]:
    """For every shown line the one that was said, in order, so that all together are the most alike.

    Raises SystemExit if one is like nothing.
    """
    if len(said) < len(shown):
        sys.exit(f"{len(said)} lines are printed, {len(shown)} shown")
    # of the shown lines so far in the first lines said: likeness, places
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (len(said) + 1)
    for line in shown:
        ahead: list[tuple[float, tuple[int, ...]]] = [(float("-inf"), ())]
        for at, other in enumerate(said):
            here = (best[at][0] + likeness(line, other), (*best[at][1], at))
            ahead.append(max(ahead[-1], here, key=lambda each: each[0]))
        best = ahead
    result = [said[at] for at in best[-1][1]]
    for line, other in zip(shown, result, strict=True):
        if likeness(line, other) < LIKE:
            sys.exit(f"nothing printed is like: {line}")
    return result


def renewed(block: Sequence[str]) -> list[str]:
    """The lines of a block with those that its commands print now. Raises SystemExit."""
    result: list[str] = []
    starts = [at for at, line in enumerate(block) if line.startswith(COMMAND)]
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        part = block[start + 1 : end]
        now = iter(aligned([line for line in part if line != LEFT_OUT], printed_by(block[start])))
        result += [block[start], *(line if line == LEFT_OUT else next(now) for line in part)]
    return result


def main() -> int:
    """Renew the pages, or say with ``--check`` which lines differ."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    check, differs = parser.parse_args().check, False
    os.environ["COLUMNS"] = "160"
    for page in PAGES:
        text = (DOCS / page).read_text()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
                lines = block.splitlines()
                now = renewed(lines)
                for old, new in zip(lines, now, strict=True):
                    if old != new:
                        print(f"{page}\n- {old}\n+ {new}")
                        differs = True
                text = text.replace(block, "".join(f"{line}\n" for line in now), 1)
        if not check:
            write_atomic(DOCS / page, text)
    return int(check and differs)


if __name__ == "__main__":
    sys.exit(main())
