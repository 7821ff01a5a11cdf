"""Pairs of passes that run together (DualPipe): the duration of a forward and a backward in one, without contention.

Blocks that meet are merged as in the Program. If the Program may choose another order, because groups of one kind share
links, the bound is the larger of the time each stream carries of both and the time each pass takes alone. Of pairs that
exchange tokens only the forward counts alone, because weight gradients leave their place in the backward.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from itertools import zip_longest

import numpy as np

from simpar.dataclass import dataclass
from simpar.planner.bound.block_costs import BlockCosts
from simpar.planner.bound.keys import KeyBatch
from simpar.planner.bound.merged_blocks import MergedBlocks, Slowing
from simpar.planner.bound.passes import PassTimes
from simpar.program.blocks.phases import Phase
from simpar.program.structure.pairs import exchanges
from simpar.units import Flags, Floats, Ints


@dataclass
class OverlappedPasses:
    """Bounds of pairs by key, kinds of the blocks that meet, letter of the backward and speed, each found once."""

    blocks: BlockCosts
    _known: dict[tuple[int, int, str, float], Ints] = field(default_factory=dict)
    _made: dict[tuple[int, int, int, str], tuple[MergedBlocks, Flags]] = field(default_factory=dict)

    def pairs_ns(
        self, keys: Ints, ahead: tuple[int, ...], back: tuple[int, ...], letter: str, *, factor: float = 1.0
    ) -> Floats:
        """Nanoseconds of a forward over stage ``ahead`` beside a backward over stage ``back``, float64[len(keys)].

        Stages are the kinds of their blocks in model order. Where one has more blocks, the rest run alone. Kernels take
        ``factor`` times as long: 1, or that of the slowest rank.
        """
        unique, where = np.unique(keys, return_inverse=True)
        late = self.blocks.late_ns if factor > 1.0 else lambda keys, one: self.blocks.plain_ns(keys, (one,))[one]
        alone = {one: late(unique, one) for one in ("F", letter)}
        times_ns = np.zeros(len(unique))
        for (forward, backward), count in Counter(zip_longest(ahead, back[::-1])).items():
            if forward is None:
                times_ns += count * alone[letter][:, backward]
            elif backward is None:
                times_ns += count * alone["F"][:, forward]
            else:
                times_ns += count * self._blocks_ns(unique, (forward, backward), letter, factor)
        return np.asarray(times_ns[where])

    def _blocks_ns(self, keys: Ints, kinds: tuple[int, int], letter: str, factor: float) -> Ints:
        """Bounds of two blocks that meet, of ``kinds`` forward and backward, int64[len(keys)] in nanoseconds."""
        none = np.full(len(self.blocks.row), -1, dtype=np.int64)
        known = self._known.setdefault((*kinds, letter, factor), none)
        missing = keys[known[keys] < 0]
        for batch, _, which in self.blocks.batches(missing):
            merged, exact = self._merged(batch, kinds, letter)
            if (places := which[exact[which]]).size:
                known[batch.keys[places]] = merged.merged_ns(places, self._slowing(factor))
            if not exact[which].all():  # others of the batch cost next to nothing, and are asked for later
                least = np.flatnonzero(~exact)
                known[batch.keys[least]] = self._least_ns(merged.both, least, factor)
        return known[keys]

    def _merged(self, batch: KeyBatch, kinds: tuple[int, int], letter: str) -> tuple[MergedBlocks, Flags]:
        """Two blocks of a batch that meet, and for which of its keys the Program merges them as here."""
        place = int(batch.keys[0]), *kinds, letter
        if place not in self._made:
            ahead, back = (
                self.blocks.kept(batch, one, (kind,))[kind] for kind, one in zip(kinds, f"F{letter}", strict=True)
            )
            self._made[place] = MergedBlocks.of((ahead, back)), self._is_exact(batch, [ahead.phase, back.phase])
        return self._made[place]

    def _slowing(self, factor: float) -> Slowing:
        """How much longer kernels take on a device that is ``factor`` times as slow."""
        stack = self.blocks.jobs.problem.stack
        excess = max(stack.overlap.compute_slowdown_while_comm - 1.0, 0.0)
        return Slowing(factor * stack.launch.kernel_overhead, excess)

    def _least_ns(self, both: Sequence[PassTimes], which: Ints, factor: float) -> Ints:
        """:meth:`_blocks_ns` for some keys of a batch: bounded by streams and single passes."""
        slow, held = self.blocks.jobs.problem.stack.launch.kernel_overhead, factor == 1.0
        carried = np.sum([passes.carried_ns(which, factor * slow, held=held) for passes in both], axis=0)
        alone = both[:1] if any(exchanges(passes.phase) for passes in both) else both
        took = (passes.took_ns(which, factor * slow, held=held) for passes in alone)
        least = np.max([*carried, *took], axis=0)
        if held:
            return np.asarray(least)
        rounded = sum(len(passes.kernels) for passes in both)  # a slow rank rounds other durations
        return np.asarray(np.maximum(self._least_ns(both, which, 1.0), least - rounded))

    def _is_exact(self, batch: KeyBatch, phases: Sequence[Phase]) -> Flags:
        """Whether all ranks merge in the order of rank 0: no link is shared by several groups of one kind.

        Otherwise some ranks may find their collectives more expensive and merge in another order.
        """
        uneven = batch.view.uneven_context or batch.view.job.layout.has_sampled_loads
        result = np.full(len(batch.keys), not uneven)
        for use in (use for phase in phases for use in phase.collectives):
            for mine, price in self.blocks.price_groups(batch, use):
                result[mine] &= price.private
        return result
