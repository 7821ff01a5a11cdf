"""How quiet a machine was while it was measured, and by how much times may be too long for that. No torch here.

Two signs: what other processes used of the cores, by the operating system's count, and one product that is timed at the
beginning, between kernels and groups, and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from simpar.dataclass import dataclass
from simpar.runtime.core_times import CoreTimes, others_share
from simpar.units import format_seconds

BUSY = 0.1
"""By how much times may be too long before that is said."""


@dataclass(frozen=True)
class Quiet:
    """Share of the cores that ``others`` used (None: not counted), and a product's seconds, one time after another."""

    others: float | None
    repeats: tuple[float, ...]

    @staticmethod
    def of(before: CoreTimes | None, after: CoreTimes | None, repeats: Sequence[float]) -> Quiet:
        """What counts at the beginning and at the end, and repeated times, say."""
        return Quiet(others_share(before, after), tuple(repeats))

    @property
    def drift(self) -> float:
        """How much longer the slowest repeat took than the fastest."""
        return max(self.repeats) / min(self.repeats) - 1 if self.repeats else 0.0

    @property
    def width(self) -> float:
        """By which share times may be too long for a machine that is idle.

        What others take of all cores is missing where ranks want all of them: times grow by 1 / (1 - share).
        """
        share = min(self.others or 0.0, 0.99)
        return max(self.drift, share / (1 - share))

    @property
    def is_busy(self) -> bool:
        """Whether it is so much that it must be said."""
        return self.width > BUSY

    @property
    def words(self) -> str:
        """Both signs and the width."""
        used = "not counted" if self.others is None else f"{self.others:.0%} of the cores"
        times = (
            f"{format_seconds(min(self.repeats))} to {format_seconds(max(self.repeats))}" if self.repeats else "none"
        )
        return f"others used {used}, one product took {times}: up to {self.width:.0%} too slow for an idle machine"
