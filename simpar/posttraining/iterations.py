"""What an iteration of a serving engine takes, in integers: a base by its sequences, and a rate by cached keys.

An iteration in which n sequences decode one token each takes

    base(n) + floor((sum over layers of r_w S_w) / SCALE)  nanoseconds,

where S_w are the keys that the sequences read in layers with a window w (all keys without one) and r_w is an integer.
While the same sequences decode, S_w grows by as many keys an iteration as there are sequences shorter than w. So a run
of iterations is a sum of floors of an arithmetic progression, which has an exact closed form (:func:`floor_sum`): a
thousand tokens cost no more than one.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.units import Ints

SCALE = 1 << 20
"""Parts of a nanosecond in which the time to read one key is counted."""
NO_WINDOW = 2**62


@dataclass(frozen=True)
class Piece:
    """A part of a prompt that one iteration computes: ``tokens`` behind ``before`` that are in the cache."""

    tokens: int
    before: int


@dataclass(frozen=True)
class IterationTimes:
    """Times of iterations of one replica.

    ``base_ns`` int64[most + 1] are those of n decoding sequences without reading keys; ``rates`` the integer rates by
    window. ``with_prompts_ns`` is the time of an iteration of n sequences and pieces of prompts, without the keys that
    the sequences read.
    """

    base_ns: Ints
    windows: tuple[int, ...]
    rates: tuple[int, ...]
    with_prompts_ns: Callable[[int, Sequence[Piece]], int]

    @cached_property
    def bases(self) -> list[int]:
        """The bases as Python integers, which do not overflow."""
        return [int(each) for each in self.base_ns]

    def keys_read(self, cached: Ints) -> int:
        """The sum of rate x keys for sequences that have ``cached`` tokens in the cache and read one more."""
        return sum(
            rate * int(np.minimum(cached + 1, window).sum())
            for window, rate in zip(self.windows, self.rates, strict=True)
        )

    def growth(self, cached: Ints) -> int:
        """By how much that sum grows with every iteration, until a sequence outgrows a window."""
        return sum(
            rate * int((cached + 1 < window).sum()) for window, rate in zip(self.windows, self.rates, strict=True)
        )

    def until_outgrown(self, cached: Ints) -> int:
        """Iterations for which the growth stays as it is."""
        left = [
            int((window - 1 - below).min())
            for window in self.windows
            if window < NO_WINDOW and len(below := cached[cached + 1 < window])
        ]
        return min(left, default=NO_WINDOW)

    def run(self, cached: Ints) -> "DecodeRun":
        """The iterations in which these sequences decode, one after the other."""
        return DecodeRun(self.bases[len(cached)], self.keys_read(cached), self.growth(cached))

    def mixed_ns(self, cached: Ints, pieces: Sequence[Piece]) -> int:
        """One iteration with pieces of prompts beside the decoding sequences."""
        return self.with_prompts_ns(len(cached), pieces) + self.keys_read(cached) // SCALE


@dataclass(frozen=True)
class DecodeRun:
    """Iterations of the same sequences: iteration i takes ``base_ns`` + floor((``read`` + i ``growth``) / SCALE)."""

    base_ns: int
    read: int
    growth: int

    def time_ns(self, iterations: int) -> int:
        """Nanoseconds of the first iterations."""
        return iterations * self.base_ns + floor_sum(iterations, SCALE, self.growth, self.read)

    def first_not_before(self, time_ns: int, most: int) -> int:
        """The fewest iterations, at most ``most``, that take ``time_ns`` or longer."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.time_ns(middle) >= time_ns:
                high = middle
            else:
                low = middle + 1
        return low


def floor_sum(count: int, divisor: int, slope: int, start: int) -> int:
    """The sum of floor((slope i + start) / divisor) over i = 0 .. count - 1, for non-negative integers.

    Whole parts of slope and start are summed directly; what is left counts lattice points below a line, and swapping
    the axes makes it the same problem with a smaller divisor, as in Euclid's algorithm [Graham, Knuth and Patashnik,
    Concrete Mathematics, section 3.5].
    """
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (slope // divisor) + count * (start // divisor)
        slope, start = slope % divisor, start % divisor
        top = slope * count + start
        if top < divisor:
            break
        count, start, divisor, slope = top // divisor, top % divisor, slope, divisor
    return total
