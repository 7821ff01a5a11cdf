"""The application in which the commands register, and what they share: exit codes, JSON output, spinner.

All heavy imports are inside the commands, so that ``simpar --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

OUR_FAULT, BAD_INPUT, INFEASIBLE, INTERRUPTED, UNREAD = 1, 2, 3, 130, 141
PIPED_WIDTH = 200
JSON_HELP = "Write the result as JSON; - is standard output"


class Commands(TyperGroup):
    """The commands. Ctrl-C raises Abort, because typer would turn it into an exit code like a command's own."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments."""
        with _aborting():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _aborting():
            return super().invoke(ctx)


@contextmanager
def _aborting() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise typer.Abort from stop


app = typer.Typer(
    name="simpar",
    cls=Commands,
    help="Simulate and plan distributed training of large models.",
    epilog="Example: simpar simulate llama-3.1-405b-16384-h100 --timeline timeline.png",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def json_out(data: Any, path: str | None) -> bool:
    """Write data as JSON if asked to; returns True if standard output is taken."""
    import json

    from simpar.files import write_atomic

    text = json.dumps(data, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path:
        write_atomic(Path(path), text)
    return path == "-"


def console() -> Console:
    """A console on standard output, wide if it is piped."""
    from rich.console import Console

    class Out(Console):
        """Nobody reads on (``| head``): said by an exception, as for everything else that is written there."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Out(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


class _Silent(AbstractContextManager["_Silent"]):
    """Stands for a spinner where there is no terminal, without the cost of importing one."""

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, what: str) -> None:
        """Nothing to be seen."""


def working(what: str) -> Any:
    """A spinner on standard error; nothing if that is not a terminal."""
    if not sys.stderr.isatty():
        return _Silent()
    from rich.console import Console

    return Console(stderr=True).status(f"{what} ...")
