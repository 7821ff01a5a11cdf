"""The application in which the commands register, and what they share: exit codes, JSON output, spinner.

All heavy imports are inside the commands, so that ``simpar --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

OUR_FAULT, BAD_INPUT, INFEASIBLE, INTERRUPTED, UNREAD = 1, 2, 3, 130, 141
PIPED_WIDTH = 200
PIECE = 2000  # characters, in UTF-8 fewer bytes than the 8192 of the buffer of standard output
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which rich takes standard output for a terminal."""
UNSEEN = {"style", "highlight"}
"""What printing may be asked for that shows on no plain line."""
JSON_HELP = "Write the result as JSON; - is standard output"


Function = TypeVar("Function", bound=Callable[..., Any])


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


class Command(TyperCommand):
    """A command whose help lists what commands share under titles of its own, before the command's own options.

    An option without a value, of a variable that is not set, is refused: it would count as not given.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        for param in self.params:
            if param.param_type_name == "option" and ctx.params.get(param.name) == "":
                from simpar.errors import UserError

                raise UserError(f"{param.opts[0]} '': is empty; allowed: a value, or no {param.opts[0]}")
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by title."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        own: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            title = "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None)
            (groups.setdefault(title, []) if title else own).append(record)
        for title, records in {**groups, "Options": own}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class App(typer.Typer):
    """The application: its commands are of :class:`Command`."""

    def command(self, *args: Any, **extra: Any) -> Callable[[Function], Function]:
        """Register a command."""
        return super().command(*args, **{"cls": Command, **extra})


@contextmanager
def _aborting() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise typer.Abort from stop


app = App(
    name="simpar",
    cls=Commands,
    help="Simulate and plan distributed training of large models.",
    epilog="Example: simpar simulate llama-3.1-405b-16384-h100 --timeline timeline.png",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def write_out(text: str) -> None:
    """Write a long answer to standard output, all of it.

    A signal ends a write to a full pipe early, and Python takes what is left of one larger than its buffer for written:
    it gets pieces.
    """
    for at in range(0, len(text), PIECE):
        sys.stdout.write(text[at : at + PIECE])
    sys.stdout.flush()


def json_out(data: Any, path: str | None) -> bool:
    """Write data as JSON if asked to; returns True if standard output is taken."""
    import json

    from simpar.files import write_atomic

    text = json.dumps(data, indent=2) + "\n"
    if path == "-":
        write_out(text)
    elif path:
        write_atomic(Path(path), text)
    return path == "-"


def console() -> Console:
    """A console on standard output, wide if it is piped."""
    if sys.stdout.isatty() or any(os.environ.get(name) for name in COLOURED):
        return _rich_console()
    return _Piped()  # type: ignore[return-value]


def _rich_console() -> Console:
    from rich.console import Console

    class Out(Console):
        """Nobody reads on (``| head``): said by an exception, as for everything else that is written there."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Out(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


class _Piped:
    """Stands for a console that is no terminal: it writes plain lines, and imports rich for everything else."""

    is_terminal = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rich, name)

    @cached_property
    def _rich(self) -> Console:
        return _rich_console()

    def print(self, *what: Any, soft_wrap: bool = False, markup: bool = False, **how: Any) -> None:
        """Print something; a text is cut into lines unless ``soft_wrap``. Styles do not show.

        Tables with a ``plain`` text for this width are that text.
        """
        text: Any = what[0] if len(what) == 1 else "" if not what else None
        table = text.plain(PIPED_WIDTH) if hasattr(text, "plain") and not how else None
        if table is not None:
            sys.stdout.write(table)
        elif isinstance(text, str) and not markup and how.keys() <= UNSEEN and _is_plain(text, soft_wrap):
            sys.stdout.write(f"{text}\n")
        else:
            self._rich.print(*what, soft_wrap=soft_wrap, markup=markup, **how)

    def out(self, text: str, **how: Any) -> None:
        """Print a text as it is."""
        self.print(text, soft_wrap=True, **how)


def _is_plain(text: str, soft_wrap: bool) -> bool:
    """Whether a text is written as it is: no tabs or wide characters, and no line to be cut."""
    lines = text.split("\n")
    return text.isascii() and all(each.isprintable() and (soft_wrap or len(each) <= PIPED_WIDTH) for each in lines)


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
