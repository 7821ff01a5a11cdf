"""What each kind of layout costs: the best plan of every kind, beside the best of all.

Layouts of a kind have one value of one choice: tensor groups within a domain or across domains, a short pipeline, a
ZeRO stage, and so on. All other choices are at their best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from simpar.architectures.recompute import says_layers
from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import PIPELINE
from simpar.planner.answer.continuation import Continuation
from simpar.planner.answer.explanations import describe_need
from simpar.planner.certify.branch_and_bound import Field
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.table import Rows, stride
from simpar.units import Flags, Floats, Ints

TOLERANCE = 0.005
"""A plan of a kind is simulated beside another one if it may be better by more than this share."""
EFFORT_S, MOST_EACH = 5.0, 4
"""Seconds of effort that all kinds together may take, each its part of what is left; plans simulated for one."""
FAR = 2.0
"""Kinds that are bounded above this many times the best step are not simulated."""
LENGTHS = (
    ("no pipeline", 1, 1), ("2 to 4 pipeline ranks", 2, 4), ("5 to 16 pipeline ranks", 5, 16),
    ("more than 16 pipeline ranks", 17, math.inf),
)  # fmt: skip
"""Kinds by pipeline ranks: words, fewest and most."""


@dataclass(frozen=True)
class LayoutKind:
    """Rows with one kind of value of a choice (``axis``), in words."""

    axis: str
    words: str
    mask: Flags


def list_kinds(rows: Rows) -> Iterator[LayoutKind]:
    """The kinds of layouts that rows may have, choice by choice."""
    domain = rows.problem.cluster.domain_size
    for axis, name, along in (("tp", "tensor", "tp"), ("ep", "expert", "dp")):
        apart = stride(rows, along) if "order" in rows.domain else 1 if axis == "tp" else rows["tp"] * rows["cp"]
        groups = {
            f"no {name} parallelism": rows[axis] == 1,
            f"{name} groups within a domain": (rows[axis] > 1) & (rows[axis] * apart <= domain),
            f"{name} groups across domains": (rows[axis] > 1) & (rows[axis] * apart > domain),
        }
        yield from (LayoutKind(axis, words, mask) for words, mask in groups.items())
    for words, few, most in LENGTHS:
        yield LayoutKind(PIPELINE, words, (rows[PIPELINE] >= few) & (rows[PIPELINE] <= most))
    for zero in rows.domain["zero"]:
        yield LayoutKind("zero", f"ZeRO-{zero}", rows["zero"] == zero)
    policies = [str(policy) for policy in rows.domain["recompute"] if not says_layers(str(policy))]
    for policy in policies:  # and no choices by layer that were made for "optimal"
        yield LayoutKind("recompute", f"recompute {policy}", rows.one_of("recompute", policy))


def cost_kinds(field: Field, winner: int, kinds: list[dict[str, object]]) -> None:
    """Append to ``kinds`` what the best plan of every kind costs; ``winner`` is a row of the field.

    Each is a mapping with ``axis``, ``kind`` (words), ``plan``, ``step_time_s``, ``loses_s``, ``at_least_s`` (no plan
    of the kind takes less time than this, by the bounds) and ``why`` it has no plan, if it has none.
    """
    frontier = field.frontier
    assert frontier is not None, "a plan was simulated in its frontier"
    fitting = {(one.axis, one.words): one.mask for one in list_kinds(frontier.rows)}
    every = [one for one in list_kinds(field.rows) if one.mask.any()]
    every = [one for one in every if not fitting[one.axis, one.words][winner]]
    search = Continuation(frontier, EFFORT_S)
    for at, one in enumerate(every):
        mask, said = fitting[one.axis, one.words], {"axis": one.axis, "kind": one.words}
        if mask.any():
            least_s = search.left_s * (1.0 - 1.0 / (len(every) - at))
            kinds.append(said | _cost(search, np.flatnonzero(mask), frontier.simulated[winner], least_s))
        else:
            needed = float(field.need.needed_bytes[one.mask].min())
            kinds.append(said | {"plan": None, "why": describe_need(needed, field.problem)})


def _cost(search: Continuation, rows: Ints, winner: SimulatedPlan, least_s: float) -> dict[str, object]:
    """The best plan of a kind, or the least that its bounds say; ``least_s`` of the effort have to be left."""
    frontier, simulated = search.frontier, search.frontier.simulated
    known = [(simulated[row].worth, row) for row in rows[search.done[rows]].tolist() if row in simulated]
    best = min((one for one in known if simulated[one[1]].fits), default=(np.inf, -1))

    def limit(asked: Ints) -> Floats:
        return np.full(len(asked), min(best[0] * (1.0 - TOLERANCE), FAR * winner.worth))

    for tried, (row, one) in enumerate(search.simulate_lowest(rows, limit, least_s), start=1):
        if one.fits:
            best = min(best, (one.worth, row))
        if tried == MOST_EACH:
            break
    if best[1] >= 0:
        left = search.open(rows, lambda asked: np.full(len(asked), best[0] * (1.0 - TOLERANCE)))  # also those far off
        step_s = simulated[best[1]].step_time_s
        return {
            "plan": fill_dp(frontier.rows, best[1]).model_dump(mode="json"),
            "step_time_s": step_s,
            "loses_s": step_s - winner.step_time_s,
            "at_least_s": min(step_s, float(frontier.bound_s[left].min(initial=np.inf))),
        }
    least_s = float(frontier.bound_s[rows[~search.done[rows]]].min(initial=np.inf))
    if np.isfinite(least_s):
        return {"plan": None, "at_least_s": least_s, "why": "not simulated"}
    return {"plan": None, "why": "none fits when simulated"}
