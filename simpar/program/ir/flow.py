"""Integer arithmetic of flows, the same in every engine: rates, work, coefficients and solo durations.

Rates are in kB/s and work in uB, so that a rate times nanoseconds is exactly an amount of work; coefficients
are fixed point. int64 then holds 9.2 TB of work an op and links up to 549 TB/s
(:data:`simpar.units.MOST_LINK_BYTES_PER_S` is what users may ask for).
"""

import numpy as np
from numpy.typing import ArrayLike

from simpar.errors import BeyondIntegers
from simpar.units import KB, NS_PER_S, Floats, Ints

FRACTION_BITS = 24
COEFFICIENT_ONE = 1 << FRACTION_BITS
BYTES_PER_S_PER_RATE = int(KB)
WORK_PER_BYTE = NS_PER_S // BYTES_PER_S_PER_RATE
_LARGEST = int(np.iinfo(np.int64).max)
NO_CAP = _LARGEST  # rate of a flow that only its links limit


def quantise(coefficient: ArrayLike) -> Floats:
    """Coefficients rounded to the fixed point of the engines.

    Multiply by the number of flows of a folded class *after* rounding: the class then puts exactly as much on a
    link as its members would.
    """
    return fixed_point(coefficient) / COEFFICIENT_ONE


def fixed_point(coefficient: ArrayLike) -> Ints:
    """Coefficients in units of 1 / COEFFICIENT_ONE, at least one unit."""
    units = np.rint(np.asarray(coefficient, np.float64) * COEFFICIENT_ONE)
    return np.asarray(np.maximum(units, 1.0), dtype=np.int64)


def to_rate(bytes_per_s: ArrayLike) -> Ints:
    """Bytes per second in units of rate, rounded down, but only zero when it is zero."""
    value = np.asarray(bytes_per_s, np.int64)
    _check_largest("rate", value, BYTES_PER_S_PER_RATE * (_LARGEST >> FRACTION_BITS))
    return np.where(value > 0, np.maximum(value // BYTES_PER_S_PER_RATE, 1), 0)


def to_cap(bytes_per_s: ArrayLike) -> Ints:
    """Rate caps of flows in units of rate; 0 means NO_CAP."""
    rate = to_rate(bytes_per_s)
    return np.where(rate > 0, rate, NO_CAP)


def to_work(size_bytes: ArrayLike) -> Ints:
    """Bytes in units of work."""
    value = np.asarray(size_bytes, np.int64)
    _check_largest("work", value, _LARGEST // WORK_PER_BYTE)
    return value * WORK_PER_BYTE


def _check_largest(what: str, value: Ints, limit: int) -> None:
    if value.max(initial=0) > limit:
        raise BeyondIntegers(f"{what} of {value.max()} bytes is above {limit}, the most that integers hold")


def solo_rates(coefficient: ArrayLike, capacity_bytes_per_s: ArrayLike) -> Ints:
    """The rate, in units of rate, that each link on its own allows a flow with that coefficient."""
    return (to_rate(capacity_bytes_per_s) << FRACTION_BITS) // fixed_point(coefficient)


def slowest_rate(coefficient: ArrayLike, capacity_bytes_per_s: ArrayLike) -> int:
    """The rate, in units of rate, that all links of a route together allow one flow; NO_CAP without links."""
    return int(solo_rates(coefficient, capacity_bytes_per_s).min(initial=NO_CAP))


def solo_duration_ns(fixed_ns: int, work_bytes: int, rate: int, rate_cap_bytes_per_s: int = 0) -> int:
    """Duration of one flow with its links, which allow it ``rate``, to itself: fixed part plus work over its rate."""
    if not work_bytes:
        return int(fixed_ns)
    return int(drained_ns(fixed_ns, work_bytes, min(rate, int(to_cap(rate_cap_bytes_per_s)))))


def drained_ns(fixed_ns: ArrayLike, work_bytes: ArrayLike, rate: ArrayLike) -> Ints:
    """Duration of flows at one rate each, in nanoseconds: their fixed part, then all of their work, rounded up."""
    return np.asarray(np.asarray(fixed_ns) - (-to_work(work_bytes) // np.maximum(rate, 1)), dtype=np.int64)
