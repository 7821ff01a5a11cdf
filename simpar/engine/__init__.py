"""When does it happen? Engines map a Program to start and finish times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from simpar import files
from simpar.compiled import is_kept
from simpar.dataclass import dataclass
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.program.ir.program import Program, Timing

OPEN = ("event", "sweep")
"""The modules that other rooms may import; all others are inner."""

ENGINES = ("auto", "reference", "plain", "sweep", "event")
MANY_OPS = 300_000  # beyond so many ops, of all Programs together, the compiled engine is worth its start
TO_COMPILE = 10
"""How many times as many ops are worth compiling it, once per machine."""


def choose_engine(name: str, program: Program, *, more_ops: int = 0) -> Callable[[Program], Timing]:
    """The engine that runs a Program. Raises UserError for an unknown name, or for ``event`` without numba.

    ``auto`` takes ``sweep`` where no link is shared, ``event`` where it is worth its start, and ``plain`` otherwise.
    All give the same integers, those of ``reference``. The start is worth it in a process that has made it, or once
    this Program and those given to ``plain`` have many ops, together with ``more_ops`` that will be run: more where
    numba has yet to compile it.
    """
    files.choose(name, ENGINES, "engine")
    if name == "auto":
        name = _fastest(program, more_ops)
    if name == "event" and not find_spec("numba"):
        raise UserError('engine event: needs numba, which is not installed; pip install ".[fast]"')
    run: Callable[[Program], Timing] = getattr(import_module(f"simpar.engine.{name}"), "run")  # noqa: B009
    return run


def is_started() -> bool:
    """Whether this process has run the compiled engine, so that its start costs nothing any more."""
    event = sys.modules.get(f"{__name__}.event")
    return event is not None and event.Runner.has_run


@dataclass
class _PlainOps:
    """How many ops this process has given to the plain engine."""

    count: int = 0


_PLAIN_OPS = _PlainOps()


def _fastest(program: Program, more_ops: int) -> str:
    if not (program.ops.work_bytes > 0).any():
        return "sweep"
    if is_started() or _is_worth_starting(_PLAIN_OPS.count + len(program) + more_ops):
        return "event"
    _PLAIN_OPS.count += len(program)
    return "plain"


def _is_worth_starting(num_ops: int) -> bool:
    if num_ops <= MANY_OPS or not find_spec("numba"):
        return False
    return num_ops > TO_COMPILE * MANY_OPS or is_kept(Path(__file__).with_name("event_kernel.py"), "simulate")
