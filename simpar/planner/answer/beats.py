"""Plans that are faster than with less recomputation only by how messages meet on shared links.

More work that is faster is a beat of messages (docs/modeling.md, "More work, and faster"), which kernels of varying
durations undo. A search ranks steps as they are predicted; of the plans that it shows, it says which gain by that.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from simpar.errors import TooManyOps
from simpar.layout.moves import forgone_savings
from simpar.neighbours import gains_by_meeting
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.portable import refusals
from simpar.planner.space.rows import ORIGIN
from simpar.program.emission.emit import at_most
from simpar.units import Ints

RECOMPUTE = "recompute"
MOST_OPS = 2_000_000
"""Larger steps are not compared."""


def is_beat(frontier: Frontier, row: int) -> bool:
    """Whether a simulated row is faster than the same with the least recomputation that fits by meetings alone."""
    mine = frontier.simulated[row]
    if not frontier.meets or mine.num_ops > MOST_OPS:
        return False
    problem = mine.problem
    inputs = {
        "model": problem.graph, "cluster": problem.cluster, "training": problem.training, "stack": problem.stack,
        "perturbation": problem.perturbation,
    }  # fmt: skip
    for less in _with_less(frontier, row):
        if (other := _simulated(frontier, less)) is not None and other.fits:
            return gains_by_meeting(inputs, other.report(), mine.report())
    return False


def _with_less(frontier: Frontier, row: int) -> list[int]:
    """Rows that differ from a row in recomputing less alone, in the order of the space."""
    rows, mine = frontier.rows, plan_of(frontier.rows, row)
    alike = np.ones(rows.count, dtype=bool)
    for name, code in rows.code.items():
        if name not in (RECOMPUTE, ORIGIN):
            alike &= code == code[row]
    others: Ints = np.flatnonzero(alike)
    return [at for at in others.tolist() if RECOMPUTE in forgone_savings(mine, plan_of(rows, at))]


def _simulated(frontier: Frontier, row: int) -> SimulatedPlan | None:
    """The simulated step of a row; None if it cannot be, or is not known to fit."""
    if (known := frontier.simulated.get(row)) is not None:
        return known
    if not np.isfinite(frontier.bound_s[row]) or refusals(frontier.rows, row) or not frontier.may_fit(row):
        return None
    with suppress(TooManyOps), at_most(MOST_OPS):
        return frontier.simulate(row)
    return None
