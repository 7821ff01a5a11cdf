"""When does it happen? Engines map a Program to start and finish times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simpar.program.program import Program, Timing

ENGINES = ("auto", "reference", "sweep")


def choose_engine(name: str, program: Program) -> tuple[str, Callable[[Program], Timing]]:
    """The engine of a name, and its own name; ``auto`` sweeps where no link is shared (the same integers, faster)."""
    from simpar import files

    files.choose(name, ENGINES, "engine")
    shared = bool((program.ops.work_bytes > 0).any())
    if name == "sweep" or (name == "auto" and not shared):
        from simpar.engine import sweep

        return "sweep", sweep.run
    from simpar.engine import reference

    return "reference", reference.run
