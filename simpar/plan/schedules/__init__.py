"""Pipeline schedules as tables of actions.

``SCHEDULES`` names the producers, imported when asked for. A producer is a function of pipeline ranks p,
microbatches m and chunks a rank vpp, and of ``costs`` (durations of F, I, W) where it looks at them; the
default of its vpp is the schedule's natural number of chunks. To add a schedule, add a file and its line
here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module

import numpy as np

from simpar import files
from simpar.plan.schedules.actions import Schedule, W

SCHEDULES = {
    "naive": "ordered:naive",
    "gpipe": "ordered:gpipe",
    "1f1b": "ordered:one_f_one_b",
    "interleaved": "ordered:interleaved",
    "breadth-first": "ordered:breadth_first",
    "zb-h1": "greedy:zb_h1",
    "zb-h2": "greedy:zb_h2",
    "zb-v": "zb_v:zb_v",
    "v-half": "patterns:v_half",
    "v-min": "patterns:v_min",
    "dualpipe": "dualpipe:dualpipe",
    "dualpipev": "dualpipe:dualpipe_v",
    "terapipe": "terapipe:terapipe",
}

EVEN_COSTS = (1.0, 1.0, 1.0)
_ALIASES = {
    "afab": "gpipe", "interleaved1f1b": "interleaved", "loopedbfs": "breadth-first", "bfs": "breadth-first",
    "zbvzerobubble": "zb-v",
}  # fmt: skip
_KINDS = {
    "zerobubble": ("zb-h1", "zb-h2", "zb-v"), "zb": ("zb-h1", "zb-h2", "zb-v"), "pipedream": ("1f1b",),
    "pipedreamflush": ("1f1b",), "dapple": ("1f1b",), "chimera": ("dualpipe", "dualpipev"),
}  # fmt: skip
"""Words of papers and frameworks for several schedules, or for ones like these."""


def meant_by(name: str) -> str:
    """``; did you mean 'zb-h1' or 'zb-v'?`` for a word that no schedule is called by; nothing for another."""
    bare = "".join(letter for letter in name.lower() if letter.isalnum())
    names = " or ".join(repr(one) for one in _KINDS.get(bare, ()))
    return f"; did you mean {names}?" if names else ""


def known_name(name: str) -> str | None:
    """The table's name for what people write ("1F1B", "ZB_H1", "Interleaved1F1B"), None if unknown."""
    bare = "".join(letter for letter in name.lower() if letter.isalnum())
    return _ALIASES.get(bare) or next((known for known in SCHEDULES if known.replace("-", "") == bare), None)


@cache
def producer(name: str) -> Callable[..., Schedule]:
    """The function that makes a schedule. Raises UserError for an unknown name."""
    module, function = SCHEDULES[files.choose(name, SCHEDULES, "schedule")].split(":")
    made: Callable[..., Schedule] = getattr(import_module(f"{__name__}.{module}"), function)
    return made


def natural_vpp(name: str) -> int:
    """Chunks a rank has under a schedule when nobody says otherwise. Raises UserError for an unknown name."""
    return int(inspect.signature(producer(name)).parameters["vpp"].default)


def looks_at_costs(name: str) -> bool:
    """Whether a schedule depends on the durations of its passes. Raises UserError for an unknown name."""
    return "costs" in inspect.signature(producer(name)).parameters


@cache
def splits_backward(name: str) -> bool:
    """Whether a schedule runs gradients of inputs and of weights apart. Raises UserError for an unknown name."""
    table = make_schedule(name, 2, 4)
    return any(bool(np.isin(columns.code, W).any()) for columns in table.ranks)


def describe() -> dict[str, str]:
    """Every schedule's name and what it is, in a sentence."""
    return {name: (inspect.getdoc(producer(name)) or "").splitlines()[0] for name in SCHEDULES}


@lru_cache(maxsize=64)
def make_schedule(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    vpp: int | None = None,
    *,
    costs: tuple[float, float, float] = EVEN_COSTS,
) -> Schedule:
    """The action table of a named schedule for ``vpp`` chunks a rank (None: the schedule's natural number).

    ``costs`` are durations of F, I and W of one stage, in any unit; schedules that are fixed orders ignore
    them. Raises UserError for an unknown name or an impossible shape.
    """
    make = producer(name)
    chunks = natural_vpp(name) if vpp is None else vpp
    if looks_at_costs(name):
        return make(num_ranks, num_microbatches, chunks, costs=costs)
    return make(num_ranks, num_microbatches, chunks)
