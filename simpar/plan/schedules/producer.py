"""What a pipeline schedule declares: how its tables are made, and all that anyone asks of them.

A file of this folder holds a tuple ``PRODUCERS``. Plans, searches, memory, targets of exports and tests read the
entries; none of them knows a schedule by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simpar.plan.schedules.actions import B, Ints, Schedule, W

NONE = -1
EVERY = 2**62
"""More microbatches than there are: all of a step."""
Costs = tuple[float, float, float]


@dataclass(frozen=True)
class Moment:
    """Forwards in flight by chunk of a rank, int64[layouts, chunks], at a moment when a backward begins.

    ``forward`` is the chunk of the last of them, ``backward`` that of the backward, -1 where it does not count;
    ``splits``: whether the backward's weight gradients are a pass of their own.
    """

    flying: Ints
    forward: Ints
    backward: int
    splits: bool = False


@dataclass(frozen=True)
class Names:
    """What else a schedule is called, in small letters and digits alone.

    ``aliases`` are names of this one only; ``hints`` words for several, or for ones like it, that are asked back about.
    ``pattern`` is a regular expression of words in published tables.
    """

    aliases: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True)
class Promise:
    """What is published of a schedule of p ranks and m microbatches, with its natural chunks.

    ``month`` as arXiv has it ("2018-11"; "" for what nobody published): schedules are listed in this order.
    ``most_in_flight(p, m)`` are chunks of activations that a rank keeps at most, reached from 3 p microbatches on;
    ``bubble(p, m)`` the makespan beyond a rank's work in passes of a chunk, for F = I = W, p > 1 (p > 3 under patterns
    of V) and m >= 2 p.
    """

    month: str
    most_in_flight: Callable[[int, int], int]
    bubble: Callable[[int, int], int]


def any_shape(p: Any, m: Any) -> Any:
    """Any number of ranks and microbatches."""
    return np.ones(np.broadcast_shapes(np.shape(p), np.shape(m)), dtype=bool)


@dataclass(frozen=True, eq=False)
class Producer:
    """A schedule: ``make(p, m)`` gives the table of p ranks and m microbatches.

    It also takes the chunks of a rank as ``vpp`` where there may be any number of them, and ``costs``, durations of F,
    I and W, where it looks at them; the first line of its docstring says what it is. ``chunks`` are those of a rank
    when nobody says otherwise. ``first_backward(rank, p, vpp, m)`` is the :class:`Moment` of a rank at its first
    backward, however long passes take, for m int64[layouts]. ``allows(p, m)`` says elementwise for which numbers there
    is a table.

    ``usual``: meant by plans that name no schedule but have as many chunks. ``searched``: by default, when named, or
    never, as every other one is better. ``sliced``: runs slices of tokens. ``half_is``: the schedule of half as many
    ranks that does what this one does from both ends, where every rank holds two stages. ``beginnings(p, m, costs,
    forwards)``: the tables of which this one takes one, until the first stage has begun so many forwards; for greedy
    schedules whose beginnings tell early that they fall behind.
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
    sliced: bool = False
    half_is: str = ""
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
        """Whether it runs gradients of inputs and of weights apart, in some backwards at least."""
        return bool((self._small[0] == W).any())

    @property
    def splits_all(self) -> bool:
        """Whether it does so in all backwards."""
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
        """What it is, in a sentence."""
        return (inspect.getdoc(self.make) or "").splitlines()[0]


def moment(most: Sequence[int], last: int, microbatches: Ints, *, turns: bool = False) -> Moment:
    """The moment with ``most`` forwards of every chunk in flight, as far as there are microbatches.

    ``last`` is the chunk of the last of them. Where the pipeline ``turns``, that may come behind the first gradient if
    microbatches are too few.
    """
    number = np.asarray(microbatches)
    late = (number < most[-1]) & turns
    forward = np.where(late, NONE, last)
    return Moment(
        np.minimum(np.array(most), number[:, None]), forward, NONE if last == NONE else len(most) - 1
    )
