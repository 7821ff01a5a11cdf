"""Lower bounds of a step, in nanoseconds: what no execution of a plan can undercut.

Every bound is the length of a path through the precedence graph of the Program, or the work of one of its streams or
links, and sharing of links only makes paths longer. Of every virtual stage:

    a first forward of all stages ahead + what its rank does from its own first forward on + what follows on the rank
    the same, but for backwards of earlier stages + a last backward of all stages ahead + what follows on the first

From its first forward on a rank runs the forwards of that stage and of its later ones, and the backwards of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simpar.search.bound.shapes import Shape, weigh
from simpar.units import Floats


@dataclass(frozen=True)
class Passes:
    """Times of passes of every virtual stage, float64[n, stages].

    ``backward`` is the whole one, and ``gradient`` what of it the stage ahead waits for: the least of what a table has,
    where some backwards are whole (B) and others come in halves (I, W).
    """

    forward: Floats
    backward: Floats
    gradient: Floats

    @staticmethod
    def of(times: Mapping[str, Floats]) -> Passes:
        """Passes from times by letter, float64[n, stages]."""
        least = [
            (sum(times[one] for one in letters), times[letters[0]])
            for letters in ("B", "IW")
            if letters[0] in times
        ]
        return Passes(times["F"], *map(np.minimum.reduce, zip(*least, strict=True)))


@dataclass(frozen=True)
class Stages:
    """What every virtual stage takes of its rank: a ``usual`` pass, the first forward and last backward (``ends``).

    And what other stages wait for: the first forward and last backward from start to end (``chain``), which is more
    where passes share a rank.
    """

    usual: Passes
    ends: Passes
    chain: Passes


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
    """When the passes of every pipeline rank may end, float64[n, ranks], and those of the first stage, [n]."""

    ends: Floats
    returns: Floats

    def behind(self, tail: Floats | float = 0.0) -> Floats:
        """Nanoseconds of the longest path with a tail [n, ranks] behind the last pass of every rank, float64[n]."""
        tails = np.broadcast_to(tail, self.ends.shape)
        return np.asarray(np.maximum((self.ends + tails).max(axis=1), self.returns + tails[:, 0]))


def path_bound(shape: Shape, stages: Stages, hops: Hops, microbatches: Floats) -> Path:
    """Bounds of the pipelined part of a step for rows of one shape."""
    usual, ends, chain, several = stages.usual, stages.ends, stages.chain, (microbatches - 1.0)[:, None]
    none = np.zeros((len(microbatches), 1))
    ahead, back = (np.concatenate([none, each], axis=1) for each in (hops.ahead, hops.back))
    reached = np.cumsum(np.concatenate([none, chain.forward[:, :-1]], axis=1) + ahead, axis=1)
    behind = np.cumsum(np.concatenate([none, chain.gradient[:, :-1]], axis=1) + back, axis=1)
    forward = several * usual.forward + ends.forward
    backward = several * usual.backward + ends.backward
    gradient = several * usual.gradient + ends.gradient
    if hops.blocking:  # but the last message of a rank, and of a stage where it counts as what follows
        sent = microbatches[:, None] * back
        forward = forward + microbatches[:, None] * np.concatenate([hops.ahead, none], axis=1)
        backward, gradient, behind = backward + sent, gradient + sent, behind - back
    begun = reached + weigh(forward, shape.later)
    latest = np.stack([begun[:, held].max(axis=1) for held in shape.stages_of], axis=1)
    latest += weigh(backward, shape.of_rank) - (back[:, shape.first_stage] if hops.blocking else 0.0)
    return Path(latest, (begun + weigh(gradient, shape.later) + behind).max(axis=1))
