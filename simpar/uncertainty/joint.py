"""Errors of layouts together, and what measuring some of them says of the others.

They err as in :mod:`simpar.uncertainty.ties`: by parts of a step that all share, and each by something of its own;
beside that all by one common factor, which changes no order but hides in every measurement. A measured step moves what
is expected of another layout as far as the two err together (a regression on it), and so much less is left to chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from simpar.uncertainty.own_runs import MeasuredLayout
from simpar.uncertainty.ties import DRAWS, SEED, Floats, covariance, drawn_errors

NOISE = 0.01
"""By how much the logarithm of a measured step scatters when it is measured again."""
NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution from its middle to the ends of what nine of ten lie in."""


@dataclass(frozen=True)
class JointErrors:
    """Errors, log(measured / predicted), of some layouts.

    ``mean`` float64[layouts] is expected of each, ``draws`` float64[layouts, DRAWS] are what they may differ from that,
    ``spread`` float64[layouts, layouts] is the covariance of that.
    """

    mean: Floats
    draws: Floats
    spread: Floats

    @classmethod
    def of(cls, shares: Floats, layout_spread: float, common: float) -> JointErrors:
        """Before anything is measured, by what part float64[layouts, parts] of a step every part of it takes.

        ``layout_spread`` is that of a layout's certainty, ``common`` the standard deviation of what all err by.
        """
        random = np.random.Generator(np.random.Philox(key=SEED + 1))
        drawn = common * random.standard_normal(DRAWS // 2)
        draws = drawn_errors(shares, layout_spread) + np.hstack([drawn, -drawn])
        return cls(np.zeros(len(shares)), draws, covariance(shares, layout_spread) + common**2)

    def told_by(self, seen: Sequence[int]) -> Floats:
        """How much of the measured errors of some layouts each is expected to share, float64[layouts, seen]."""
        among = self.spread[np.ix_(seen, seen)] + NOISE**2 * np.eye(len(seen))
        return np.asarray(np.linalg.solve(among, self.spread[:, seen].T).T)

    def measured(self, seen: Sequence[int]) -> Floats:
        """What measuring some layouts shows in every draw, as far as it was not expected, float64[seen, DRAWS]."""
        random = np.random.Generator(np.random.Philox(key=SEED + 2))
        noise = NOISE * random.standard_normal((len(seen), DRAWS // 2))
        return np.asarray(self.draws[seen] + np.hstack([noise, -noise]))

    def after(self, seen: Sequence[int], errors: Floats) -> JointErrors:
        """What is left once some layouts were measured, with these errors float64[seen]."""
        told = self.told_by(seen)
        return JointErrors(
            self.mean + told @ (errors - self.mean[seen]),
            self.draws - told @ self.measured(seen),
            self.spread - told @ self.spread[seen],
        )


def joint_errors(
    layouts: Mapping[str, Mapping[str, float]],
    known: Sequence[MeasuredLayout],
    layout_spread: float,
    common: float,
) -> JointErrors:
    """Errors of layouts, by name, that are made up of shares of parts, after those of them or others that are known."""
    everything = {**{one.layout: one.shares for one in known}, **layouts}
    names = [*layouts, *(name for name in everything if name not in layouts)]
    parts = sorted({part for shares in everything.values() for part in shares})
    table = np.array([[everything[name].get(part, 0.0) for part in parts] for name in names])
    found = JointErrors.of(table - table[: len(layouts)].mean(axis=0), layout_spread, common)
    if not known:
        return found
    return found.after([names.index(one.layout) for one in known], np.array([one.error for one in known]))


def common_spread(interval_s: tuple[float, float], layout_spread: float) -> float:
    """The standard deviation of what layouts err by together: what their own errors leave of the interval of a step."""
    low_s, high_s = interval_s
    whole = log(high_s / low_s) / (2 * NINE_OF_TEN)
    own = float(covariance(np.zeros((1, 1)), layout_spread)[0, 0])
    return sqrt(max(whole**2 - own, 0.0))
