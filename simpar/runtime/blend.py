"""From which of several sources each sequence of a run is drawn, so that shares keep to weights. No torch here."""

import math
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.indexed import prefix_of
from simpar.units import Ints

LONGEST = 100_000
"""Sequences after which the order begins anew, at the most: it is kept as a list of so many."""


@dataclass(frozen=True)
class Turns:
    """Whose turn it is, by the number of a sequence: an order that repeats.

    ``source`` is int64[period]; ``before`` int64[period] how many of the same source come earlier in the period;
    ``counts`` int64[sources] how many of each a period has.
    """

    source: Ints
    before: Ints
    counts: Ints

    @staticmethod
    def of(weights: Sequence[float]) -> "Turns":
        """The order in which n sequences have, for every n, within one of n times its share from each source.

        Each sequence has an earliest and a latest place that follow from this, and of those that may come next the one
        with the earliest latest place does, which meets all of them [Baruah, Cohen, Plaxton and Varvel 1996,
        Proportionate progress]. Weights count as the decimal numbers that they are written as. Raises UserError for
        weights whose order repeats too late.
        """
        exact = [Fraction(repr(weight)) for weight in weights]
        whole = math.lcm(*(each.denominator for each in exact))
        counts = [int(each * whole) for each in exact]
        common = math.gcd(*counts)
        counts = [each // common for each in counts]
        period = sum(counts)
        if period > LONGEST:
            raise UserError(
                f"--tokens: weights {', '.join(f'{each:g}' for each in weights)} repeat after {period} sequences; "
                f"allowed: at most {LONGEST}, with fewer digits"
            )
        source = np.array(_ordered(counts, period), dtype=np.int64)
        before = np.empty(period, dtype=np.int64)
        for number, count in enumerate(counts):
            before[source == number] = np.arange(count)
        return Turns(source, before, np.array(counts, dtype=np.int64))

    def at(self, position: Ints) -> tuple[Ints, Ints]:
        """The sources of sequences by number, and how many of the same source come before each: int64[n] both."""
        period, place = np.divmod(position, len(self.source))
        source = self.source[place]
        return source, period * self.counts[source] + self.before[place]

    def until(self, position: int) -> Ints:
        """How many of the first sequences are of each source: int64[sources]."""
        periods, rest = divmod(position, len(self.source))
        return np.asarray(periods * self.counts + np.bincount(self.source[:rest], minlength=len(self.counts)))


def sources_of(names: Sequence[str]) -> dict[str, Any]:
    """What ``--tokens`` says of a job's data: one path, or several, all as PATH=WEIGHT or none.

    What is there is a path, whatever its name. Raises UserError.
    """
    parts = [_weighted(name) for name in names]
    if len(parts) < 2:
        if parts and parts[0]["weight"] is not None:
            raise UserError(f"--tokens {names[0]}: one source needs no weight; allowed: PATH, or several with weights")
        return {"kind": "tokens", "path": parts[0]["path"]} if parts else {}
    for number, part in enumerate(parts):
        if (part["weight"] is None) != (parts[0]["weight"] is None):
            raise UserError(
                f"--tokens {names[number]} beside {names[0]}: allowed: weights for all sources, or for none"
            )
        if any(_same(part) == _same(each) for each in parts[:number]):
            raise UserError(f"--tokens {names[number]}: is named twice; allowed: once, with the sum of its weights")
    return {"kind": "tokens", "blend": parts}


def _same(part: dict[str, Any]) -> Path:
    """What two names of one source have in common."""
    path = Path(part["path"])
    return prefix_of(path) or path


def _weighted(name: str) -> dict[str, Any]:
    """A path and its weight (None: none is said). Raises UserError for a weight that is none."""
    path, mark, said = name.rpartition("=")
    here = Path(name)
    if not mark or here.exists() or prefix_of(here) is not None:
        return {"path": str(here.resolve()), "weight": None}
    try:
        weight = float(said)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise UserError(f"--tokens {name}: weight {said}; allowed: a positive number, such as {path}=0.7")
    return {"path": str(Path(path).resolve()), "weight": weight}


def _ordered(counts: Sequence[int], period: int) -> list[int]:
    """Sources in the order of :meth:`Turns.of`, of which a period has so many each."""
    later = [(0, number) for number in range(len(counts))]  # earliest place of the source's next sequence
    ready: list[tuple[int, int]] = []  # its latest place
    taken, result = [0] * len(counts), []
    for place in range(period):
        while later and later[0][0] <= place:
            number = heappop(later)[1]
            heappush(ready, (-(-(taken[number] + 1) * period // counts[number]) - 1, number))
        number = heappop(ready)[1]
        taken[number] += 1
        result.append(number)
        heappush(later, (taken[number] * period // counts[number], number))
    return result
