"""Eager 1F1B: twice the warm-up of 1F1B, so that messages are under way while others compute.

Under 1F1B a rank needs the gradient of a microbatch right after the forward before it; with as many forwards again in
flight it has other work to do while that is sent [Zhuang et al. 2022, arXiv 2211.05322, section 4].
"""

import numpy as np

from simpar.plan.schedules.actions import F, Schedule, columns
from simpar.plan.schedules.ordered import alternate
from simpar.plan.schedules.producer import Producer, Promise, moment


def eager_1f1b(p: int, m: int) -> Schedule:
    """Eager 1F1B: 2(p - r - 1) warm-up forwards on rank r hide messages; 2(p - r) - 1 microbatches in flight."""
    ranks = []
    for r in range(p):
        code, forward, backward = alternate(min(2 * (p - r - 1), m), m)
        ranks.append(columns(code, r, np.where(code == F, forward, backward)))
    return Schedule("eager-1f1b", m, tuple(range(p)), tuple(ranks))


PRODUCERS = (
    Producer(
        "eager-1f1b",
        eager_1f1b,
        Promise("2022-11", lambda p, m: min(2 * p - 1, m), lambda p, _m: 3 * (p - 1)),
        lambda r, p, _v, m: moment([2 * (p - r) - 1], 0, m),
        searched="when named",
    ),
)
