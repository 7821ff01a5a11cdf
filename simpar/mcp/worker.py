"""The process that answers one call: a request as JSON on standard input, lines of JSON on standard output.

``python -P -m simpar.mcp.worker FOLDER`` reads {"tool", "arguments", "time_limit_s"} and writes {"doing": words} any
number of times, then {"answer": data} or {"refused": words}. A process a call can be ended at any moment, and what it
may open is held by the interpreter.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from simpar.errors import UserError
from simpar.mcp.folder import confine
from simpar.mcp.tools import call

EVERY_S = 0.2
"""Least seconds between two lines of what is being done."""


def main(folder: str) -> None:
    """Answer the request on standard input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    os.chdir(folder)
    asked = json.load(sys.stdin)
    confine(Path.cwd())
    _write(out, answer(asked, out))


def answer(asked: dict[str, Any], out: TextIO) -> dict[str, Any]:
    """The last line."""
    last_s = -EVERY_S

    def say(words: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= EVERY_S:
            last_s = time.monotonic()
            _write(out, {"doing": words})

    try:
        return {"answer": call(asked["tool"], asked["arguments"], say, asked["time_limit_s"])}
    except UserError as error:
        return {"refused": str(error)}


def _write(out: TextIO, line: dict[str, Any]) -> None:
    out.write(json.dumps(line, allow_nan=False) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
