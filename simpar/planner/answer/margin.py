"""What the requested probability of fitting costs: how much faster a plan can be that only fits as predicted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import Infeasible, TooManyOps
from simpar.plan.choices.memory import select_undecided
from simpar.planner.answer.baselines import AlternativesSearch
from simpar.planner.certify.branch_and_bound import Field
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import plan_of
from simpar.uncertainty.memory import AS_PREDICTED

MOST_UNSURE = 4
"""Plans simulated that fit as predicted, but with less than the requested probability."""


@dataclass(frozen=True)
class Margin:
    """The price of the requested probability of fitting, and the number of plans ``simulated`` to find it.

    ``told`` has ``fit_probability`` and ``gain`` (share of the faster step); None if no probability was requested.
    """

    told: dict[str, object] | None = None
    simulated: int = 0

    @staticmethod
    def of(field: Field, winner: int) -> Margin:
        """The price at the winner, a row of the field.

        The candidates for the faster plan are simulated plans that are not sure enough to fit and a few promising rows
        that were left out. Where recomputation is chosen by layer, it is chosen again under the looser limit.
        """
        problem, constraints, frontier = field.problem, field.problem.constraints, field.frontier
        if constraints.fit_probability == AS_PREDICTED or not problem.is_of_time:
            return Margin()
        assert frontier is not None, "a plan was simulated in its frontier"
        loose = replace(problem, constraints=replace(constraints, fit_probability=AS_PREDICTED))
        best_s = min(one.step_time_s for one in frontier.simulated.values() if one.fits_as_predicted)
        best_s, rejected = _rejected(loose, frontier, best_s)
        best_s, risky = _risky(loose, field, winner, best_s)
        gain = frontier.simulated[winner].step_time_s / best_s - 1
        return Margin({"fit_probability": AS_PREDICTED, "gain": gain}, rejected + risky)


def _rejected(loose: Problem, frontier: Frontier, best_s: float) -> tuple[float, int]:
    """The least step beside rows whose tables hold too much to be as sure as asked, and how many were simulated."""
    tried = 0
    for row, bound_s in sorted(frontier.rejected_bounds_s.items(), key=lambda one: one[1]):
        if bound_s >= best_s or tried == MOST_UNSURE:
            break
        if frontier.least_bytes(row, loose) <= loose.memory_limit_bytes:
            tried += 1
            with suppress(TooManyOps):
                simulated = measure(loose, plan_of(frontier.rows, row))
                best_s = min([best_s, *([simulated.step_time_s] if simulated.fits else [])])
    return best_s, tried


def _risky(loose: Problem, field: Field, winner: int, best_s: float) -> tuple[float, int]:
    """The least step beside promising rows that were not sure enough to fit, and how many were simulated."""
    need, limit_bytes, frontier = field.need, loose.memory_limit_bytes, field.frontier
    assert frontier is not None, "a plan was simulated in its frontier"
    risky = (need.needed_bytes > limit_bytes) | select_undecided(field.rows)
    risky &= need.predicted_bytes <= limit_bytes
    rows, need = field.rows.subset(risky), need.subset(risky)
    rows.problem = loose
    try:
        more = Field.among(rows, replace(need, needed_bytes=need.predicted_bytes), like=frontier)
    except Infeasible:  # no such row is legal with the late axes or expressible for the target
        return best_s, 0
    if more.frontier is None:
        return best_s, 0
    more.frontier.num_ops = frontier.num_ops  # as many ops may be simulated as the search has
    beside = AlternativesSearch(more, frontier.rows.subset([winner]))
    limit_s = np.where(beside.find_promising(more.frontier.bound_s < best_s), best_s, 0.0)
    for _, simulated in islice(beside.simulate_quickest(limit_s), MOST_UNSURE):
        best_s = min(best_s, simulated.step_time_s)
        np.minimum(limit_s, best_s, out=limit_s)
    return best_s, len(more.frontier.simulated)
