"""Joint errors of layouts, and what measuring some of them tells about the others.

Errors are those of :mod:`simpar.uncertainty.ties`: errors of the parts of a step, which all layouts share, and an error
of each layout's own, of whose variance KIN is shared with the same layout on other numbers of nodes. In addition all
layouts share one factor, which changes no order but is part of every measurement. A measured step shifts the expected
error of another layout by a regression, as far as the two err together, and reduces its variance accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt

import numpy as np

from simpar.dataclass import dataclass
from simpar.uncertainty.own_runs import MeasuredLayout
from simpar.uncertainty.ties import DRAWS, SEED, covariance, draw_related_errors
from simpar.units import Floats

MEASUREMENT_SPREAD = 0.01
"""Standard deviation of the logarithm of a measured step when it is measured again."""
SHARED_VARIANCE = 0.6
"""Share of the variance of a layout's own error that the same layout on more or fewer nodes has too.

Errors of one layout on different numbers of devices correlate by 0.60 over the development tables and by 0.91 in a grid
of A100 runs (those of other layouts of the same model by 0.01 to 0.16), by 0.17 in the Ultra-Scale Playbook, whose
network changed from job to job (benchmarks/kin_errors.py).
"""
QUANTILE_95 = 1.645
"""Standard deviations between the middle of a normal distribution and the ends of its central nine tenths."""


@dataclass(frozen=True)
class JointErrors:
    """Errors, log(measured / predicted), of some layouts.

    ``mean`` float64[layouts] are the expected errors, ``draws`` float64[layouts, DRAWS] drawn deviations from them, and
    ``spread`` float64[layouts, layouts] is the covariance of these deviations.
    """

    mean: Floats
    draws: Floats
    spread: Floats

    @classmethod
    def of(cls, shares: Floats, kin: Sequence[str], layout_spread: float, common: float) -> JointErrors:
        """The errors before anything is measured; ``shares`` float64[layouts, parts] are the parts' shares of a step.

        Layouts with one ``kin`` are the same on different numbers of nodes. ``layout_spread`` is that of a layout's
        certainty, ``common`` the standard deviation of the error that all layouts share.
        """
        names = sorted(set(kin))
        family = np.array([[each == name for name in names] for each in kin], dtype=np.float64)
        together = np.hstack([np.sqrt(1 - SHARED_VARIANCE) * np.eye(len(kin)), np.sqrt(SHARED_VARIANCE) * family])
        random = np.random.Generator(np.random.Philox(key=SEED + 1))
        drawn = common * random.standard_normal(DRAWS // 2)
        draws = draw_related_errors(shares, layout_spread, together) + np.hstack([drawn, -drawn])
        return cls(np.zeros(len(shares)), draws, covariance(shares, layout_spread, together) + common**2)

    def regression_on(self, seen: Sequence[int]) -> Floats:
        """Regression coefficients of all errors on the measured errors of layouts ``seen``: float64[layouts, seen]."""
        among = self.spread[np.ix_(seen, seen)] + MEASUREMENT_SPREAD**2 * np.eye(len(seen))
        return np.asarray(np.linalg.solve(among, self.spread[:, seen].T).T)

    def measured(self, seen: Sequence[int]) -> Floats:
        """The unexpected part of measured errors of the layouts ``seen`` in every draw: float64[seen, DRAWS]."""
        random = np.random.Generator(np.random.Philox(key=SEED + 2))
        noise = MEASUREMENT_SPREAD * random.standard_normal((len(seen), DRAWS // 2))
        return np.asarray(self.draws[seen] + np.hstack([noise, -noise]))

    def after(self, seen: Sequence[int], errors: Floats) -> JointErrors:
        """The errors that remain once the layouts ``seen`` were measured with ``errors`` float64[seen]."""
        told = self.regression_on(seen)
        return JointErrors(
            self.mean + told @ (errors - self.mean[seen]),
            self.draws - told @ self.measured(seen),
            self.spread - told @ self.spread[seen],
        )


@dataclass(frozen=True)
class Known:
    """What is known of a layout before it is measured: its ``kin``, and the shares of the parts of its step."""

    kin: str
    shares: Mapping[str, float]


def joint_errors(
    layouts: Mapping[str, Known], measured: Sequence[MeasuredLayout], layout_spread: float, common: float
) -> JointErrors:
    """Errors of ``layouts``, in their order, given those of them and of other layouts that were ``measured``."""
    everything = dict(layouts)
    for one in measured:
        everything.setdefault(one.layout, Known(one.kin, one.shares))
    names = list(everything)
    parts = sorted({part for each in everything.values() for part in each.shares})
    table = np.array([[each.shares.get(part, 0.0) for part in parts] for each in everything.values()])
    shares = table - table[: len(layouts)].mean(axis=0)
    result = JointErrors.of(shares, [each.kin for each in everything.values()], layout_spread, common)
    if not measured:
        return result
    return result.after([names.index(one.layout) for one in measured], np.array([one.error for one in measured]))


def common_spread(interval_s: tuple[float, float], layout_spread: float) -> float:
    """Standard deviation of the error that all layouts share: a step interval's spread less their own errors."""
    low_s, high_s = interval_s
    whole = log(high_s / low_s) / (2 * QUANTILE_95)
    own = float(covariance(np.zeros((1, 1)), layout_spread, np.ones((1, 1)))[0, 0])
    return sqrt(max(whole**2 - own, 0.0))
