"""Lower bounds of a step, in nanoseconds: what no execution of a plan can undercut.

Every bound is the length of a path through the precedence graph of the Program, or the work of one of its streams or
links, and sharing of links only makes paths longer. Of a pipeline rank r:

    what must happen before its first pass + all its passes + what must follow its last one

Before the first forward of a rank's first stage the stages ahead run one forward each. In a table of whole backwards
a rank ends with the backward of its first stage, and the stages ahead must still run theirs; where backwards come in
halves nothing need follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.search.bound.shapes import Shape, weigh

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Stages:
    """Times of passes of every virtual stage, float64[n, stages].

    A usual pass, and where it takes longer the first forward and the last backward. ``weight`` is zero where
    backwards are whole; ``backward`` is the input gradient where they come in halves, and the shorter of whole and
    halves in a table that has both.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    first_forward: Floats
    last_backward: Floats
    last_weight: Floats

    @staticmethod
    def plain(shape: Shape, times: Mapping[str, Ints]) -> Stages:
        """Stages whose passes all take the same, from times by letter, int64[n, kinds]."""
        forward = weigh(times["F"], shape.by_stage)
        backward, weight = backwards(
            shape, {one: weigh(times[one], shape.by_stage) for one in shape.letters[1:]}
        )
        return Stages(forward, backward, weight, forward, backward, weight)


def backwards(shape: Shape, times: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Times of the backward (or its first half) and of its second half, from times by letter."""
    none = np.zeros_like(times[shape.letters[1]])
    if shape.mixes:
        return np.minimum(times["B"], times["I"] + times["W"]), none
    return (times["I"], times["W"]) if shape.splits else (times["B"], none)


@dataclass(frozen=True)
class Hops:
    """Nanoseconds of messages behind every virtual stage but the last, float64[n, stages - 1].

    ``blocking`` says whether the sender's kernels wait for them.
    """

    ahead: Floats
    back: Floats
    blocking: bool

    @staticmethod
    def none(shape: Shape, count: int) -> Hops:
        """Messages that take no time."""
        zero = np.zeros((count, len(shape.pieces) - 1))
        return Hops(zero, zero, False)


@dataclass(frozen=True)
class Path:
    """Of every pipeline rank, float64[n, ranks]: when its passes may end, and when those of rank 0 may, behind it.

    The latter are zero where backwards come in halves.
    """

    ends: Floats
    returns: Floats

    @property
    def longest(self) -> Floats:
        """Nanoseconds of the longest path, float64[n]."""
        return np.asarray(np.maximum(self.ends.max(axis=1), self.returns.max(axis=1)))


def path_bound(shape: Shape, stages: Stages, hops: Hops, microbatches: Floats) -> Path:
    """Bounds of the pipelined part of a step for rows of one shape."""
    several = (microbatches - 1.0)[:, None]
    once = stages.first_forward + stages.last_backward + stages.last_weight
    passes = several * (stages.forward + stages.backward + stages.weight) + once
    work = weigh(passes, shape.of_rank)
    before = weigh(stages.first_forward, shape.before) + weigh(hops.ahead, shape.before[:, :-1])
    if hops.blocking:
        sent = np.zeros_like(passes)
        sent[:, :-1] += hops.ahead
        sent[:, 1:] += hops.back
        work = work + microbatches[:, None] * weigh(sent, shape.of_rank) - _last_messages(shape, hops)
    ends = before + work
    behind = weigh(stages.last_backward, shape.before) + weigh(hops.back, shape.before[:, :-1])
    return Path(ends, np.zeros_like(ends) if shape.splits else ends + behind)


def _last_messages(shape: Shape, hops: Hops) -> Floats:
    """The message behind a rank's last pass, which already counts as what follows."""
    back = np.zeros((len(hops.back), len(shape.pieces)))
    back[:, 1:] = hops.back
    return np.asarray(back[:, shape.first_stage])
