"""What a rank waits for: every gap on its compute stream, followed back to ops, ranks and causes.

An op starts when the predecessor that finishes last is over: its *binding* predecessor. From the op behind a gap,
binding predecessors lead back through time without a hole, so every nanosecond of the gap belongs to one op:

* A transfer in which the rank itself takes part is exposed communication of its kind. It starts when its last
  participant arrives, so exposed time never exceeds the time it runs.
* Anything else is waiting, for what the last participant did instead. The chain behind the gap and the rank's own
  past take equally long; what the chain has more of is why the rank waits: extra time of a slow rank's kernels, more
  work than the mean rank's, or longer collectives than in other groups. Waiting for another stage without any of
  these is caused by the schedule: pipeline bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.program.ir.program import Timing
from simpar.report import loops
from simpar.report.chains import nearest_flagged, sum_along
from simpar.units import Flags, Floats, Indices, Ints

SLOW, UNEQUAL, GROUPS, BUBBLE = range(4)
"""Causes of waiting: a slow rank, a rank with more work, collectives of other groups, the schedule."""
WAITS = ("slow rank", "unequal work", "other groups", "bubble")


@dataclass(frozen=True)
class Gaps:
    """Idle intervals of compute streams, ordered by class and time: columns int64[gaps].

    ``behind`` is the op whose finish ends the gap: the binding predecessor of the next op, or the last op of a step.
    ``past`` float64[gaps, 3] is the excess (:class:`Excess`) of what the rank has computed before.
    """

    class_id: Ints
    begin: Ints
    end: Ints
    behind: Ints
    past: Floats

    def __len__(self) -> int:
        return len(self.begin)

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """The gaps of every class, up to the last one that has any."""
        ends = np.searchsorted(self.class_id, np.arange(int(self.class_id.max(initial=-1)) + 2)).tolist()
        return tuple(slice(*both) for both in pairwise(ends))

    @staticmethod
    def of(class_id: int, ops: Indices, timing: Timing, excess: Excess, last: int) -> Gaps:
        """The gaps of a class between its compute ``ops``, and from them to the end of op ``last`` (-1: none)."""
        free = np.append(0, timing.finish_ns[ops])
        end = np.append(timing.start_ns[ops], timing.finish_ns[last] if last >= 0 else 0)
        idle = np.flatnonzero(end > free)
        behind = np.append(excess.binding[ops], last)[idle]
        past, later = np.zeros((len(idle), BUBBLE)), idle > 0
        for cause, own in excess.own.items():
            past[later, cause] = np.cumsum(own[ops])[idle[later] - 1]
        return Gaps(np.full(len(idle), class_id), free[idle], end[idle], behind, past)

    @staticmethod
    def joined(parts: list[Gaps]) -> Gaps:
        """The gaps of all classes."""
        names = Gaps.__dataclass_fields__
        return Gaps(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class GapPieces:
    """Pieces of gaps, columns of [pieces]: the gap, begin and end, and the op that ran there."""

    gap: Ints
    begin: Ints
    end: Ints
    op: Indices

    def take(self, rows: Ints | Flags | slice) -> GapPieces:
        """The pieces at ``rows``."""
        return GapPieces(self.gap[rows], self.begin[rows], self.end[rows], self.op[rows])

    @staticmethod
    def joined(parts: Sequence[GapPieces]) -> GapPieces:
        """All pieces of some that are ordered alike: by gap, within a gap the last piece first."""
        some = [part for part in parts if len(part.gap)] or parts[:1]
        if len(some) == 1:
            return some[0]
        columns = {
            name: np.concatenate([getattr(part, name) for part in some]) for name in GapPieces.__dataclass_fields__
        }
        order = np.lexsort((-columns["end"], columns["gap"]))
        return GapPieces(**columns).take(order)

    @property
    def length_ns(self) -> Ints:
        """Nanoseconds of every piece."""
        return self.end - self.begin


def follow_back(gaps: Gaps, timing: Timing, binding: Indices) -> GapPieces:
    """Every gap cut by the ops of the chain that leads back from its end, the last piece of a gap first."""
    return GapPieces(*loops.follow_gaps(gaps.begin, gaps.end, gaps.behind, timing.start_ns, binding))


@dataclass(frozen=True)
class Excess:
    """Time of ops beyond the mean rank's at full speed, float64[num_ops] ns by SLOW, UNEQUAL and GROUPS, if any.

    It is summed along the ``binding`` predecessors. ``share`` float64[num_classes, sorts] is the part of GROUPS in a
    class's time of each sort of communication, ``sort`` int8[num_ops] the sort of an op (-1: none).
    """

    own: Mapping[int, Floats]
    share: Floats
    sort: NDArray[np.int8]
    binding: Indices

    def chain(self, ops: Indices) -> Floats:
        """The excess summed over ops and the chains that lead to them: float64[len(ops), 3]."""
        result = np.zeros((len(ops), BUBBLE))
        for cause, own in self.own.items():
            result[:, cause] = sum_along(self.binding, own)[ops]
        return result

    def find_cause(self, ops: Ints, cause: int) -> Ints:
        """The nearest op with an excess of a cause, on the chains that lead to some ops: int64[len(ops)], -1: none."""
        if cause not in self.own or not len(ops):
            return np.full(len(ops), -1)
        return nearest_flagged(self.binding, self.own[cause] >= 1.0, ops)


def split_waiting(wait_ns: Ints, surplus: Floats) -> Ints:
    """The waiting in one rank's gaps by SLOW, UNEQUAL and GROUPS: int64[gaps, 3], in time order.

    ``surplus`` float64[gaps, 3] is by how much the chain behind a gap exceeds the rank itself in each cause, since the
    step began. What earlier gaps have not been assigned goes to this one, up to its length.
    """
    return loops.split_waiting(wait_ns, surplus)


def place_shares(pieces: GapPieces, shares_ns: Ints) -> Iterator[tuple[int, GapPieces]]:
    """The time ranges of shares of waiting: for each cause the pieces of waiting, filled from the end of a gap.

    ``shares_ns`` int64[gaps, causes] sum to the pieces of every gap.
    """
    length = pieces.length_ns
    so_far = np.cumsum(length) - length
    first = np.searchsorted(pieces.gap, pieces.gap)
    offset = so_far - so_far[first]  # waiting of the same gap that lies behind the piece
    upper = np.cumsum(shares_ns, axis=1)
    for cause in range(shares_ns.shape[1]):
        high = upper[pieces.gap, cause]
        low = high - shares_ns[pieces.gap, cause]
        begin, end = np.maximum(low, offset), np.minimum(high, offset + length)
        rows = np.flatnonzero(end > begin)
        shift = (pieces.end + offset)[rows]
        yield cause, GapPieces(pieces.gap[rows], shift - end[rows], shift - begin[rows], pieces.op[rows])
