"""How tokens spread over expert-parallel ranks: evenly, or with the fullest rank in expectation or by a seeded draw.

With load X_e of expert e (mean 1, standard deviation c) a rank of E/p experts has the mean of theirs: for many experts
a normal with standard deviation c sqrt(p / E). The fullest of p ranks has, in expectation, 1 + that times the expected
maximum of p standard normals [David and Nagaraja 2003, Order Statistics, section 4.2]; that all loads sum to p shifts
every one of them by the same, and changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.models.graph import ModelGraph
from simpar.plan.plan import Experts, Plan
from simpar.units import agreed


def fullest_load(experts: int, choice: Experts, ep: Any) -> Any:
    """Tokens that the fullest of ``ep`` ranks (an int or an array) works on, over the mean; at least 1.

    With a capacity factor every rank works on its whole capacity, padding included.
    """
    if choice.capacity_factor is not None:
        return choice.capacity_factor
    if not choice.expert_imbalance:
        return 1.0
    most = np.vectorize(expected_maximum, otypes=[float])(ep)
    load = 1.0 + choice.expert_imbalance * np.sqrt(np.asarray(ep) / experts) * most
    return load if np.ndim(ep) else float(load)


def sampled_loads(graph: ModelGraph, plan: Plan, seed: int) -> NDArray[np.float64]:
    """Load of every expert rank over the mean, float64[ep]: lognormal loads of experts, the same for equal seeds."""
    experts, ranks = graph.dims["experts"], plan.mesh.ep
    sigma = sqrt(np.log1p(plan.experts.expert_imbalance**2))
    draws = np.random.Generator(np.random.Philox(key=[seed, ranks])).standard_normal(experts)
    loads = np.exp(sigma * draws)
    shares: NDArray[np.float64] = loads.reshape(ranks, -1).sum(axis=1) / loads.sum() * ranks
    return shares


def has_sampled_loads(plan: Plan) -> bool:
    """Whether expert ranks differ from each other."""
    choice = plan.experts
    even = choice.capacity_factor is not None or not choice.expert_imbalance or agreed(plan.mesh.ep == 1)
    return not even and choice.expert_load == "sampled"


@lru_cache(maxsize=64)
def expected_maximum(count: int) -> float:
    """Mean of the largest of ``count`` independent standard normals: the integral of x d(Phi(x)^n).

    1/sqrt(pi) for two of them, 3/(2 sqrt(pi)) for three.
    """
    step = 1 / 256
    points = np.arange(-9, 9, step)
    below = np.array([0.5 * (1 + erf(x / sqrt(2))) for x in points])
    density = np.array([exp(-x * x / 2) / sqrt(2 * pi) for x in points])
    return float(np.sum(points * count * below ** (count - 1) * density) * step)
