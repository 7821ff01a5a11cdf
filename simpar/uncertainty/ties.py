"""Near ties: how probable it is that each of several layouts is the best, and what choosing it loses on average.

What all layouts of a job have wrong in common changes no order. Otherwise every part of a step (kernels, exposed
collectives, bubble, ...) errs by a factor of its own that all layouts share, so that layouts whose steps are made up
alike err together; and each layout errs a little by itself. One time in FAR all of these errors are FURTHER times as
large: a measured pair is far off more often than a normal distribution has it.

The constants are those under which layouts of runs that nothing was fitted to differ as they were measured to, and the
predicted faster one of two was the faster one as often as said (``benchmarks/near_ties.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.units import Floats

PART = 8.0
"""The standard deviation of a part's error, in ``layout_spread``, as if a step were that part alone."""
OWN = 0.8
"""That of a layout's own error."""
FAR, FURTHER = 5, 4.0
DRAWS = 1 << 14
"""Errors that are drawn, each with its opposite: probabilities are right to 0.4 %."""
SEED = 7
TIED = 1 / 3
"""Layouts that are so probably the best, over the likeliest one, cannot be told apart from it."""
MOST_BEHIND, CLOSE = 2.0, 1e-4
"""No layout that takes so many times as long is tied; and how closely the longest that are tied are known."""
ALIKE, ALIKE_SHARE = 0.001, 0.05
"""Differences of expected regrets that tell nothing apart: as shares of a step, and of the least regret."""


@dataclass(frozen=True)
class Standing:
    """How each of several layouts stands among them, in their order, each float64[layouts].

    ``best_probability`` is that of having the shortest step of all, ``expected_regret`` the share by which its step is
    longer than the shortest on average.
    """

    best_probability: Floats
    expected_regret: Floats

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Those that cannot be told apart: about as probably the best as the likeliest."""
        return np.asarray(self.best_probability >= TIED * self.best_probability.max())

    def choice(self, complexity: Sequence[tuple[int, ...]]) -> int:
        """Of those that are tied the one with the least expected regret; of those as good the least ``complexity``."""
        tied = np.flatnonzero(self.tied)
        least = self.expected_regret[tied].min()
        as_good = [
            at for at in tied.tolist() if self.expected_regret[at] <= least + max(ALIKE, ALIKE_SHARE * least)
        ]
        return min(as_good, key=lambda at: (complexity[at], self.expected_regret[at]))


def standing(step_s: Floats, parts_s: Floats, layout_spread: float) -> Standing:
    """How layouts stand: predicted seconds float64[layouts], of every part of their steps float64[layouts, parts].

    ``layout_spread`` is that of their certainty. Layouts that are alike in all of it err together, and share the
    probability of being the best. Neither their order nor anything but the input changes what comes out.
    """
    seconds = np.column_stack([step_s, parts_s])
    distinct, which, count = np.unique(seconds, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    shares = distinct[:, 1:] / distinct[:, :1]
    found = standing_of(np.log(distinct[:, :1]) + drawn_errors(shares - shares[0], layout_spread), count)
    return Standing(found.best_probability[which], found.expected_regret[which])


def standing_of(logs: Floats, count: NDArray[np.int_] | int = 1) -> Standing:
    """How layouts stand by draws of the logarithms of their steps float64[layouts, draws], ``count`` of each."""
    behind = logs - logs.min(axis=0)
    best = (behind == 0.0).mean(axis=1)
    return Standing(best / best.sum() / count, np.expm1(behind).mean(axis=1))


def drawn_errors(shares: Floats, layout_spread: float) -> Floats:
    """DRAWS errors of layouts, by what part their steps have more of than a common reference; float64[layouts, DRAWS].

    ``shares`` are float64[layouts, parts]. The second half are the opposites of the first.
    """
    return drawn_together(shares, layout_spread, np.eye(len(shares)))


def drawn_together(shares: Floats, layout_spread: float, together: Floats) -> Floats:
    """The same where layouts share some of what each has of its own: ``together`` float64[layouts, causes].

    A row is what part a layout has in every cause; the squares of each add up to 1.
    """
    random = np.random.Generator(np.random.Philox(key=SEED))
    common = random.standard_normal((shares.shape[1], DRAWS // 2))
    size = np.where(random.integers(FAR, size=DRAWS // 2) == 0, FURTHER, 1.0)
    own = together @ random.standard_normal((together.shape[1], DRAWS // 2))
    errors = layout_spread * size * (PART * shares @ common + OWN * own)
    return np.hstack([errors, -errors])


def covariance(shares: Floats, layout_spread: float, together: Floats) -> Floats:
    """That of the errors that :func:`drawn_together` draws, float64[layouts, layouts]."""
    squared_size = (FAR - 1 + FURTHER**2) / FAR
    alike = PART**2 * shares @ shares.T + OWN**2 * together @ together.T
    return np.asarray(squared_size * layout_spread**2 * alike)


def limit_s(step_s: Floats, parts_s: Floats, layout_spread: float) -> float:
    """Seconds up to which one more layout, made up like the likeliest to be the best, would be tied with it.

    Input as of :func:`standing`. One that is made up in another way may take longer, and be tied all the same.
    """
    likeliest = int(np.argmax(standing(step_s, parts_s, layout_spread).best_probability))
    low, high = 1.0, MOST_BEHIND
    while high - low > CLOSE:
        factor = (low + high) / 2
        more = (
            np.append(step_s, factor * step_s[likeliest]),
            np.vstack([parts_s, factor * parts_s[likeliest]]),
        )
        low, high = (factor, high) if standing(*more, layout_spread).tied[-1] else (low, factor)
    return low * float(step_s[likeliest])
