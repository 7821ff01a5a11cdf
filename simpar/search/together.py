"""Pairs of passes that run together (DualPipe): the least that a forward and a backward take in one.

Kernels of both take turns on the device and collectives of both on their streams, whatever the order, and each pass
keeps its own order; so a pair of blocks takes at least what each stream carries, and what each pass takes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from simpar.program.phases import COMPUTE
from simpar.search.passes import Passes
from simpar.units import NS_PER_S, to_ns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Together:
    """Bounds of pairs by key, kinds of the blocks that meet, and letter of the backward, each found once."""

    passes: Passes
    _known: dict[tuple[int, int, int, str], int] = field(default_factory=dict)

    def pairs_ns(self, keys: Ints, ahead: tuple[int, ...], back: tuple[int, ...], letter: str) -> Floats:
        """Nanoseconds of a forward over stage ``ahead`` beside a backward over stage ``back``, float64[len(keys)].

        Stages are the kinds of their blocks in model order. Where one has more blocks, the rest run alone.
        """
        unique, where = np.unique(keys, return_inverse=True)
        alone = {one: self.passes.plain_ns(unique, (one,))[one] for one in ("F", letter)}
        found = np.zeros(len(unique))
        for forward, backward in zip_longest(ahead, back[::-1]):
            if forward is None:
                found += alone[letter][:, backward]
            elif backward is None:
                found += alone["F"][:, forward]
            else:
                found += [self._block_ns(int(key), forward, backward, letter) for key in unique]
        return np.asarray(found[where])

    def _block_ns(self, key: int, forward: int, backward: int, letter: str) -> int:
        known = key, forward, backward, letter
        if known not in self._known:
            self._known[known] = self._bound(*known)
        return self._known[known]

    def _bound(self, key: int, forward: int, backward: int, letter: str) -> int:
        passes = self.passes
        phases = passes.phase(key, forward, "F"), passes.phase(key, backward, letter)
        steps = [step for phase in phases for step in phase.steps]
        carried: dict[str, int] = {}
        for step in steps:
            if step.collective is not None:
                carried[step.stream] = carried.get(step.stream, 0) + passes.price(key, step.collective)
        stack = passes.jobs.problem.stack
        kernels_s = sum(step.duration_s for step in steps if step.stream == COMPUTE)
        covered = min(1.0, sum(carried.values()) / NS_PER_S / kernels_s) if kernels_s else 0.0
        excess = max(stack.overlap.compute_slowdown_while_comm - 1.0, 0.0)
        slow = stack.launch.kernel_overhead * (1.0 + excess * covered)
        kernels = sum(int(to_ns(step.duration_s * slow)) for step in steps if step.collective is None)
        issue = int(to_ns(sum(phase.issue_s for phase in phases)))
        one = np.array([key])
        alone = [
            int(passes.plain_ns(one, (which,))[which][0, kind])
            for which, kind in (("F", forward), (letter, backward))
        ]
        return max(kernels, issue, *carried.values(), *alone)
