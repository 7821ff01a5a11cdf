"""Pairs of passes that run together (DualPipe): what a forward and a backward take in one without contention.

Blocks that meet are merged as in the Program. Where its order may be another one, because groups of a kind share links,
they take at least what each stream carries of both, and what each takes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.plan.routing import has_sampled_loads
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.segments import make_segment
from simpar.program.structure.pairs import merged
from simpar.program.structure.stages import PASSES
from simpar.search.bound.block_costs import BlockCosts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class OverlappedPasses:
    """Bounds of pairs by key, kinds of the blocks that meet, and letter of the backward, each found once."""

    blocks: BlockCosts
    _known: dict[tuple[int, int, int, str], int] = field(default_factory=dict)

    def pairs_ns(self, keys: Ints, ahead: tuple[int, ...], back: tuple[int, ...], letter: str) -> Floats:
        """Nanoseconds of a forward over stage ``ahead`` beside a backward over stage ``back``, float64[len(keys)].

        Stages are the kinds of their blocks in model order. Where one has more blocks, the rest run alone.
        """
        unique, where = np.unique(keys, return_inverse=True)
        alone = {one: self.blocks.plain_ns(unique, (one,))[one] for one in ("F", letter)}
        found = np.zeros(len(unique))
        for forward, backward in zip_longest(ahead, back[::-1]):
            if forward is None:
                found += alone[letter][:, backward]
            elif backward is None:
                found += alone["F"][:, forward]
            else:
                found += [self._block_ns(int(key), forward, backward, letter) for key in unique]
        return np.asarray(found[where])

    def _block_ns(self, *known: Any) -> int:
        if known not in self._known:
            merged_ns = self._merged_ns(*known)
            self._known[known] = self._least_ns(*known) if merged_ns is None else merged_ns
        return self._known[known]

    def _least_ns(self, key: int, forward: int, backward: int, letter: str) -> int:
        """What each stream carries of both, and what each takes alone."""
        each = (forward, "F"), (backward, letter)
        alone = [
            int(self.blocks.plain_ns(np.array([key]), (one,), (kind,))[one][0, kind]) for kind, one in each
        ]
        busy = sum(self.blocks.carried_ns(key, kind, one) for kind, one in each)
        return max(int(np.max(busy)), *alone)

    def _merged_ns(self, key: int, forward: int, backward: int, letter: str) -> int | None:
        """Both blocks as the Program merges them, or None where other ranks may merge them in another order."""
        blocks, stack = self.blocks, self.blocks.jobs.problem.stack
        phases = blocks.steps(key, forward).forward, getattr(blocks.steps(key, backward), PASSES[letter])
        price = partial(blocks.price, key)
        if not self._is_exact(key, phases):
            return None
        merge, share = merged(*phases, price)
        excess = max(stack.overlap.compute_slowdown_while_comm - 1.0, 0.0)
        slow = stack.launch.kernel_overhead * (1.0 + excess * share)
        return make_segment(merge, price, slowdown=slow).duration_ns

    def _is_exact(self, key: int, phases: tuple[Phase, ...]) -> bool:
        """Whether all ranks merge in the order that rank 0 finds alone: its groups share no link with others of a kind.

        Else some may find their collectives dearer, and another order.
        """
        view = self.blocks.views[key]
        if view.uneven_context or has_sampled_loads(view.job.plan):
            return False
        uses = {step.collective for phase in phases for step in phase.steps if step.collective is not None}
        return all(self.blocks.price_on_group(key, use).private for use in uses)
