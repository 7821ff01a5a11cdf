"""Blocks that run together, merged for many keys at once in C, or one by one as the Program does it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simpar.dataclass import dataclass
from simpar.native import NativeLibrary, int64_column, pointers
from simpar.planner.bound.passes import PassTimes
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, Phase
from simpar.program.blocks.segments import make_segment
from simpar.program.structure.pairs import merge_phases, strands_of
from simpar.units import Flags, Floats, Ints, to_ns

LIBRARY = NativeLibrary(
    Path(__file__).with_suffix(".c"),
    worth=6_000,  # steps that Python merges
    constants={"STREAMS": len(BLOCK_STREAMS), "COMPUTE": BLOCK_STREAMS.index(COMPUTE)},
)


@dataclass(frozen=True)
class Slowing:
    """How much longer kernels take: on their device, and at most beside collectives (a share of their time)."""

    factor: float
    excess: float


@dataclass(frozen=True)
class MergedBlocks:
    """Two blocks of a batch of keys that run together: passes of the forward and of the backward, and their structure.

    ``columns`` are those of C, int64: where the steps that each step waits for begin, these steps, streams, steps that
    fill in, collectives, where strands begin, and their steps. Steps of the forward come first.
    """

    both: tuple[PassTimes, PassTimes]
    by_turns: bool
    columns: tuple[Ints, ...]
    sms: Floats

    @staticmethod
    def of(both: tuple[PassTimes, PassTimes]) -> MergedBlocks:
        """The structure of two passes, which all keys of a batch have in common."""
        forward, backward = (passes.phase for passes in both)
        merged = strands_of(forward, backward)
        first = (0, len(forward.steps))
        steps = [(which, step) for which, phase in enumerate(merged.phases) for step in phase.steps]
        after = [[first[which] + before for before in step.after] for which, step in steps]
        strands = [[first[which] + at for which, at in each] for each in merged.strands]
        columns = (
            np.cumsum([0, *map(len, after)]),
            np.array([before for each in after for before in each], dtype=np.int64),
            np.array([BLOCK_STREAMS.index(step.stream) for _, step in steps]),
            np.isin(np.arange(len(steps)), strands[2] if merged.by_turns else []),
            np.array([step.collective is not None for _, step in steps]),
            np.cumsum([0, *(len(each) for each in (*strands, [])[:3])]),
            np.array([at for each in strands for at in each], dtype=np.int64),
        )
        sms = np.array([step.sms for _, step in steps])
        return MergedBlocks(both, merged.by_turns, tuple(map(int64_column, columns)), sms)

    def merged_ns(self, places: Ints, slowing: Slowing) -> Ints:
        """Nanoseconds of the two blocks for the keys at some places of the batch, int64[len(places)]."""
        if library := LIBRARY.load_for(len(places) * len(self.sms)):
            return self._compiled(library, places, slowing)
        each = (self._one(place, slowing) for place in places.tolist())
        return np.fromiter(each, dtype=np.int64, count=len(places))

    def _compiled(self, library: ctypes.CDLL, places: Ints, slowing: Slowing) -> Ints:
        steps, keys = len(self.sms), len(places)
        kernels_s, prices_ns = np.zeros((steps, keys)), np.zeros((steps, keys), dtype=np.int64)
        kernels: Flags = np.concatenate([passes.kernels for passes in self.both])
        kernels_s[kernels] = np.concatenate([passes.seconds[:, places] for passes in self.both])
        prices_ns[~kernels] = np.concatenate([passes.prices_ns[:, places] for passes in self.both])
        issue_s = self.both[0].phase.issue_s + self.both[1].phase.issue_s
        issue_ns = int64_column(np.broadcast_to(to_ns(issue_s), len(self.both[0].issue_ns))[places])
        sizes = [ctypes.c_int64(size) for size in (keys, steps, int(self.by_turns))]
        speed = ctypes.c_double(slowing.factor), ctypes.c_double(slowing.excess)
        result, room = np.zeros(keys, dtype=np.int64), (np.zeros(3 * steps), np.zeros(2 * steps, dtype=np.int64))
        numbers = (self.sms, kernels_s, prices_ns, issue_ns, *room, result)
        done = library.merge_blocks(*sizes, *speed, *pointers(*self.columns, *numbers))
        assert done, "steps of a phase wait for earlier ones"
        return result

    def _one(self, place: int, slowing: Slowing) -> int:
        """The blocks of one key, merged as in the Program."""
        phases = [passes.phase.of(place) for passes in self.both]
        return one_merged_ns(phases, [passes.prices_ns[:, place] for passes in self.both], slowing)


def one_merged_ns(phases: Sequence[Phase], prices_ns: Sequence[Ints], slowing: Slowing) -> int:
    """Nanoseconds of two blocks, merged as in the Program; ``prices_ns`` are the prices of each one's collectives."""
    price = {
        use: took_ns
        for phase, each_ns in zip(phases, prices_ns, strict=True)
        for use, took_ns in zip(phase.collectives, each_ns.tolist(), strict=True)
    }.__getitem__
    merge, share = merge_phases(phases[0], phases[1], price)
    return make_segment(merge, price, slowdown=slowing.factor * (1.0 + slowing.excess * share)).duration_ns
