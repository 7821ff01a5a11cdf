"""Lower bounds of a step, in nanoseconds, that no execution of a plan can undercut.

Every bound is the length of a path through the precedence graph of the Program, or the work of one of its streams or
links; sharing links only makes paths longer. There are two paths for every virtual stage:

    first forwards of all earlier stages + work of its rank from its own first forward on + tail of the rank
    the same, but only its own and later stages' backwards + last backwards of all earlier stages + tail of rank 0

From its first forward on, a rank runs the forwards of that stage and of its later stages, and all its backwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simpar.dataclass import dataclass
from simpar.planner.bound.shapes import PipelineShape
from simpar.units import Floats


@dataclass(frozen=True)
class StagePassTimes:
    """Durations of the passes of every virtual stage, float64[n, stages].

    ``backward`` is the whole backward, and ``gradient`` the part of it that the previous stage waits for. If a table
    has both whole backwards (B) and split ones (I, W), ``gradient`` is the lesser of the two.
    """

    forward: Floats
    backward: Floats
    gradient: Floats

    @staticmethod
    def of(times: Mapping[str, Floats]) -> StagePassTimes:
        """Passes from durations by letter, float64[n, stages]."""
        least = [
            (sum(times[one] for one in letters), times[letters[0]]) for letters in ("B", "IW") if letters[0] in times
        ]
        return StagePassTimes(times["F"], *map(np.minimum.reduce, zip(*least, strict=True)))


@dataclass(frozen=True)
class Stages:
    """Durations of the passes of every virtual stage on its rank: a ``usual`` pass, and the first and last (``ends``).

    ``chain`` are the first forward and last backward from start to end, for which other stages wait; they exceed the
    time on the rank where passes share it.
    """

    usual: StagePassTimes
    ends: StagePassTimes
    chain: StagePassTimes


@dataclass(frozen=True)
class Hops:
    """Nanoseconds of the messages after every virtual stage but the last, float64[n, stages - 1].

    ``blocking`` says whether they hold up the sender's kernels.
    """

    ahead: Floats
    back: Floats
    blocking: bool

    @staticmethod
    def none(shape: PipelineShape, count: int) -> Hops:
        """Messages that take no time."""
        zero = np.zeros((count, len(shape.pieces) - 1))
        return Hops(zero, zero, False)


@dataclass(frozen=True)
class Path:
    """The latest ends of the passes of every pipeline rank, float64[n, ranks], and of the first stage's passes, [n]."""

    ends: Floats
    returns: Floats

    def behind(self, tail: Floats | float = 0.0) -> Floats:
        """The longest path in nanoseconds, float64[n], with ``tail`` [n, ranks] after the last pass of every rank."""
        tails = np.broadcast_to(tail, self.ends.shape)
        return np.asarray(np.maximum((self.ends + tails).max(axis=1), self.returns + tails[:, 0]))


def path_bound(shape: PipelineShape, stages: Stages, hops: Hops, microbatches: Floats) -> Path:
    """Bounds of the pipelined part of a step for rows of one shape."""
    usual, ends, chain, several = stages.usual, stages.ends, stages.chain, (microbatches - 1.0)[:, None]
    none = np.zeros((len(microbatches), 1))
    ahead, back = (np.concatenate([none, each], axis=1) for each in (hops.ahead, hops.back))
    reached = np.cumsum(np.concatenate([none, chain.forward[:, :-1]], axis=1) + ahead, axis=1)
    behind = np.cumsum(np.concatenate([none, chain.gradient[:, :-1]], axis=1) + back, axis=1)
    forward = several * usual.forward + ends.forward
    backward = several * usual.backward + ends.backward
    gradient = several * usual.gradient + ends.gradient
    if hops.blocking:  # but a rank's last message, and a stage's last one, which counts in behind
        sent = microbatches[:, None] * back
        forward = forward + microbatches[:, None] * np.concatenate([hops.ahead, none], axis=1)
        backward, gradient, behind = backward + sent, gradient + sent, behind - back
        # reached[s] = first forwards and messages of stages < s; behind[s] = their last backwards and messages back
    # begun[s] = reached[s] + forwards of s and of the later stages of its rank
    # ends[r] = max over stages s of r of begun[s], + all backwards of r
    # returns = max over s of begun[s] + gradients of s and of the later stages of its rank + behind[s]
    begun = reached + shape.onwards(forward)
    latest = begun[:, shape.stages_of].max(axis=2)
    latest += shape.by_rank(backward) - (back[:, shape.first_stage] if hops.blocking else 0.0)
    return Path(latest, (begun + shape.onwards(gradient) + behind).max(axis=1))
