"""What measuring layouts is worth before a decision: by how much the layout chosen afterwards is expected to be faster.

After a measurement the layout with the shortest expected step is chosen. The mean gain of that is the value of
information (the knowledge gradient with correlated beliefs: Frazier, Powell and Dayanik, INFORMS Journal on Computing
21, 2009). Here sets of layouts are built one by one, each time with the cheapest of the layouts that gain about as much
as the best.
"""

from collections.abc import Sequence

import numpy as np

from simpar.dataclass import dataclass
from simpar.uncertainty.joint import JointErrors
from simpar.units import Floats

COMPARABLE_GAIN = 0.5
"""Share of the largest gain: a cheaper layout that gains at least this share is measured instead."""
MIN_GAIN = 1e-4
"""A gain, as a share of a step, that is not worth a run."""


@dataclass(frozen=True)
class Decision:
    """Layouts among which one is chosen, and those that may be measured before.

    ``step_s`` float64[candidates] are predicted steps of the candidates, which are the first layouts of ``errors``;
    ``options`` are indices of the layouts that may be measured, at ``costs`` float64[options] in any unit.
    """

    step_s: Floats
    errors: JointErrors
    options: Sequence[int]
    costs: Floats

    def worth_measuring(self, most: int) -> list[tuple[int, float]]:
        """Options (their index) in the order to measure them, each with the gain expected of all up to it.

        At most ``most`` options; fewer where further ones gain nothing. A gain is the share of a step by which the
        layout chosen afterwards is expected to be faster than the one that would be chosen now.
        """
        result: list[tuple[int, float]] = []
        gained = 0.0
        for _ in range(min(most, len(self.options))):
            chosen = [at for at, _ in result]
            gains = {at: self._gain([*chosen, at]) - gained for at in range(len(self.options)) if at not in chosen}
            most_gained = max(gains.values())
            if most_gained < MIN_GAIN:
                break
            tells = [at for at, gain in gains.items() if gain >= COMPARABLE_GAIN * most_gained]
            best = min(tells, key=lambda at: (self.costs[at], -gains[at]))
            gained += gains[best]
            result.append((best, gained))
        return result

    def _gain(self, chosen: Sequence[int]) -> float:
        """The expected gain of measuring some options."""
        candidates, measured = len(self.step_s), [self.options[at] for at in chosen]
        expected = np.log(self.step_s) + self.errors.mean[:candidates]
        told = self.errors.regression_on(measured)[:candidates]
        then = (expected[:, None] + told @ self.errors.measured(measured)).argmin(axis=0)
        steps = expected[:, None] + self.errors.draws[:candidates]
        return float((steps[expected.argmin()] - np.take_along_axis(steps, then[None], axis=0)[0]).mean())
