"""When does it happen? Engines map a Program to start and finish times."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING

from simpar import files
from simpar.errors import TooContendedError, UserError

if TYPE_CHECKING:
    from simpar.native import NativeLibrary
    from simpar.program.ir.program import Program, Timing

OPEN = ("event", "sweep")
"""The modules that other rooms may import; all others are inner."""

ENGINES = ("auto", "reference", "plain", "sweep", "event")
OPS_A_SHARE = 2  # a flow that is re-shared takes the plain engine as long as so many ops


def choose_engine(name: str, program: Program, *, more_ops: int = 0) -> Callable[[Program], Timing]:
    """The engine that runs a Program. Raises UserError for an unknown name, or ``event`` where it cannot be compiled.

    ``auto`` takes ``sweep`` where no link is shared, else ``event`` where it was compiled before or is worth compiling,
    and ``plain`` otherwise. All give the same integers, those of ``reference``. It is worth compiling once this Program
    and those given to ``plain`` have many ops, together with ``more_ops`` that will be run.
    """
    files.choose(name, ENGINES, "engine")
    if name == "auto":
        if not (program.ops.work_bytes > 0).any():
            return _named("sweep")
        if _library().is_worth(len(program) + more_ops) and start_compiled():
            return _named("event")
        return _run_plain
    if name == "event" and not start_compiled():
        raise UserError(f"engine event: {_library().why_not}; allowed: auto, plain, sweep, reference")
    return _named(name)


def describe_compiled() -> str:
    """Where the compiled engine is kept, compiled now if need be, or why there is none."""
    return _library().loaded_from if start_compiled() else f"none, large jobs take longer: {_library().why_not}"


def start_compiled() -> bool:
    """Whether the compiled engine is there, compiled now if need be."""
    return _library().load_if_possible() is not None


def _library() -> NativeLibrary:
    from simpar.engine.event import LIBRARY

    return LIBRARY


def _run_plain(program: Program) -> Timing:
    """Start and finish of every op by the plain engine; what repeats in a step is run for some microbatches only."""
    from simpar.engine import periodic

    return periodic.run(program, _run_whole)


def _run_whole(program: Program) -> Timing:
    """Every op is run; the compiled engine takes over where links are shared so often that it pays."""
    from simpar.engine.plain import PlainRun

    library = _library()
    left = max(library.worth - library.done - len(program), 0)
    run = PlainRun(program, most_shared=inf if library.why_not else left / OPS_A_SHARE)
    try:
        return run.timing()
    except TooContendedError:
        return _named("event" if start_compiled() else "plain")(program)
    finally:
        library.done += len(program) + OPS_A_SHARE * run.shared


def _named(name: str) -> Callable[[Program], Timing]:
    run: Callable[[Program], Timing] = getattr(import_module(f"simpar.engine.{name}"), "run")  # noqa: B009
    return run
