"""The interval of a step time: it holds 90 of 100 measured runs outside every fit, by the support of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from simpar.uncertainty.support import ASPECTS, ENOUGH_SOURCES, FEW_RUNS, Support
from simpar.uncertainty.table import TimeErrors

THRESHOLDS = (1, 2, ENOUGH_SOURCES)
"""Numbers of pairs of source and family; errors are larger below each of them."""
SHORT_STEP_S = 1.0
"""Seconds below which a step is short: what a host does once, small kernels and waits decide, which differ the most."""
CONDITIONS = ("mixture", "spread", "long", "bits8", "bits4")
"""Traits that make errors larger by themselves."""


def lacks(support: Support, step_time_s: float = inf) -> dict[str, bool]:
    """Whether each condition that makes a prediction less sure holds, by the names of ``TimeErrors.lacking``.

    ``step_time_s`` is the predicted step.
    """
    traits = support.traits
    result = {f"{aspect}<{least}": support.shared[aspect] < least for aspect in ASPECTS for least in THRESHOLDS}
    result["runs"] = support.runs < FEW_RUNS
    conditions = (traits.mixture, traits.spread, traits.long, traits.bits == 8, traits.bits == 4)
    return result | dict(zip(CONDITIONS, conditions, strict=True)) | {"short": step_time_s < SHORT_STEP_S}


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
    def of(support: Support, errors: TimeErrors, step_time_s: float = inf) -> StepTimeError:
        """The error of a predicted step with some support."""
        missing = lacks(support, step_time_s)
        spread = errors.base * exp(sum(value for name, value in errors.lacking.items() if missing[name]))
        spread = max(spread, errors.seen.get(support.traits.stack, {}).get(support.traits.device, 0.0))
        return StepTimeError(spread, errors.layout * spread, errors.low * spread, errors.high * spread)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the prediction."""
        return (exp(self.high) - exp(self.low)) / 2

    def interval_s(self, step_time_s: float) -> tuple[float, float]:
        """(Low, high) seconds between which the measured step lies in nine of ten cases."""
        return step_time_s * exp(self.low), step_time_s * exp(self.high)
