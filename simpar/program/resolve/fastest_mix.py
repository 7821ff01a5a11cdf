"""The fastest mix of recomputation choices under one workspace, by enumerating what a price on memory leaves over.

With a price on every byte that is in flight at one moment, a choice costs its time and its bytes; what it costs above
the cheapest choice of its run, for as many layers, is its *excess*. The Lagrangian dual is a lower bound of the time of
all mixes, and a mix takes at least that bound plus its excesses. So all mixes that take at most a gap longer than the
bound have excesses of at most that gap in all: they are few where the gap is small, and it grows until one of them fits
that takes no longer. Then none is faster. Times are whole picoseconds, so that equal ones are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simpar.dataclass import dataclass
from simpar.units import Floats, Ints

ROUNDING = 2.0**-40
"""The share by which sums of floats may differ from the exact ones."""
FIRST_GAP, WIDER = 2.0**-6, 4.0
"""The first gap that is tried, as a share of the largest that there may be, and by how much the next one is wider."""
MOST_MIXES = 200_000
MOST_COMPARED = 500
"""Mixes that are compared one by one where several moments bind."""


class TooManyMixes(Exception):
    """More than MOST_MIXES mixes may be the fastest."""


@dataclass(frozen=True)
class RunColumns:
    """The choices for a run of ``length`` layers as columns.

    ``layers`` and ``again_ps`` int64[choices], ``saved_bytes`` float64[choices] of a microbatch; ``in_flight``
    float64[moments].
    """

    length: int
    layers: Ints
    again_ps: Ints
    saved_bytes: Floats
    in_flight: Floats


class MemoryPrice(NamedTuple):
    """A lower bound of the picoseconds of all mixes, and the ``moment`` and price of a byte (ps) that give it."""

    bound_ps: float
    moment: int
    byte_ps: float


class Mix(NamedTuple):
    """A mix: its time, the most bytes in flight, and by run how often every choice is taken."""

    again_ps: int
    saved_bytes: float
    counts: list[Ints]


class _Covers(NamedTuple):
    """Ways to cover the layers of a run: excess and time (ps), saved bytes, and counts int64[ways, choices]."""

    excess: Floats
    again_ps: Ints
    saved: Floats
    counts: Ints


def price_of(runs: Sequence[RunColumns], limit_bytes: float) -> MemoryPrice | None:
    """The price with the largest bound, of one moment at a time; None if no mix is small enough.

    For any price p >= 0 the bound is sum over runs of length min_c (again + p in_flight saved) - p limit, each per
    layer; it is largest where the best choice of some run changes.
    """
    best = MemoryPrice(-1.0, 0, 0.0)
    for moment in range(len(runs[0].in_flight)):
        each = [(r.length, r.again_ps / r.layers, r.in_flight[moment] * r.saved_bytes / r.layers) for r in runs]
        if sum(length * saved.min() for length, _, saved in each) > limit_bytes * (1 + ROUNDING):
            return None
        prices = [np.zeros(1)]
        for _, again, saved in each:
            slower, smaller = again[:, None] - again, saved - saved[:, None]
            changes = (slower > 0) & (smaller > 0)
            prices.append(slower[changes] / smaller[changes])
        price = np.unique(np.concatenate(prices))
        total = -price * limit_bytes
        for length, again, saved in each:
            total += length * (again + price[:, None] * saved).min(axis=1)
        at = int(total.argmax())
        best = max(best, MemoryPrice(float(total[at]), moment, float(price[at])))
    return best


def fastest_mix(
    runs: Sequence[RunColumns], limit_bytes: float, price: MemoryPrice, most_ps: float = np.inf
) -> Mix | None:
    """The fastest mix whose bytes in flight are within a limit at every moment; None if it takes over ``most_ps``.

    Of equally fast ones it is that with the fewest bytes. ``price`` is that of :func:`price_of`. Raises TooManyMixes.
    """
    excess = [_excess(run, price) for run in runs]
    slowest_ps = sum(run.length * float((run.again_ps / run.layers).max()) for run in runs)
    lower_ps = price.bound_ps * (1 - ROUNDING) - 1.0

    def reach(time_ps: float) -> float:
        """The gap within which all mixes of at most this time are, whatever is rounded."""
        return time_ps * (1 + ROUNDING) + 1.0 - lower_ps

    widest = reach(min(most_ps, slowest_ps))
    gap = max(FIRST_GAP * (slowest_ps - lower_ps), 1.0)
    while widest >= 0:
        gap = min(gap, widest)
        mix = _within_gap(runs, excess, limit_bytes, gap)
        if mix is not None and mix.again_ps <= lower_ps + gap:
            return mix if mix.again_ps <= most_ps else None
        if gap == widest:
            break
        if mix is None:
            gap *= WIDER
        else:
            gap = widest = min(widest, reach(mix.again_ps))
    return None


def _excess(run: RunColumns, price: MemoryPrice) -> Floats:
    """What every choice costs above the cheapest one for as many layers, in picoseconds; rounded down."""
    cost = run.again_ps + price.byte_ps * run.in_flight[price.moment] * run.saved_bytes
    above = cost - run.layers * (cost / run.layers).min()
    return np.asarray(np.where(above > ROUNDING * cost.max() + 1.0, above, 0.0))


def _within_gap(runs: Sequence[RunColumns], excess: Sequence[Floats], limit: float, gap: float) -> Mix | None:
    """The fastest mix that fits among those with excesses of at most ``gap`` picoseconds; None if none fits."""
    known: dict[tuple[object, ...], _Covers] = {}
    covers = []
    for run, above in zip(runs, excess, strict=True):
        name = run.length, *(each.tobytes() for each in (run.layers, run.again_ps, run.saved_bytes, above))
        if name not in known:
            known[name] = _covers(run, above, gap)
        covers.append(known[name])
    if not all(len(ways.excess) for ways in covers):
        return None
    least = np.array([run.in_flight * ways.saved.min() for run, ways in zip(runs, covers, strict=True)])
    rest = np.cumsum(least[::-1], axis=0)[::-1] - least  # what later runs hold at least
    above, again, saved = np.zeros(1), np.zeros(1, dtype=np.int64), np.zeros((1, least.shape[1]))
    steps: list[tuple[Ints, Ints]] = []
    for run, ways, later in zip(runs, covers, rest, strict=True):
        _check(len(above) * len(ways.excess) // 64)
        old, new = np.nonzero(above[:, None] + ways.excess <= gap)
        _check(len(old))
        held = saved[old] + ways.saved[new, None] * run.in_flight
        fits = np.flatnonzero((held + later <= limit * (1 + ROUNDING)).all(axis=1))
        kept = fits[_unbeaten(again[old[fits]] + ways.again_ps[new[fits]], held[fits])]
        old, new, saved = old[kept], new[kept], held[kept]
        above, again = above[old] + ways.excess[new], again[old] + ways.again_ps[new]
        steps.append((old, new))
    if not len(again):
        return None
    most = saved.max(axis=1, initial=0.0)
    at = first = int(np.lexsort((most, again))[0])
    counts = []
    for ways, (old, new) in zip(reversed(covers), reversed(steps), strict=True):
        counts.append(ways.counts[new[at]])
        at = int(old[at])
    return Mix(int(again[first]), float(most[first]), counts[::-1])


def _covers(run: RunColumns, excess: Floats, gap: float) -> _Covers:
    """All ways to cover the layers of a run with excesses of at most ``gap``, but those that others equal or beat."""
    few = np.flatnonzero(excess <= gap)
    few = few[np.argsort(-excess[few], kind="stable")]
    layers = np.zeros(1, dtype=np.int64)
    ways = _Covers(np.zeros(1), layers, np.zeros(1), np.zeros((1, len(excess)), dtype=np.int64))
    wide = 2.0 * run.length * float(run.saved_bytes.max()) + 1.0
    for choice in few:
        left = run.length - layers
        if choice == few[-1]:  # takes all that is left
            old = np.flatnonzero(left % run.layers[choice] == 0)
            times = left[old] // run.layers[choice]
        else:
            most = left // run.layers[choice]
            if excess[choice] > 0:
                most = np.minimum(most, np.floor((gap - ways.excess) / excess[choice]).astype(np.int64))
            _check(int(most.sum()) + len(most))
            old = np.repeat(np.arange(len(most)), most + 1)
            times = np.arange(len(old)) - np.repeat(np.cumsum(most + 1) - most - 1, most + 1)
        above = ways.excess[old] + times * excess[choice]
        covered = layers[old] + times * run.layers[choice]
        again = ways.again_ps[old] + times * run.again_ps[choice]
        saved = ways.saved[old] + times * run.saved_bytes[choice]
        order = np.lexsort((saved, again, covered))
        order = order[above[order] <= gap]
        kept = order[_falls(saved[order] - wide * covered[order])]  # more layers covered: always lower
        counts = ways.counts[old[kept]]
        counts[:, choice] = times[kept]
        layers, ways = covered[kept], _Covers(above[kept], again[kept], saved[kept], counts)
    whole = layers == run.length
    return _Covers(*(each[whole] for each in ways))


def _falls(values: Floats) -> Floats:
    """Where values are below all before them: bool[values]."""
    below = np.ones(len(values), dtype=bool)
    below[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return below


def _unbeaten(again_ps: Ints, saved: Floats) -> Ints:
    """Positions of mixes that no other one equals or beats in time and in bytes at every moment, fast ones first."""
    order = np.lexsort((*saved.T, again_ps))
    if saved.shape[1] == 1:
        return np.asarray(order[_falls(saved[order, 0])])
    if len(order) > MOST_COMPARED:
        return order
    held, kept = saved[order], np.zeros(len(order), dtype=bool)
    for at, mine in enumerate(held):
        kept[at] = not (held[:at][kept[:at]] <= mine).all(axis=1).any()
    return np.asarray(order[kept])


def _check(count: int) -> None:
    if count > MOST_MIXES:
        raise TooManyMixes(f"{count} mixes may be the fastest")
