"""The interval of a step time: where 90 of 100 measured runs lie that nothing was fitted to, by what supports them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from simpar.uncertainty.support import ASPECTS, FEW, SEVERAL, Support
from simpar.uncertainty.table import TimeErrors

THRESHOLDS = (1, 2, SEVERAL)
"""Below so many pairs of source and family errors are larger each time."""
CONDITIONS = ("mixture", "spread", "long", "bits8", "bits4")
"""Traits that make errors larger by themselves."""


def lacks(support: Support) -> dict[str, bool]:
    """What makes a prediction less sure, by the names of ``TimeErrors.lacking``."""
    traits = support.traits
    found = {
        f"{aspect}<{least}": support.shared[aspect] < least for aspect in ASPECTS for least in THRESHOLDS
    }
    found["runs"] = support.runs < FEW
    conditions = (traits.mixture, traits.spread, traits.long, traits.bits == 8, traits.bits == 4)
    return found | dict(zip(CONDITIONS, conditions, strict=True))


@dataclass(frozen=True)
class StepTimeError:
    """The spread of log(measured / predicted) of a step time, and of its part that layouts do not share.

    ``low`` and ``high`` bound nine in ten errors.
    """

    spread: float
    layout: float
    low: float
    high: float

    @staticmethod
    def of(support: Support, errors: TimeErrors) -> StepTimeError:
        """The error of a prediction with some support."""
        missing = lacks(support)
        spread = errors.base * exp(sum(value for name, value in errors.lacking.items() if missing[name]))
        spread = max(spread, errors.seen.get(support.traits.stack, {}).get(support.traits.device, 0.0))
        return StepTimeError(spread, errors.layout * spread, errors.low * spread, errors.high * spread)

    @property
    def half_width(self) -> float:
        """Half of the interval, over the prediction."""
        return (exp(self.high) - exp(self.low)) / 2

    def interval_s(self, step_time_s: float) -> tuple[float, float]:
        """Seconds between which the measured step lies in nine of ten cases."""
        return step_time_s * exp(self.low), step_time_s * exp(self.high)
