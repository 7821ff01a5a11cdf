"""How tokens spread over expert-parallel ranks: evenly, or with the fullest rank in expectation or by a seeded draw.

:class:`Routing` says how many ranks, or nodes, hold any of the experts of a token.

With load X_e of expert e (mean 1, standard deviation c) a rank of E/p experts has the mean of theirs: for many experts
a normal with standard deviation c sqrt(p / E). The fullest of p ranks has, in expectation, 1 + that times the expected
maximum of p standard normals [David and Nagaraja 2003, Order Statistics, section 4.2]; that all loads sum to p shifts
every one of them by the same, and changes nothing. Under a power law [NVIDIA AIConfigurator, collector/helper.py] few
experts have most tokens, and the expectation is that over draws, always the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from functools import cache, lru_cache
from math import comb, erf, exp, pi, prod, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.units import scalar_truth

if TYPE_CHECKING:
    from simpar.plan.choices.experts import DecidedExperts, Experts

_SPAN = 0.8 * 2**14
"""The largest load of a power law over the smallest, as AIConfigurator draws loads of 16,384 tokens."""
_DRAWS = 1000
Balance = Literal["forced", "loss", "bias", "tuned"]
"""What keeps experts evenly loaded: routing that ignores the router, an auxiliary loss, or biases that are adjusted; or
next to nothing, as in the fine-tuning of a trained router on documents of one kind."""
ROUTING_BY_BALANCE: dict[Balance, dict[str, Any]] = {
    "forced": {},
    "loss": {"expert_imbalance": 0.27},
    "bias": {"expert_imbalance": 0.02},
    "tuned": {"expert_distribution": "power_law", "expert_imbalance": 1.01},
}
"""Choices of a plan under each. Deviations of experts' loads over their mean: the load of the fullest of 64 experts
above the mean, 0.72 and 0.52 with a loss, 0.04 with biases [Wang et al. 2024, arXiv 2408.15664, table 2], over m(64) =
2.34. A trained router that meets requests loads experts by a power law [NVIDIA AIConfigurator, collector/helper.py:
1.01 and 1.2]; the lower exponent stands for fine-tuning, whose loss of balance goes on."""


@dataclass(frozen=True)
class Routing:
    """A token's ``topk`` of ``experts``, drawn evenly from ``chosen`` of the ``groups`` into which experts are divided.

    The default is a single expert.
    """

    topk: int = 1
    experts: int = 1
    chosen: int = 1
    groups: int = 1

    @staticmethod
    def of_dims(dims: Mapping[str, int]) -> Routing:
        """The routing of a mixture, from its named dims."""
        return Routing(dims["topk"], dims["num_experts"], dims.get("chosen_groups", 1), dims.get("expert_groups", 1))

    @property
    def op(self) -> str:
        """The name of the collective that dispatches tokens under this routing."""
        return " ".join(["dispatch", *map(str, astuple(self))])

    @staticmethod
    def of_op(op: str) -> Routing:
        """The routing in the name of a dispatch; the default for a name without numbers."""
        return Routing(*map(int, op.split()[1:]))

    def holds(self, share: float) -> float:
        """Probability that a part with a share of the experts holds any of a token's.

        A part of e of n experts holds none of k drawn without replacement with probability C(n - e, k) / C(n, k). With
        groups, n counts the experts of the chosen groups: a part inside one group is among them with probability
        chosen / groups; of a part of several groups, a hypergeometric number is chosen.
        """
        held, pool, in_group = share * self.experts, self.experts, self.experts / self.groups
        if self.groups == 1:
            return 1.0 - self._misses(held, pool)
        pool = self.experts * self.chosen // self.groups
        if held <= in_group:
            return self.chosen / self.groups * (1.0 - self._misses(held, pool))
        mine = round(held / in_group)
        return sum(
            comb(mine, each) * comb(self.groups - mine, self.chosen - each) / comb(self.groups, self.chosen)
            * (1.0 - self._misses(each * in_group, pool))
            for each in range(1, min(mine, self.chosen) + 1)
        )  # fmt: skip

    def _misses(self, held: float, pool: float) -> float:
        return prod(max(pool - held - i, 0.0) / (pool - i) for i in range(self.topk)) if pool > held else 0.0


def max_rank_load(routing: Routing, choice: DecidedExperts, ep: Any) -> Any:
    """Tokens that the fullest of ``ep`` ranks (an int or an array) works on, over the mean; at least 1.

    With a capacity factor every rank works on its whole capacity, padding included.
    """
    if choice.capacity_factor is not None:
        return choice.capacity_factor
    if not choice.expert_imbalance:
        return 1.0
    if choice.expert_distribution == "power_law":
        load = np.vectorize(lambda ranks: _fullest_of_power_law(routing, choice.expert_imbalance, ranks)[0])(ep)
    else:
        load = 1.0 + choice.expert_imbalance * np.sqrt(np.asarray(ep) / routing.experts) * _of_maxima(ep)[0]
    return load if np.ndim(ep) else float(load)


def max_rank_arrivals(routing: Routing, load: Any, ranks: Any) -> Any:
    """Tokens that reach the fullest of ``ranks`` ranks over the mean, where a token is sent to a rank at most once.

    Each of a token's k experts is on the rank with ``load`` times the mean rows with probability load / ranks, so the
    token goes there with 1 - (1 - load / ranks)^k: on few ranks nearly all tokens go to all of them, and only their
    rows are skewed. Numbers or arrays.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    arrived, usual = (1.0 - (1.0 - np.minimum(each / ranks, 1.0)) ** routing.topk for each in (np.asarray(load), 1.0))
    return arrived / usual


def max_rank_load_deviation(routing: Routing, choice: DecidedExperts, ranks: int) -> float:
    """Standard deviation over layers and steps of the load whose mean is :func:`max_rank_load`; 0 if it is fixed."""
    if choice.capacity_factor is not None or not choice.expert_imbalance or ranks == 1:
        return 0.0
    if choice.expert_distribution == "power_law":
        return _fullest_of_power_law(routing, choice.expert_imbalance, ranks)[1]
    variance = maximum_moments(ranks)[1] - 1.0 / ranks  # without the mean's variance: loads have a fixed sum
    return choice.expert_imbalance * sqrt(ranks / routing.experts * max(variance, 0.0))


def expert_load_spread(routing: Routing, choice: DecidedExperts) -> float:
    """Standard deviation of the loads of experts over their mean."""
    if choice.expert_distribution == "power_law" and choice.expert_imbalance:
        return _spread_of_power_law(routing, choice.expert_imbalance)
    return choice.expert_imbalance


def _power_law(routing: Routing, exponent: float, draws: int, seed: int) -> NDArray[np.float64]:
    """Loads of experts over their mean, float64[draws, experts]: density x^-exponent from 1 to ``_SPAN``.

    No load exceeds that of an expert chosen by every token: experts / topk.
    """
    uniform = np.random.Generator(np.random.Philox(key=[seed, routing.experts])).random((draws, routing.experts))
    power = 1.0 - exponent
    drawn = _SPAN**uniform if np.isclose(power, 0.0) else ((_SPAN**power - 1.0) * uniform + 1.0) ** (1.0 / power)
    for _ in range(4):  # what no expert can take falls to the others
        drawn = np.minimum(drawn / drawn.mean(axis=1, keepdims=True), routing.experts / routing.topk)
    return np.asarray(drawn / drawn.mean(axis=1, keepdims=True))


@lru_cache(maxsize=4)
def _many_of_power_law(routing: Routing, exponent: float) -> NDArray[np.float64]:
    """The draws over which expectations are taken, float64[_DRAWS, experts], for reading only."""
    result = _power_law(routing, exponent, _DRAWS, 0)
    result.setflags(write=False)
    return result


@lru_cache(maxsize=64)
def _spread_of_power_law(routing: Routing, exponent: float) -> float:
    """Standard deviation of the loads of experts over their mean."""
    return float(np.std(_many_of_power_law(routing, exponent), axis=1).mean())


@lru_cache(maxsize=64)
def _fullest_of_power_law(routing: Routing, exponent: float, ranks: int) -> tuple[float, float]:
    """(Mean, standard deviation) of the load of the fullest of ``ranks`` ranks over the mean."""
    loads = _many_of_power_law(routing, exponent)
    fullest = loads.reshape(_DRAWS, int(ranks), -1).mean(axis=2).max(axis=1)
    return float(fullest.mean()), float(fullest.std())


def excess_of_fullest(experts: int, ep: Any, copies: Any, imbalance: tuple[float, float]) -> tuple[Any, Any]:
    """(Mean, standard deviation) of the load of the fullest of ``ep`` ranks in one layer above the mean, in means.

    A rank gets ``copies`` of tokens on average. ``imbalance`` is the (mean, standard deviation) of c, the spread of the
    experts' loads over their mean; c is one deviation above its mean or one below with equal probability, as in models
    balanced with and without a loss. Counts are multinomial under these popularities: with p ranks, E experts and M the
    largest of p standard normals above their mean, the excess is M sqrt(c^2 p / E + 1 / copies). ``ep`` and ``copies``
    are numbers or arrays; on a single rank the excess is 0.
    """
    ranks, middle = np.asarray(ep, dtype=np.float64), imbalance[0]
    most, variance = _of_maxima(ep)
    variance = variance - 1.0 / ranks  # without the mean's variance: loads have a fixed sum
    cases = [
        (middle + way * imbalance[1]) ** 2 * ranks / experts + 1.0 / np.asarray(copies, dtype=np.float64)
        for way in (-1.0, 1.0)
    ]
    mean = most * sum(np.sqrt(case) for case in cases) / 2
    square = (variance + most**2) * sum(cases) / 2
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    return np.where(ranks > 1, mean, 0.0), np.where(ranks > 1, deviation, 0.0)


def sample_loads(graph: ModelGraph, choice: DecidedExperts, ep: int, seed: int) -> NDArray[np.float64]:
    """Load of every expert rank over the mean, float64[ep]: the same for equal seeds.

    Loads of experts are lognormal, or those of a power law.
    """
    routing, ranks = Routing.of_dims(graph.dims), ep
    experts = routing.experts
    if choice.expert_distribution == "power_law":
        drawn = _power_law(routing, choice.expert_imbalance, 1, seed)
        return np.asarray(drawn.reshape(ranks, -1).mean(axis=1))
    sigma = sqrt(np.log1p(choice.expert_imbalance**2))
    draws = np.random.Generator(np.random.Philox(key=[seed, ranks])).standard_normal(experts)
    loads = np.exp(sigma * draws)
    shares: NDArray[np.float64] = loads.reshape(ranks, -1).sum(axis=1) / loads.sum() * ranks
    return shares


def has_sampled_loads(choice: Experts | DecidedExperts, ep: Any) -> bool:
    """Whether each of ``ep`` expert ranks has a load of its own, drawn from the seed."""
    even = choice.capacity_factor is not None or not choice.expert_imbalance or scalar_truth(ep == 1)
    return not even and choice.expert_load == "sampled"


def expected_maximum(count: int) -> float:
    """Mean of the largest of ``count`` independent standard normals."""
    return maximum_moments(count)[0]


@lru_cache(maxsize=64)
def maximum_moments(count: int) -> tuple[float, float]:
    """(Mean, variance) of the largest of ``count`` independent standard normals: integrals of x and x^2 d(Phi(x)^n).

    1/sqrt(pi) and 1 - 1/pi for two of them, a mean of 3/(2 sqrt(pi)) for three.
    """
    points, below, density = _standard_normal()
    step = points[1] - points[0]
    weight = points * count * below ** (count - 1) * density
    mean = float(np.sum(weight) * step)
    return mean, float(np.sum(weight * points) * step) - mean**2


@cache
def _standard_normal() -> NDArray[np.float64]:
    """Points in steps of 1 / 256, with Phi and its derivative there: float64[3, points]."""
    points = np.arange(-9, 9, 1 / 256)
    below = [0.5 * (1 + erf(x / sqrt(2))) for x in points.tolist()]
    density = [exp(-x * x / 2) / sqrt(2 * pi) for x in points.tolist()]
    return np.array([points, below, density])


def _of_maxima(count: Any) -> tuple[Any, Any]:
    """The moments of :func:`maximum_moments` for a number or an array of them."""
    return np.vectorize(maximum_moments, otypes=[float, float])(count)  # type: ignore[no-any-return]
