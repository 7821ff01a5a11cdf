"""When does it happen? Engines map a Program to start and finish times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from simpar import files
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.program.ir.program import Program, Timing

OPEN = ("event", "sweep")
"""The modules that other rooms may import; all others are inner."""

ENGINES = ("auto", "reference", "plain", "sweep", "event")
MANY_OPS = 300_000  # beyond this many ops the compiled engine is worth its start-up


def choose_engine(name: str, program: Program) -> tuple[str, Callable[[Program], Timing]]:
    """(Name, function) of an engine. Raises UserError for an unknown name, or for ``event`` without numba.

    ``auto`` takes ``sweep`` where no link is shared, else ``event`` for large programs where numba is installed, and
    ``plain`` otherwise: all give the same integers, those of ``reference``.
    """
    files.choose(name, ENGINES, "engine")
    if name == "auto":
        name = _fastest(program, len(program))
    if name == "event" and not find_spec("numba"):
        raise UserError('engine event: needs numba, which is not installed; pip install ".[fast]"')
    return _named(name)


def choose_engine_for_many(program: Program, num_ops: int) -> tuple[str, Callable[[Program], Timing]]:
    """(Name, function) of the fastest engine for one of many programs, with ``num_ops`` ops in all so far."""
    return _named(_fastest(program, num_ops))


def choose_engine_here(program: Program) -> Callable[[Program], Timing]:
    """The fastest engine where its name does not matter; the compiled one too if this process has started it."""
    started = f"{__name__}.event" in sys.modules
    return _named(_fastest(program, MANY_OPS + 1 if started else len(program)))[1]


def _named(name: str) -> tuple[str, Callable[[Program], Timing]]:
    return name, getattr(import_module(f"simpar.engine.{name}"), "run")  # noqa: B009


def _fastest(program: Program, num_ops: int) -> str:
    if not (program.ops.work_bytes > 0).any():
        return "sweep"
    return "event" if num_ops > MANY_OPS and find_spec("numba") else "plain"
