"""Phases of batches of keys as numbers: the duration of every step of a phase, and of the whole phase."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.planner.bound.keys import KeyBatch, Keys
from simpar.program.blocks.phases import BLOCK_STREAMS, CollectiveUse, Phase
from simpar.program.blocks.segments import latest, schedule, without_held
from simpar.units import Flags, Floats, Ints, to_ns


@dataclass(frozen=True)
class PassTimes:
    """A phase of a batch of n keys as numbers.

    ``kernels`` bool[steps] marks the steps that are not collectives; these take ``seconds`` float64[kernels, n], the
    collectives ``prices_ns`` int64[collectives, n]. ``issue_ns`` int64[n] is the host's launch time, ``drained_s``
    float64[n, links] the time that the collectives occupy each link of rank 0.
    """

    phase: Phase
    kernels: Flags
    seconds: Floats
    prices_ns: Ints
    issue_ns: Ints
    drained_s: Floats

    @staticmethod
    def of(phase: Phase, batch: KeyBatch, keys: Keys) -> PassTimes:
        """A phase of a batch, with its collectives priced on the groups of rank 0."""
        size = len(batch.keys)
        kernels = np.array([step.collective is None for step in phase.steps], dtype=bool)
        seconds, prices_ns = np.empty((sum(kernels), size)), np.empty((sum(~kernels), size), dtype=np.int64)
        durations = (step.duration_s for step in phase.steps if step.collective is None)
        for at, duration_s in enumerate(durations):
            seconds[at] = duration_s
        drained_s = np.zeros((size, len(keys.prices.own)))
        for at, use in enumerate(phase.collectives):
            sizes = np.full(size, use.size_bytes)
            same = use.op, use.group, use.count, sizes.tobytes()
            if same not in batch.costs:
                batch.costs[same] = _cost(use, sizes, batch, keys)
            prices_ns[at] = batch.costs[same][0]
            drained_s += batch.costs[same][1]
        issue_ns = np.full(size, to_ns(phase.issue_s))
        return PassTimes(phase, kernels, seconds, prices_ns, issue_ns, drained_s)

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of all kernels, float64[n]."""
        return np.asarray(sum(self.seconds, np.zeros(len(self.issue_ns))))

    def spans_ns(self, which: Ints | slice, slow: float | Floats, *, held: bool = True) -> Ints:
        """Nanoseconds of every step for some keys, int64[steps, which]; kernels take ``slow`` times as long.

        They take longer still if token exchanges beside them occupy multiprocessors, unless this is not ``held``
        against them.
        """
        is_whole = isinstance(which, slice) and which == slice(None)
        if not is_whole or isinstance(slow, np.ndarray):
            return self._spans(which, slow, held)
        if (slow, held) not in self._known:
            self._known[slow, held] = self._spans(which, slow, held)
        return self._known[slow, held]

    @cached_property
    def _known(self) -> dict[tuple[float, bool], Ints]:
        return {}

    def _spans(self, which: Ints | slice, slow: float | Floats, held: bool) -> Ints:
        result = np.zeros((len(self.kernels), len(self.issue_ns[which])), dtype=np.int64)
        result[~self.kernels] = self.prices_ns[:, which]
        seconds = self.seconds[:, which] * slow
        longer = without_held(self.phase, list(result), list(seconds)) if held else 1.0
        result[self.kernels] = to_ns(seconds * longer)
        return result

    def carried_ns(self, which: Ints | slice, slow: float | Floats, *, held: bool = True) -> Ints:
        """Nanoseconds of the passes of some keys on each of BLOCK_STREAMS, int64[streams, which]."""
        result = np.zeros((len(BLOCK_STREAMS), len(self.issue_ns[which])), dtype=np.int64)
        streams = [BLOCK_STREAMS.index(step.stream) for step in self.phase.steps]
        np.add.at(result, streams, self.spans_ns(which, slow, held=held))
        return result

    def took_ns(
        self, which: Ints | slice, slow: float | Floats, *, held: bool = True, more_ns: Ints | None = None
    ) -> Ints:
        """Nanoseconds of the passes of some keys, int64[which]; kernels take ``slow`` times as long.

        Collectives take ``more_ns`` int64[collectives, which] longer than their prices say.
        """
        issue_ns, spans = self.issue_ns[which], self.spans_ns(which, slow, held=held)
        if more_ns is not None:
            spans = spans.copy()
            spans[~self.kernels] += more_ns
        ends = schedule(self.phase.steps, list(spans))[1]
        return np.asarray(np.maximum(latest(ends, 0 * issue_ns), issue_ns))


def _cost(use: CollectiveUse, sizes: Floats, batch: KeyBatch, keys: Keys) -> tuple[Ints, Floats]:
    """Nanoseconds of a collective of a batch, int64[n], and seconds on each link of rank 0, float64[n, links]."""
    took_ns, drained_s = (np.empty(len(sizes), dtype=np.int64), np.empty((len(sizes), len(keys.prices.own))))
    for mine, price in keys.price_groups(batch, use):
        took_ns[mine] = price.time_ns(sizes[mine], use.count)
        drained_s[mine] = (sizes[mine] * use.count)[:, None] * price.slopes_s(keys.prices.own)
    return took_ns, drained_s
