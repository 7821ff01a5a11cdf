"""The risk of memory: how far what a rank needs may be from what is predicted, by cause, and whether it still fits.

A need is taken for normally distributed around its prediction. Causes are independent of each other: gaps of the
allocator and workspaces that nobody lists grow with what comes and goes, communicators with all that lies outside the
allocator, what a stack keeps unseen with all that it holds, and tokens of experts with what is routed to the fullest
rank. Sizes are scalars or arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from simpar.uncertainty.own_runs import OwnRuns
from simpar.uncertainty.table import MemoryErrors, Table
from simpar.units import Numbers

NORMAL = NormalDist()
SOME, MANY = 3, 30
"""Runs that show the memory of a stack: from so many on its habits are known a little, and well."""
AS_PREDICTED = 0.5
"""The probability with which a layout fits that needs all of its device, leaving out that predictions err."""
ROUNDS = 24
"""After so many the risk of what moves and what may move agree: to a byte with WANTED, to a hundred with 99 %."""
WANTED = 0.95
"""How probable it should be that a layout fits, unless something else is asked for."""


class Parts(NamedTuple):
    """Bytes of a need, scalars or arrays: what stays in the allocator, comes and goes there, and lies outside it.

    ``experts_mean_bytes`` and ``experts_bytes`` are the mean and the standard deviation of what the fullest rank holds
    of routed tokens beyond what is predicted (:mod:`simpar.cost.memory.routed`).
    """

    static_bytes: Numbers
    moving_bytes: Numbers
    outside_bytes: Numbers
    experts_mean_bytes: Numbers = 0.0
    experts_bytes: Numbers = 0.0


@dataclass(frozen=True)
class MemoryRisk:
    """How a rank's need spreads around its prediction: errors by cause, and those that depend on its stack.

    ``habits`` is the spread of what the stack keeps, ``communicators`` that of what lies outside the allocator.
    """

    errors: MemoryErrors
    habits: float
    communicators: float

    @staticmethod
    def of(
        stack: str, table: Table, own: Sequence[OwnRuns] = (), *, has_few_channels: bool = False
    ) -> MemoryRisk:
        """That of a stack, by how many runs show its memory: published ones, and those that it was learnt from.

        Where links are slow communicators have few channels, whose buffers are what the stack says, or less.

        The user's ``own`` count like those, unless they were further off where they were left out: what their number
        makes it counts as ``table.learned.weight`` layouts, as for step times. None make it larger.
        """
        published, peaks = table.memory_runs.get(stack, 0), sum(one.peaks for one in own)
        knows_outside = has_few_channels or stack in table.refused
        before = MemoryRisk.of_runs(published, table.memory, knows_outside)
        if not peaks:
            return before
        weight, after = (
            table.learned.weight,
            MemoryRisk.of_runs(published + peaks, table.memory, knows_outside),
        )
        squares = weight * after.habits**2 + sum(one.peaks * one.peak_error**2 for one in own)
        shown = max(after.habits, sqrt(squares / (weight + peaks)))
        return replace(after, habits=min(before.habits, shown))

    @staticmethod
    def of_runs(count: int, errors: MemoryErrors, knows_outside: bool) -> MemoryRisk:
        """That of a stack whose memory so many runs show, and whether it is known what lies outside the allocator.

        Peaks do not show that: runs that ran out of memory do.
        """
        known, hardly, unknown = errors.habits
        habits = known if count >= MANY else hardly if count >= SOME else unknown
        return MemoryRisk(errors, habits, errors.communicators[0 if knows_outside else 1])

    def causes(self, parts: Parts) -> dict[str, tuple[Numbers, Numbers]]:
        """By cause the (mean, standard deviation) of what is needed beyond what is predicted, in bytes."""
        errors = self.errors
        return {
            "allocator": (errors.bias * parts.moving_bytes, errors.allocator * parts.moving_bytes),
            "stack": (0.0, self.habits * (parts.static_bytes + parts.moving_bytes)),
            "communicators": (0.0, self.communicators * parts.outside_bytes),
            "experts": (parts.experts_mean_bytes, parts.experts_bytes),
        }

    def excess_bytes(self, parts: Parts) -> tuple[Numbers, Numbers]:
        """The (mean, standard deviation) of what is needed beyond what is predicted, for all causes together."""
        means, deviations = zip(*self.causes(parts).values(), strict=True)
        return sum(means), np.sqrt(sum(each**2 for each in deviations))

    def needed_bytes(self, probability: float, needed_bytes: Numbers, parts: Parts) -> Numbers:
        """What a rank needs no more than with some probability; never less than what is predicted."""
        if probability == AS_PREDICTED:
            return needed_bytes
        mean, deviation = self.excess_bytes(parts)
        risk = NORMAL.inv_cdf(probability) * deviation
        return np.maximum(needed_bytes, needed_bytes + mean + risk)

    def most_moving_bytes(
        self, probability: float, parts: Parts, room: Callable[[Numbers], Numbers], rounds: int = ROUNDS
    ) -> Numbers:
        """The most that may come and go beside the other ``parts``, so that a rank fits with some probability.

        ``room`` says what may as predicted where some bytes are to stay free. What is at risk grows with what moves, by
        far less than that: an odd number of ``rounds`` ends above the answer, an even one below it.
        """
        found = room(0.0)
        for _ in range(0 if probability == AS_PREDICTED else rounds - 1):
            found = room(
                self.needed_bytes(probability, 0.0, parts._replace(moving_bytes=np.maximum(found, 0.0)))
            )
        return found

    def fit_probability(self, capacity_bytes: float, needed_bytes: float, parts: Parts) -> float:
        """How probable it is that a rank fits into its device."""
        mean, deviation = self.excess_bytes(parts)
        return NORMAL.cdf(float(capacity_bytes - needed_bytes - mean) / max(float(deviation), 1.0))

    def shares(self, parts: Parts) -> dict[str, float]:
        """What part every cause has in what must stay free for a rank to fit with WANTED; causes without any left out.

        A deviation counts as its square over that of all together, so that the parts add up.
        """
        _, whole = self.excess_bytes(parts)
        scale = NORMAL.inv_cdf(WANTED) / max(float(whole), 1.0)
        found = {
            name: max(float(mean) + scale * float(deviation) ** 2, 0.0)
            for name, (mean, deviation) in self.causes(parts).items()
        }
        total = sum(found.values())
        return {name: part / total for name, part in found.items() if total and part / total > 0.0}

    def spread(self, parts: Parts) -> float:
        """The standard deviation of what the allocator reserves, over it."""
        _, deviation = self.excess_bytes(parts._replace(outside_bytes=0.0))
        return float(deviation) / max(float(parts.static_bytes + parts.moving_bytes), 1.0)

    def reserved_interval_bytes(self, reserved_bytes: float, parts: Parts) -> tuple[float, float]:
        """Between which the reserved peak lies in nine of ten cases."""
        spread, middle = self.spread(parts), reserved_bytes + float(parts.experts_mean_bytes)
        return middle * exp(self.errors.low * spread), middle * exp(self.errors.high * spread)
