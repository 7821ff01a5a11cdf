"""Near ties: the probability that each of several layouts is the best, and the mean loss from choosing it.

An error that all layouts of a job have in common changes no order. Beside it, every part of a step (kernels, exposed
collectives, bubble, ...) has an error factor that all layouts share, so that layouts with similar shares of these parts
err together; and each layout has a small error of its own. In one of FAR draws all these errors are FURTHER times as
large, because measured pairs are far off more often than under a normal distribution.

With these constants, layouts of runs outside every fit differ as they were measured to, and the predicted faster one of
two was the faster one as often as stated (``benchmarks/near_ties.py``).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.units import Floats

PART_SPREAD = 8.0
"""Standard deviation of a part's error in units of ``layout_spread``, for a step that consists of that part alone."""
OWN_SPREAD = 0.8
"""Standard deviation of a layout's own error in the same unit."""
WIDE_PERIOD, WIDE_FACTOR = 5, 4.0
DRAWS = 1 << 14
"""Number of drawn errors, half of them the opposites of the others; probabilities are accurate to 0.4 %."""
SEED = 7
TIE_SHARE = 1 / 3
"""A layout is tied with the likeliest best one if its probability to be the best is at least this share of that."""
MAX_SLOWDOWN, SLOWDOWN_TOLERANCE = 2.0, 1e-4
"""A layout that takes this many times as long is never tied; and the relative accuracy of the longest tied step."""
REGRET_TOLERANCE, REGRET_SHARE = 0.001, 0.05
"""Differences of expected regrets that do not count: as a share of a step, and of the least regret."""


@dataclass(frozen=True)
class Standing:
    """The standing of each of several layouts, in their order: float64[layouts] each.

    ``best_probability`` is the probability of the shortest step of all, ``expected_regret`` the mean share by which its
    step is longer than the shortest.
    """

    best_probability: Floats
    expected_regret: Floats

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Which layouts are tied with the likeliest best one: bool[layouts]."""
        return np.asarray(self.best_probability >= TIE_SHARE * self.best_probability.max())

    def choice(self, complexity: Sequence[tuple[int, ...]]) -> int:
        """Index of the tied layout of least expected regret; among equally good ones, the least ``complexity``."""
        tied = np.flatnonzero(self.tied)
        least = self.expected_regret[tied].min()
        as_good = [
            at
            for at in tied.tolist()
            if self.expected_regret[at] <= least + max(REGRET_TOLERANCE, REGRET_SHARE * least)
        ]
        return min(as_good, key=lambda at: (complexity[at], self.expected_regret[at]))


def rank_layouts(step_s: Floats, parts_s: Floats, layout_spread: float) -> Standing:
    """The standing of layouts with predicted steps ``step_s`` float64[layouts] and parts ``parts_s`` [layouts, parts].

    ``layout_spread`` is that of their certainty. Layouts with equal steps and parts err together, and share the
    probability of being the best. The result depends on the input alone, and not on the order of layouts.
    """
    seconds = np.column_stack([step_s, parts_s])
    distinct, which, count = np.unique(seconds, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    shares = distinct[:, 1:] / distinct[:, :1]
    standing = standing_from_draws(np.log(distinct[:, :1]) + draw_errors(shares - shares[0], layout_spread), count)
    return Standing(standing.best_probability[which], standing.expected_regret[which])


def standing_from_draws(logs: Floats, count: NDArray[np.int_] | int = 1) -> Standing:
    """Standing of layouts from drawn logarithms of their steps float64[layouts, draws]; ``count`` per layout."""
    behind = logs - logs.min(axis=0)
    best = (behind == 0.0).mean(axis=1)
    return Standing(best / best.sum() / count, np.expm1(behind).mean(axis=1))


def draw_errors(shares: Floats, layout_spread: float) -> Floats:
    """Drawn errors of layouts, float64[layouts, DRAWS]; the second half are the opposites of the first.

    ``shares`` float64[layouts, parts] are the parts' shares of a step, less those of a common reference.
    """
    return draw_related_errors(shares, layout_spread, np.eye(len(shares)))


def draw_related_errors(shares: Floats, layout_spread: float, together: Floats) -> Floats:
    """As :func:`draw_errors`, where layouts share parts of their own errors: ``together`` float64[layouts, causes].

    A row has the weights of a layout's causes, whose squares add up to 1.
    """
    common, size, own = _draws(shares.shape[1], together.shape[1])
    errors = layout_spread * size * (PART_SPREAD * shares @ common + OWN_SPREAD * (together @ own))
    return np.hstack([errors, -errors])


@lru_cache(maxsize=4)
def _draws(parts: int, causes: int) -> tuple[Floats, Floats, Floats]:
    """Errors of parts, the size of every draw, and layouts' own errors: [parts or causes, DRAWS // 2]."""
    random = np.random.Generator(np.random.Philox(key=SEED))
    common = random.standard_normal((parts, DRAWS // 2))
    size = np.where(random.integers(WIDE_PERIOD, size=DRAWS // 2) == 0, WIDE_FACTOR, 1.0)
    own = random.standard_normal((causes, DRAWS // 2))
    for each in (common, size, own):
        each.flags.writeable = False
    return common, size, own


def covariance(shares: Floats, layout_spread: float, together: Floats) -> Floats:
    """Covariance of the errors that :func:`draw_related_errors` draws, float64[layouts, layouts]."""
    squared_size = (WIDE_PERIOD - 1 + WIDE_FACTOR**2) / WIDE_PERIOD
    alike = PART_SPREAD**2 * shares @ shares.T + OWN_SPREAD**2 * together @ together.T
    return np.asarray(squared_size * layout_spread**2 * alike)


def limit_s(step_s: Floats, parts_s: Floats, layout_spread: float) -> float:
    """Seconds up to which one more layout, with the likeliest best one's shares of parts, would be tied with it.

    Arguments as for :func:`rank_layouts`. A layout with other shares may take longer and still be tied.
    """
    likeliest = int(np.argmax(rank_layouts(step_s, parts_s, layout_spread).best_probability))
    low, high = 1.0, MAX_SLOWDOWN
    while high - low > SLOWDOWN_TOLERANCE:
        factor = (low + high) / 2
        more = (np.append(step_s, factor * step_s[likeliest]), np.vstack([parts_s, factor * parts_s[likeliest]]))
        low, high = (factor, high) if rank_layouts(*more, layout_spread).tied[-1] else (low, factor)
    return low * float(step_s[likeliest])
