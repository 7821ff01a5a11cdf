"""When does it happen? Engines map a Program to start and finish times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from simpar import files
from simpar.compiled import is_kept
from simpar.dataclass import dataclass
from simpar.errors import TooContendedError, UserError

if TYPE_CHECKING:
    from simpar.program.ir.program import Program, Timing

OPEN = ("event", "sweep")
"""The modules that other rooms may import; all others are inner."""

ENGINES = ("auto", "reference", "plain", "sweep", "event")
MANY_OPS = 1_000_000  # beyond so many ops, of all Programs together, the compiled engine is worth its start
OPS_A_SHARE = 2  # a flow that is re-shared takes the plain engine as long as so many ops
TO_COMPILE = 2
"""How many times as many ops are worth compiling it, once per machine: 5 s, in which the plain one runs as many."""


def choose_engine(name: str, program: Program, *, more_ops: int = 0) -> Callable[[Program], Timing]:
    """The engine that runs a Program. Raises UserError for an unknown name, or for ``event`` without numba.

    ``auto`` takes ``sweep`` where no link is shared, ``event`` where it is worth its start, and ``plain`` otherwise.
    All give the same integers, those of ``reference``. The start is worth it in a process that has made it, or once
    this Program and those given to ``plain`` have many ops, together with ``more_ops`` that will be run: more where
    numba has yet to compile it.
    """
    files.choose(name, ENGINES, "engine")
    if name == "auto":
        if not (program.ops.work_bytes > 0).any():
            return _named("sweep")
        if is_started() or _PLAIN.spent_ops + len(program) + more_ops > _most_plain_ops():
            return _named("event")
        return _PLAIN.run
    if name == "event" and not find_spec("numba"):
        raise UserError('engine event: needs numba, which is not installed; pip install ".[fast]"')
    return _named(name)


def is_started() -> bool:
    """Whether this process has run the compiled engine, so that its start costs nothing any more."""
    event = sys.modules.get(f"{__name__}.event")
    return event is not None and event.Runner.has_run


@dataclass
class _PlainEngine:
    """The plain engine and what this process has spent in it, in ops: flows re-shared count as several."""

    spent_ops: float = 0.0

    def run(self, program: Program) -> Timing:
        """Start and finish of every op; what repeats in a step is run for some microbatches only."""
        from simpar.engine import periodic

        return periodic.run(program, self._whole)

    def _whole(self, program: Program) -> Timing:
        """Every op is run; the compiled engine takes over where links are shared so often that it pays."""
        from simpar.engine.plain import PlainRun

        left = max(_most_plain_ops() - self.spent_ops - len(program), 0.0)
        run = PlainRun(program, most_shared=left / OPS_A_SHARE)
        try:
            return run.timing()
        except TooContendedError:
            return _named("event")(program)
        finally:
            self.spent_ops += len(program) + OPS_A_SHARE * run.shared


_PLAIN = _PlainEngine()


def _most_plain_ops() -> float:
    """Ops that are run before the compiled engine is worth its start."""
    if not find_spec("numba"):
        return inf
    return MANY_OPS * (1 if is_kept(Path(__file__).with_name("event_kernel.py"), "simulate") else TO_COMPILE)


def _named(name: str) -> Callable[[Program], Timing]:
    run: Callable[[Program], Timing] = getattr(import_module(f"simpar.engine.{name}"), "run")  # noqa: B009
    return run
