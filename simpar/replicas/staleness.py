"""The outcome of many local steps: the mean step, its parts, and the staleness of parameters."""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.report.parts import Staleness
from simpar.units import Floats, Ints, to_ns, to_seconds

MOST_BARS = 256


@dataclass(frozen=True)
class MeanStep:
    """Means over replicas and local steps: seconds of a whole step, its local part, its messages; the rest is waiting.

    ``own_step_s`` float64[replicas] is the mean step of each; ``outer_s`` is the outer update's share of the local
    part. ``exchanged_bytes`` is per replica and local step, ``busy`` the used share of the links' capacity by kind.
    Of parameter servers, ``updates_s`` is what a network that costs nothing leaves of the messages, and
    ``twice_servers_s`` a whole step with twice as many.
    """

    step_s: float
    local_s: float
    exchange_s: float
    exchanged_bytes: float
    own_step_s: Floats
    outer_s: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)
    staleness: Staleness | None = None
    server_memory_bytes: float | None = None
    updates_s: float = 0.0
    twice_servers_s: float | None = None

    @property
    def waiting_s(self) -> float:
        """Seconds that a replica spends on neither its own step nor messages."""
        rest = self.step_s - self.local_s - self.exchange_s
        return max(0.0, float(to_seconds(to_ns(rest))))  # a rest below the clock's resolution is rounding


def staleness(pushed: Ints, read: Ints, begun: Ints, first: int) -> Staleness:
    """Staleness of every update from local step ``first`` on.

    Arguments int64[replicas, steps] in ns: end of every push (the update is applied), start of every pull (the
    parameters are read), start of every local step. The gradient of step c was computed with the parameters that
    the pull after step c - 1 read; every update of another replica applied since then, those of the same instant
    included, adds 1 to its staleness. Updates after the first replica has finished are not counted, because servers
    are less loaded then.
    """
    applied = np.sort(pushed.ravel())
    own, seen = pushed[:, first:], read[:, first - 1 : -1]
    between = np.searchsorted(applied, own, "right") - np.searchsorted(applied, seen, "right") - 1
    counted = between[own <= pushed[:, -1].min()]
    all_passed = pushed.max(axis=0)  # for every step, when the slowest replica has pushed it
    ahead = np.arange(pushed.shape[1]) - np.searchsorted(all_passed, begun, "right")
    return summary(counted, int(ahead.max(initial=0)))


def summary(counted: Ints, clock_gap: int) -> Staleness:
    """The distribution of the staleness of updates int64[any], simulated or measured."""
    highest = int(counted.max(initial=0))
    shares = np.bincount(counted.ravel(), minlength=highest + 1)[:MOST_BARS] / max(1, counted.size)
    quantiles = np.quantile(counted, (0.5, 0.9, 0.99)) if counted.size else (0.0, 0.0, 0.0)
    return Staleness(
        mean=float(counted.mean()) if counted.size else 0.0,
        maximum=highest,
        p50=float(quantiles[0]),
        p90=float(quantiles[1]),
        p99=float(quantiles[2]),
        clock_gap=clock_gap,
        shares=tuple(shares.tolist()),
    )
