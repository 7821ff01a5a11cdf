"""Which simulated steps are held, so that their full results can be made without running them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.planner.certify.exact import MANY_OPS, SimulatedPlan
from simpar.units import Ints

MAX_KEPT_STEPS, MAX_KEPT_OPS, REPORTED = 6, 200_000, 8
"""How many of the best simulated steps are kept for reports, and how many ops they may have together; how many of the
best plans are reported before their steps are let go."""


@dataclass
class HeldSteps:
    """The plans of a search whose steps are held, and the best few by row, best first.

    Of a layout, answers show the best plan alone: ``_shown`` are the identities of those that they will probably show.
    """

    _held: list[SimulatedPlan] = field(default_factory=list)
    _best: dict[int, SimulatedPlan] = field(default_factory=dict)
    _shown: set[int] = field(default_factory=set)

    def add(self, row: int, simulated: SimulatedPlan, layouts: Callable[[Ints], Ints]) -> None:
        """Take in a simulated row; ``layouts`` numbers the layouts of rows."""
        best = dict(sorted({**self._best, row: simulated}.items(), key=lambda each: each[1].rank)[:REPORTED])
        if [*best] != [*self._best]:
            numbers = layouts(np.array([*best], dtype=np.int64)).tolist()
            first = dict(zip(numbers[::-1], [*best.values()][::-1], strict=True))
            self._shown = {id(each) for each in first.values()}
        self._best = best
        if simulated.kept:
            self._held.append(simulated)

    def let_go(self, last: SimulatedPlan | None = None) -> None:
        """Free all steps but ``last`` and the best few that are not large; the best plans are reported before.

        A report takes a fraction of what running a large step again would, but where ranks are slow: then it runs the
        step without them, which few of the plans will need.
        """
        ops, self._held = 0, [one for one in self._held if one.kept]
        for at, one in enumerate(sorted(self._held, key=lambda each: each.rank)):
            ops += one.num_ops
            slow = bool(one.problem.perturbation.slow_ranks)
            best = not at and (slow or one.num_ops <= MANY_OPS)
            if best or one is last or (at < MAX_KEPT_STEPS and ops <= MAX_KEPT_OPS):
                continue
            if id(one) in self._shown and one.fits and not slow:
                one.report()
            one.release()
