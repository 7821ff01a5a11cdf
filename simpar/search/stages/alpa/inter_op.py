"""Cutting a chain of blocks into stages on submeshes: dynamic programming under a bound on the slowest stage.

For stages 1..S with times t_i of one microbatch on exactly all devices, minimise

    sum_i t_i + (B - 1) max_i t_i

[Zheng et al. 2022, arXiv 2201.12023, section 5]. For a bound t_max on every stage,

    F(s, k, d) = min over j, q of t_s(k, j, q) + F(s - 1, j, d - q)

covers blocks k.. with s stages on d devices; t_s is the best time of a range whose s stages from here to the end each
keep a microbatch in flight. Three observations replace trying one bound after the other:

* F falls with t_max, so an interval [a, b] of bounds cannot beat F(b) + (B - 1) a: bounds are bisected.
* Blocks k.. need work(k..) device-seconds, so d t_max must be at least that, and the blocks before k leave D - d
  devices the same way: few states are left when t_max is near work / D, where the optimum is.
* sum t_i is at least work / D, which bounds t_max from above as soon as any plan is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_STAGES = 32
_STEP = 1.05
_ROUNDING = 2e-9


@dataclass(frozen=True)
class Cut:
    """Stages in order as (first block, block behind the last, index of the submesh size), and the estimate in s."""

    stages: tuple[tuple[int, int, int], ...]
    estimate_s: float


@dataclass(frozen=True)
class _Steps:
    """All ways to put one stage in front, sorted by the state that they lead from.

    ``start`` where the steps of each entry of ``state`` begin; ``entry`` (submesh, length, block) of every step;
    ``after`` the state behind the stage; ``initial`` and ``final`` states of all and of no blocks (-1: unreachable).
    """

    count: int
    state: Ints
    start: Ints
    entry: tuple[Ints, Ints, Ints]
    after: Ints
    initial: int
    final: int


@dataclass
class InterOp:
    """One problem.

    ``times`` float64[S, Q, K + 1, K + 1]: seconds of a microbatch on blocks k..j-1 with a submesh of size q, where
    s + 1 stages follow from here to the end, itself included (infinite: impossible); more stages than entries use the
    last. ``latency`` float64[K + 1] is added to the sum for a stage that ends at a boundary (messages there and back).
    ``work`` float64[K] device-seconds that a block takes at least.
    """

    times: Floats
    sizes: Sequence[int]
    devices: int
    num_microbatches: int
    latency: Floats
    work: Floats
    tolerance: float = 0.0

    @cached_property
    def _by_length(self) -> Floats:
        """float64[S, Q, length, k]: times of ranges by length, infinite behind the end."""
        stages, sizes, blocks = self.times.shape[:3]
        found = np.full((stages, sizes, blocks, blocks), np.inf)
        for length in range(1, blocks):
            found[:, :, length, : blocks - length] = np.diagonal(self.times, offset=length, axis1=2, axis2=3)
        return found

    @cached_property
    def bounds(self) -> Floats:
        """Distinct times of any range, ascending, from the least that the work allows: the slowest stage is one."""
        finite = self.times[np.isfinite(self.times)]
        least = float(self.work.sum()) / self.devices * (1 - _ROUNDING)
        return np.unique(finite[finite >= least])

    @property
    def max_stages(self) -> int:
        """Most stages that blocks and devices allow."""
        most = min(self.times.shape[2] - 1, self.devices // min(self.sizes))
        return int(min(most, MAX_STAGES))

    def best(self, *, below_s: float = np.inf) -> list[Cut]:
        """The best cut for every number of stages near the optimum, best first; empty where none beats ``below_s``."""
        search = _Bisection(self, below_s)
        bound = search.run()
        return [] if bound is None else self._cuts(bound)

    def sums(self, bound: float) -> list[Floats]:
        """F for every number of stages, as float64[states] each; the last entry of states is "impossible"."""
        steps = self._steps(bound)
        values = [np.full(steps.count + 1, np.inf)]
        if steps.final < 0 or steps.initial < 0 or not len(steps.after):
            return values
        values[0][steps.final] = 0.0
        for stage in range(self.max_stages):
            grown = np.full(steps.count + 1, np.inf)
            total = self._costs(steps, stage, bound) + values[-1][steps.after]
            grown[steps.state] = np.minimum.reduceat(total, steps.start)
            values.append(grown)
            if not np.isfinite(grown).any():
                break
        return values

    def least(self, bound: float) -> float:
        """Smallest sum of stage times under a bound, over all numbers of stages."""
        values, initial = self.sums(bound), self._steps(bound).initial
        return min(float(value[initial]) for value in values) if initial >= 0 else np.inf

    def _costs(self, steps: _Steps, stage: int, bound: float) -> Floats:
        size, length, block = steps.entry
        times = self._by_length[min(stage, len(self.times) - 1)][size, length, block]
        costs: Floats = np.where(times <= bound, times, np.inf) + self.latency[block + length]
        return costs

    @cached_property
    def _known_steps(self) -> dict[float, _Steps]:
        return {}

    def _steps(self, bound: float) -> _Steps:
        if bound not in self._known_steps:
            self._known_steps.clear()
            self._known_steps[bound] = self._make_steps(bound)
        return self._known_steps[bound]

    def _make_steps(self, bound: float) -> _Steps:
        """Every (submesh, length, block) under the bound, for every number of devices that work leaves open."""
        blocks, devices = self.times.shape[2] - 1, self.devices
        before = np.concatenate([[0.0], np.cumsum(self.work)])
        behind = before[-1] - before
        low = np.ceil(behind / bound - _ROUNDING).astype(np.int64)
        high = devices - np.ceil(before / bound - _ROUNDING).astype(np.int64)
        low[:blocks] = np.maximum(low[:blocks], 1)
        high[blocks] = 0
        width = np.maximum(high - low + 1, 0)
        offset = np.concatenate([[0], np.cumsum(width)])
        size, length, block = np.nonzero(self._by_length[0] <= bound)
        taken = np.asarray(self.sizes, dtype=np.int64)[size]
        first = np.maximum(low[block], low[block + length] + taken)
        last = np.minimum(high[block], high[block + length] + taken)
        counts = np.maximum(last - first + 1, 0)
        which = np.repeat(np.arange(len(size)), counts)
        here = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        state = offset[block[which]] + here - low[block[which]]
        end = block[which] + length[which]
        after = offset[end] + here - taken[which] - low[end]
        order = np.argsort(state, kind="stable")
        distinct, start = np.unique(state[order], return_index=True)
        whole = low[0] <= devices <= high[0]
        return _Steps(
            count=int(offset[-1]),
            state=distinct,
            start=start,
            entry=(size[which][order], length[which][order], block[which][order]),
            after=after[order],
            initial=int(offset[0] + devices - low[0]) if whole else -1,
            final=int(offset[blocks]) if low[blocks] <= 0 else -1,
        )

    def _cuts(self, bound: float) -> list[Cut]:
        """The best cut of every number of stages under a bound."""
        values, steps = self.sums(bound), self._steps(bound)
        found = [
            self._trace(values, stages, bound)
            for stages in range(1, len(values))
            if np.isfinite(values[stages][steps.initial])
        ]
        return sorted(found, key=lambda cut: cut.estimate_s)

    def _trace(self, values: Sequence[Floats], count: int, bound: float) -> Cut:
        steps, state = self._steps(bound), self._steps(bound).initial
        stages, times = [], []
        for level in range(count - 1, -1, -1):
            total = self._costs(steps, level, bound) + values[level][steps.after]
            at = int(np.searchsorted(steps.state, state))
            end = int(steps.start[at + 1]) if at + 1 < len(steps.start) else len(total)
            best = int(steps.start[at] + np.argmin(total[steps.start[at] : end]))
            size, length, block = (int(column[best]) for column in steps.entry)
            level_times = self._by_length[min(level, len(self.times) - 1)]
            times.append(float(level_times[size, length, block]))
            stages.append((block, block + length, size))
            state = int(steps.after[best])
        total_s = float(values[count][steps.initial])
        return Cut(tuple(stages), total_s + (self.num_microbatches - 1) * max(times))


@dataclass
class _Bisection:
    """The search for the best bound; ``best`` is the least total so far."""

    problem: InterOp
    best: float
    bound: float | None = None

    def run(self) -> float | None:
        """The bound of the best plan, None where nothing beats what was known."""
        values = self.problem.bounds
        first = self._first_feasible(values)
        if first is None:
            return None
        intervals = [(0, first), (first + 1, len(values) - 1)]
        while intervals:
            low, high = intervals.pop(0)
            high = min(high, self._highest(values))
            if low > high:
                continue
            least = self.problem.least(float(values[high]))
            self._note(least, float(values[high]))
            if least + self._rest(float(values[low])) >= self.best * (1 - self.problem.tolerance):
                continue
            middle = (low + high) // 2
            if low < high:
                intervals += [(low, middle), (middle + 1, high - 1)]
        return self.bound

    def _rest(self, bound: float) -> float:
        return (self.problem.num_microbatches - 1) * bound

    def _note(self, least: float, bound: float) -> None:
        if least + self._rest(bound) < self.best:
            self.best, self.bound = least + self._rest(bound), bound

    def _highest(self, values: Floats) -> int:
        """The largest bound that can still beat the best: stages take the work over all devices at least."""
        problem = self.problem
        if problem.num_microbatches == 1 or not np.isfinite(self.best):
            return len(values) - 1
        slowest = (self.best - float(problem.work.sum()) / problem.devices) / (problem.num_microbatches - 1)
        return int(np.searchsorted(values, slowest, side="right")) - 1

    def _first_feasible(self, values: Floats) -> int | None:
        """A bound with a plan, looked for from below; None where even the largest that can win has none."""
        index = 0
        while index <= (highest := self._highest(values)):
            least = self.problem.least(float(values[index]))
            if np.isfinite(least):
                self._note(least, float(values[index]))
                return index
            further = int(np.searchsorted(values, values[index] * _STEP))
            index = max(min(further, highest), index + 1)
        return None
