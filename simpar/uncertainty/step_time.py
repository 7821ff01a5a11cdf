"""The interval of a step time: it holds 90 of 100 measured runs outside every fit, by the support of the prediction."""

from __future__ import annotations

from math import exp, hypot, inf, log

from simpar.dataclass import dataclass
from simpar.uncertainty.support import ASPECTS, ENOUGH_SOURCES, FEW_RUNS, Support
from simpar.uncertainty.table import TimeErrors

THRESHOLDS = (1, 2, ENOUGH_SOURCES)
"""Numbers of pairs of source and family; errors are larger below each of them."""
SHORT_STEP_S = 1.0
"""Seconds below which a step is short: what a host does once, small kernels and waits decide, which differ the most."""
NINE_IN_TEN = 2 * 1.645
"""Standard deviations of a normal between the ends of the interval that holds nine in ten."""
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
class UntoldTime:
    """Shares of a step in which something is ``busy`` that no run tells, such as a network, and in which ranks wait.

    ``exposed`` is the latter. ``factors`` are logarithms of the least and the most of its time over the predicted one;
    ``least`` is the least part that it can take: a network's at the rate of its wires. What ``is_common`` takes as much
    longer in every layout, as kernels do under another clock.
    """

    busy: float
    exposed: float
    least: float
    factors: tuple[float, float]
    is_common: bool = False

    @property
    def errors(self) -> tuple[float, float]:
        """By how much the logarithm of the step may be below and above, (<= 0, >= 0), if it takes so long.

        What is exposed grows and shrinks with it; and no step is shorter than that which is busy.
        """
        faster, slower = max(exp(self.factors[0]), self.least), exp(self.factors[1])
        above = max(1 + self.exposed * (slower - 1), self.busy * slower)
        return log(1 + self.exposed * (min(faster, 1.0) - 1)), log(max(above, 1.0))


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
        spread = max(spread, errors.sorted * support.traits.sorted)
        return StepTimeError(spread, errors.layout * spread, errors.low * spread, errors.high * spread)

    def over(self, untold: UntoldTime) -> StepTimeError:
        """The same where a part of the step is told by no run: independent errors, added in squares.

        The whole interval of that part counts as three and a quarter of its spreads, as that of a normal does.
        """
        low, high = untold.errors
        spread = hypot(self.spread, (high - low) / NINE_IN_TEN)
        layout = self.layout if untold.is_common else self.layout * spread / self.spread
        return StepTimeError(spread, layout, -hypot(self.low, low), hypot(self.high, high))

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the prediction."""
        return (exp(self.high) - exp(self.low)) / 2

    def interval_s(self, step_time_s: float) -> tuple[float, float]:
        """(Low, high) seconds between which the measured step lies in nine of ten cases."""
        return step_time_s * exp(self.low), step_time_s * exp(self.high)
