"""The risk of memory: how far a rank's need may be from the prediction, by cause, and whether it still fits.

A need is taken to be normally distributed around its prediction. Its causes are independent of each other: gaps of the
allocator grow with the predicted ones, unlisted workspaces with the bytes that come and go, communicators with all
bytes outside the allocator, unknown tensors of a stack with all bytes inside it, and tokens of experts with those
routed to the fullest rank. Sizes are scalars or arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from simpar.dataclass import dataclass
from simpar.uncertainty.own_runs import OwnRuns
from simpar.uncertainty.table import ErrorTable, MemoryErrors
from simpar.units import Numbers

NORMAL = NormalDist()
SOME_RUNS, MANY_RUNS = 3, 30
"""Numbers of runs with known memory from which on a stack's habits are known a little, and well."""
AS_PREDICTED = 0.5
"""Probability to fit of a layout whose predicted need is all of its device; it means taking predictions as exact."""
ROUNDS = 24
"""Rounds after which the risk and the most that may move agree: to a byte with WANTED, to a hundred bytes with 99 %."""
DEFAULT_FIT_PROBABILITY = 0.95
"""The default probability with which a layout should fit."""


class Parts(NamedTuple):
    """Bytes of a need, scalars or arrays: those that stay in the allocator, come and go there, and lie outside it.

    ``gaps`` are bytes of gaps that are predicted for each byte that comes and goes.
    ``experts_mean_bytes`` and ``experts_bytes`` are the mean and the standard deviation of routed tokens on the fullest
    rank beyond the predicted ones (:mod:`simpar.cost.memory.routed`).
    """

    static_bytes: Numbers
    moving_bytes: Numbers
    outside_bytes: Numbers
    experts_mean_bytes: Numbers = 0.0
    experts_bytes: Numbers = 0.0
    gaps: Numbers = 0.0


@dataclass(frozen=True)
class MemoryRisk:
    """How a rank's need spreads around its prediction: errors by cause, and those that depend on its stack.

    ``habits`` is the spread of the tensors that the stack keeps, ``communicators`` that of bytes outside the allocator;
    ``planned``: a compiler plans all buffers of a step.
    """

    errors: MemoryErrors
    habits: float
    communicators: float
    planned: bool = False

    @staticmethod
    def of(
        stack: str,
        table: ErrorTable,
        own: Sequence[OwnRuns] = (),
        *,
        has_few_channels: bool = False,
        planned: bool = False,
    ) -> MemoryRisk:
        """The risk under a stack, by how many runs show its memory: published runs, and those it was learnt from.

        With ``has_few_channels`` (slow links) a communicator's buffers are at most what the stack states, so that
        its bytes count as known.

        The user's ``own`` runs count like published ones; the spread that their number gives is pooled with their
        left-out errors, as ``table.learned.weight`` layouts among them, and is never below that which it gives nor
        above the spread without them.
        """
        published, peaks = table.memory_runs.get(stack, 0), sum(one.peaks for one in own)
        knows_outside = has_few_channels or stack in table.refused
        before = MemoryRisk.of_runs(published, table.memory, knows_outside, planned=planned)
        if not peaks:
            return before
        after = MemoryRisk.of_runs(published + peaks, table.memory, knows_outside, planned=planned)
        weight = table.learned.weight
        squares = weight * after.habits**2 + sum(one.peaks * one.peak_error**2 for one in own)
        shown = max(after.habits, sqrt(squares / (weight + peaks)))
        return replace(after, habits=min(before.habits, shown))

    @staticmethod
    def of_runs(count: int, errors: MemoryErrors, knows_outside: bool, *, planned: bool = False) -> MemoryRisk:
        """The risk under a stack whose memory ``count`` runs show; ``knows_outside``: bytes outside the allocator too.

        These are known from runs that ran out of memory; logged peaks do not show them.
        """
        known, hardly, unknown = errors.habits
        habits = known if count >= MANY_RUNS else hardly if count >= SOME_RUNS else unknown
        return MemoryRisk(errors, habits, errors.communicators[0 if knows_outside else 1], planned)

    def causes(self, parts: Parts) -> dict[str, tuple[Numbers, Numbers]]:
        """By cause, the (mean, standard deviation) in bytes of the need beyond the prediction."""
        errors, moving = self.errors, parts.moving_bytes
        mean, deviation = errors.gaps
        planned = errors.planned if self.planned else 0.0
        return {
            "allocator": (
                (mean * parts.gaps + planned) * moving,
                np.hypot(deviation * parts.gaps, errors.workspaces) * moving,
            ),
            "stack": (0.0, self.habits * (parts.static_bytes + parts.moving_bytes)),
            "communicators": (0.0, self.communicators * parts.outside_bytes),
            "experts": (parts.experts_mean_bytes, parts.experts_bytes),
        }

    def excess_bytes(self, parts: Parts) -> tuple[Numbers, Numbers]:
        """The (mean, standard deviation) in bytes of the need beyond the prediction, for all causes together."""
        means, deviations = zip(*self.causes(parts).values(), strict=True)
        return sum(means), np.sqrt(sum(each**2 for each in deviations))

    def needed_bytes(self, probability: float, needed_bytes: Numbers, parts: Parts) -> Numbers:
        """The bytes that a rank's need does not exceed with some probability; never less than the prediction."""
        if probability == AS_PREDICTED:
            return needed_bytes
        mean, deviation = self.excess_bytes(parts)
        risk = NORMAL.inv_cdf(probability) * deviation
        return np.maximum(needed_bytes, needed_bytes + mean + risk)

    def most_moving_bytes(
        self, probability: float, parts: Parts, room: Callable[[Numbers], Numbers], rounds: int = ROUNDS
    ) -> Numbers:
        """The most bytes that may come and go beside the other ``parts`` while a rank fits with some probability.

        ``room(free_bytes)`` is the most that may as predicted, if some bytes stay free. The bytes to keep free grow
        with those that move, but much more slowly, so the fixed point is iterated: an odd number of ``rounds`` ends
        above the answer, an even one below it.
        """
        result = room(0.0)
        for _ in range(0 if probability == AS_PREDICTED else rounds - 1):
            result = room(self.needed_bytes(probability, 0.0, parts._replace(moving_bytes=np.maximum(result, 0.0))))
        return result

    def fit_probability(self, capacity_bytes: float, needed_bytes: float, parts: Parts) -> float:
        """The probability that a rank fits on its device."""
        mean, deviation = self.excess_bytes(parts)
        return NORMAL.cdf(float(capacity_bytes - needed_bytes - mean) / max(float(deviation), 1.0))

    def shares(self, parts: Parts) -> dict[str, float]:
        """Share of every cause in the bytes that must stay free to fit with WANTED; causes without a share left out.

        A deviation counts with its square over that of all causes together, so that the shares add up to 1.
        """
        _, whole = self.excess_bytes(parts)
        scale = NORMAL.inv_cdf(DEFAULT_FIT_PROBABILITY) / max(float(whole), 1.0)
        squares = {
            name: max(float(mean) + scale * float(deviation) ** 2, 0.0)
            for name, (mean, deviation) in self.causes(parts).items()
        }
        total = sum(squares.values())
        return {name: part / total for name, part in squares.items() if total and part / total > 0.0}

    def spread(self, parts: Parts) -> float:
        """The relative standard deviation of the bytes that the allocator reserves."""
        _, deviation = self.excess_bytes(parts._replace(outside_bytes=0.0))
        return float(deviation) / max(float(parts.static_bytes + parts.moving_bytes), 1.0)

    def reserved_interval_bytes(self, reserved_bytes: float, parts: Parts) -> tuple[float, float]:
        """(Low, high) bytes between which the reserved peak lies in nine of ten cases."""
        spread, middle = self.spread(parts), reserved_bytes + float(parts.experts_mean_bytes)
        return middle * exp(self.errors.low * spread), middle * exp(self.errors.high * spread)
