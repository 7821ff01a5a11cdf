"""Pipeline schedules as tables of actions: a table of producers by name, imported when asked for."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from simpar import files
from simpar.plan.schedules.actions import Schedule

SCHEDULES = {
    "naive": "ordered:naive",
    "gpipe": "ordered:gpipe",
    "1f1b": "ordered:one_f_one_b",
    "interleaved": "ordered:interleaved",
    "breadth-first": "ordered:breadth_first",
}


@lru_cache(maxsize=64)
def make_schedule(name: str, num_ranks: int, num_microbatches: int, vpp: int = 1) -> Schedule:
    """The action table of a named schedule. Raises UserError for an unknown name or an impossible shape."""
    module, function = SCHEDULES[files.choose(name, SCHEDULES, "schedule")].split(":")
    schedule: Schedule = getattr(import_module(f"{__name__}.{module}"), function)(
        num_ranks, num_microbatches, vpp
    )
    return schedule
