"""What a pipeline schedule declares: how its tables are made, and everything that other modules need to know of them.

A file of this folder holds a tuple ``PRODUCERS``. Plans, searches, memory bounds, exports and tests read the entries;
none of them knows a schedule by its name.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.plan.schedules.actions import B, Ints, Schedule, W

NONE = -1
EVERY = 2**62
"""More microbatches than any step has, to stand for all of them."""
Costs = tuple[float, float, float]


@dataclass(frozen=True)
class Moment:
    """A moment of a rank at which a backward begins: ``flying`` int64[layouts, chunks] are forwards in flight.

    ``forward`` int64[layouts] is the chunk of the last forward, ``backward`` the chunk of the backward; -1 where a
    memory bound must not count the pass. ``splits``: the backward's weight gradients are a pass of their own.
    """

    flying: Ints
    forward: Ints
    backward: int
    splits: bool = False


@dataclass(frozen=True)
class Names:
    """Other names of a schedule, in small letters and digits only.

    ``aliases`` mean this schedule alone; ``hints`` are words for several schedules, or for similar ones, which errors
    answer with a question. ``pattern`` is a regular expression for words in published tables.
    """

    aliases: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True)
class Promise:
    """Published properties of a schedule on p ranks with m microbatches and its default chunks.

    ``month`` is that of publication ("2018-11"; "" if unpublished) and orders lists of schedules.
    ``most_in_flight(p, m)`` is the largest number of chunks of activations on a rank, reached from 3 p microbatches on.
    ``bubble(p, m)`` is the makespan minus a rank's work, in passes of a chunk, for F = I = W, p > 1 (p > 3 for V-Half
    and V-Min) and m >= 2 p.
    """

    month: str
    most_in_flight: Callable[[int, int], int]
    bubble: Callable[[int, int], int]


def any_shape(p: Any, m: Any) -> Any:
    """``allows`` of schedules for any number of ranks and microbatches: all True."""
    return np.ones(np.broadcast_shapes(np.shape(p), np.shape(m)), dtype=bool)


@dataclass(frozen=True, eq=False)
class Producer:
    """A schedule: ``make(p, m)`` gives the table of p ranks and m microbatches.

    ``make`` also takes ``vpp`` where a rank may have any number of chunks, and ``costs``, durations of F, I and W,
    where the table depends on them; the first line of its docstring describes the schedule. ``chunks`` is the default
    number per rank. ``first_backward(rank, p, vpp, m)`` is the :class:`Moment` of a rank at its first backward, however
    long passes take, for m int64[layouts]. ``allows(p, m)`` says elementwise for which numbers there is a table.

    ``usual``: it is the schedule of plans that name none, for its number of chunks. ``searched``: by default, when
    named, or never, because every other one is better. ``runs_slices``: it runs slices of tokens. ``half_schedule``:
    the schedule on half as many ranks to which this one, with two ends and two stages per rank, folds. ``beginnings(p,
    m, costs, forwards)``: the tables among which this one chooses, up to the time at which the first stage has begun
    that many forwards; for greedy schedules whose beginnings show early that they fall behind.
    """

    name: str
    make: Callable[..., Schedule]
    promise: Promise
    first_backward: Callable[[int, int, int, Ints], Moment]
    chunks: int = 1
    allows: Callable[[Any, Any], Any] = any_shape
    names: Names = Names()
    usual: bool = False
    searched: Literal["by default", "when named", "never"] = "by default"
    runs_slices: bool = False
    half_schedule: str = ""
    beginnings: Callable[[int, int, Costs, int], Sequence[Schedule]] | None = None

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.make).parameters)

    @property
    def any_chunks(self) -> bool:
        """Whether a rank may have any number of chunks."""
        return "vpp" in self._parameters

    @property
    def looks_at_costs(self) -> bool:
        """Whether a table depends on the durations of its passes."""
        return "costs" in self._parameters

    @cached_property
    def _small(self) -> tuple[NDArray[np.int8], bool, bool]:
        table = self.make(2, 4, self.chunks) if self.any_chunks else self.make(2, 4)
        pairs = any(bool(columns.overlap.any()) for columns in table.ranks)
        codes = np.concatenate([columns.code for columns in table.ranks])
        return codes, pairs, table.rank_of_stage[2:] == (1, 0)

    @property
    def splits(self) -> bool:
        """Whether at least some backwards are split into input gradients and weight gradients."""
        return bool((self._small[0] == W).any())

    @property
    def splits_all(self) -> bool:
        """Whether all backwards are split so."""
        return self.splits and not (self._small[0] == B).any()

    @property
    def pairs(self) -> bool:
        """Whether some forwards run together with a backward."""
        return self._small[1]

    @property
    def v_shaped(self) -> bool:
        """Whether a rank holds a stage on the way down the pipeline and one on the way up."""
        return self._small[2]

    def describe(self) -> str:
        """A sentence that describes the schedule."""
        return (inspect.getdoc(self.make) or "").splitlines()[0]


def moment(most: Sequence[int], last: int, microbatches: Ints, *, turns: bool = False) -> Moment:
    """The moment with ``most`` forwards of every chunk in flight, limited by the number of ``microbatches``.

    ``last`` is the chunk of the last forward. In a V (``turns``) with too few microbatches, that forward may come
    behind the first gradient and is not counted.
    """
    number = np.asarray(microbatches)
    late = (number < most[-1]) & turns
    forward = np.where(late, NONE, last)
    return Moment(np.minimum(np.array(most), number[:, None]), forward, NONE if last == NONE else len(most) - 1)
