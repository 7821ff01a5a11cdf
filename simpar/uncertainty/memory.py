"""The risk of memory: how far what a rank needs may be from what is predicted, by cause, and whether it still fits.

A need is taken for normally distributed around its prediction. Causes are independent of each other: gaps of the
allocator and workspaces that nobody lists grow with what comes and goes, communicators with their number, and what a
stack keeps unseen with all that the allocator holds. Sizes are scalars or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from statistics import NormalDist

import numpy as np

from simpar.uncertainty.table import MemoryErrors, Table
from simpar.units import Numbers

NORMAL = NormalDist()
SOME, MANY = 3, 30
"""Runs that show the memory of a stack: from so many on its habits are known a little, and well."""
AS_PREDICTED = 0.5
"""The probability with which a layout fits that needs all of its device, leaving out that predictions err."""
WANTED = 0.95
"""How probable it should be that a layout fits, unless something else is asked for."""


@dataclass(frozen=True)
class MemoryRisk:
    """How a rank's need spreads around its prediction: errors by cause, and ``habits``, the spread of its stack's."""

    errors: MemoryErrors
    habits: float

    @staticmethod
    def of(stack: str, table: Table) -> MemoryRisk:
        """That of a stack, by how many runs show its memory."""
        return MemoryRisk.of_runs(table.memory_runs.get(stack, 0), table.memory)

    @staticmethod
    def of_runs(count: int, errors: MemoryErrors) -> MemoryRisk:
        """That of a stack whose memory so many runs show."""
        known, hardly, unknown = errors.habits
        return MemoryRisk(errors, known if count >= MANY else hardly if count >= SOME else unknown)

    def deviation_bytes(
        self, static_bytes: Numbers, moving_bytes: Numbers, outside_bytes: Numbers
    ) -> Numbers:
        """The standard deviation of a need: of what stays, what comes and goes, and what lies outside the allocator."""
        allocator = self.errors.allocator * moving_bytes
        habits = self.habits * (static_bytes + moving_bytes)
        return np.sqrt(allocator**2 + habits**2 + (self.errors.communicators * outside_bytes) ** 2)

    def needed_bytes(
        self,
        probability: float,
        needed_bytes: Numbers,
        parts_bytes: tuple[Numbers, Numbers, Numbers],
    ) -> Numbers:
        """What a rank needs no more than with some probability; ``parts_bytes`` as of :meth:`deviation_bytes`.

        Never less than what is predicted.
        """
        if probability == AS_PREDICTED:
            return needed_bytes
        risk = NORMAL.inv_cdf(probability) * self.deviation_bytes(*parts_bytes)
        return np.maximum(needed_bytes, needed_bytes + self.errors.bias * parts_bytes[1] + risk)

    def fit_probability(
        self, capacity_bytes: float, needed_bytes: float, parts_bytes: tuple[float, float, float]
    ) -> float:
        """How probable it is that a rank fits into its device."""
        left = capacity_bytes - needed_bytes - self.errors.bias * parts_bytes[1]
        return NORMAL.cdf(left / max(float(self.deviation_bytes(*parts_bytes)), 1.0))

    def spread(self, parts_bytes: tuple[float, float, float]) -> float:
        """The standard deviation of what the allocator reserves, over it."""
        static, moving, _ = parts_bytes
        return float(self.deviation_bytes(static, moving, 0.0)) / max(static + moving, 1.0)

    def reserved_interval_bytes(
        self, reserved_bytes: float, parts_bytes: tuple[float, float, float]
    ) -> tuple[float, float]:
        """Between which the reserved peak lies in nine of ten cases."""
        spread = self.spread(parts_bytes)
        return reserved_bytes * exp(self.errors.low * spread), reserved_bytes * exp(self.errors.high * spread)
