"""Cutting a chain of blocks into stages on submeshes: dynamic programming under a bound on the slowest stage.

For stages 1..S with times t_i of one microbatch on exactly all devices, minimise

    sum_i t_i + (B - 1) max_i t_i

[Zheng et al. 2022, arXiv 2201.12023, section 5]. For a bound t_max on every stage,

    F(s, k, d) = min over j, q of t_s(k, j, q) + F(s - 1, j, d - q)

covers blocks k.. with s stages on d devices. t_s is the best time of a range of blocks with s stages from it to the
end, itself included, so that it keeps s microbatches in flight. Three observations make trying every bound
unnecessary:

* F falls with t_max, so an interval [a, b] of bounds cannot beat F(b) + (B - 1) a: bounds are bisected.
* Blocks k.. need work(k..) device-seconds, so d t_max is at least that; likewise (D - d) t_max for the blocks before
  k. Few states are left when t_max is near work / D, where the optimum is.
* sum t_i is at least work / D, which bounds t_max from above as soon as any plan is known.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.units import Floats, Ints, unique

MAX_STAGES = 32
_STEP = 1.05
_ROUNDING = 2e-9


@dataclass(frozen=True)
class StageCut:
    """Stages in order as (first block, block after the last, devices), and the estimated step in s."""

    stages: tuple[tuple[int, int, int], ...]
    estimate_s: float


@dataclass(frozen=True)
class _Ways:
    """All ways to put one stage in front under a bound, sorted by the state (block, devices left) they start from.

    ``start`` is where the ways of each entry of ``state`` begin, ``entry`` the (submesh, length, block) of every way,
    ``after`` the state behind the stage (the last state is "no blocks left"), and ``initial`` the state of all blocks
    (-1: unreachable).
    """

    bound: float
    count: int
    state: Ints
    start: Ints
    entry: tuple[Ints, Ints, Ints]
    after: Ints
    initial: int


@dataclass
class InterOp:
    """One problem of the inter-operator pass.

    ``times`` float64[S, Q, K + 1, K + 1] are seconds of a microbatch on blocks k..j-1 on a submesh of the q-th size, if
    s + 1 stages follow from here to the end, itself included (infinite: impossible); with more stages the last entry
    holds. ``latency`` float64[K + 1] is added to the sum for a stage that ends at a boundary (messages there and back).
    ``work`` float64[K] are the least device-seconds of each block. Only cuts faster than ``below_s`` are looked for; it
    falls to the best one found.
    """

    times: Floats
    sizes: Sequence[int]
    devices: int
    num_microbatches: int
    latency: Floats
    work: Floats
    tolerance: float = 0.0
    below_s: float = np.inf
    _best: tuple[_Ways, list[Floats]] | None = None

    @cached_property
    def _by_length(self) -> Floats:
        """float64[S, Q, length, k]: times of ranges by length, infinite beyond the end."""
        stages, sizes, blocks = self.times.shape[:3]
        result = np.full((stages, sizes, blocks, blocks), np.inf)
        for length in range(1, blocks):
            result[:, :, length, : blocks - length] = np.diagonal(self.times, offset=length, axis1=2, axis2=3)
        return result

    @cached_property
    def bounds(self) -> Floats:
        """Distinct times of any range, ascending, from the least that the work allows; the slowest stage has one."""
        finite = self.times[np.isfinite(self.times)]
        least = float(self.work.sum()) / self.devices * (1 - _ROUNDING)
        return unique(finite[finite >= least])

    def best(self) -> list[StageCut]:
        """The best cut for every number of stages near the optimum, best first; empty if none is good enough."""
        first = self._first_feasible()
        intervals = [] if first is None else [(0, first), (first + 1, len(self.bounds) - 1)]
        while intervals:
            low, high = intervals.pop(0)
            high = min(high, self._highest())
            if low > high:
                continue
            least = self._least(high) + self._rest(float(self.bounds[low]))
            if low < high and least < self.below_s * (1 - self.tolerance):
                middle = (low + high) // 2
                intervals += [(low, middle), (middle + 1, high - 1)]
        if self._best is None:
            return []
        ways, sums = self._best
        numbers = [n for n in range(1, len(sums)) if np.isfinite(sums[n][ways.initial])]
        return sorted((self._trace(ways, sums, n) for n in numbers), key=lambda cut: cut.estimate_s)

    def _first_feasible(self) -> int | None:
        """The index of a bound with a plan, searched upwards; None if no bound that can win has one."""
        index = 0
        while index <= (highest := self._highest()):
            if np.isfinite(self._least(index)):
                return index
            further = int(np.searchsorted(self.bounds, self.bounds[index] * _STEP))
            index = max(min(further, highest), index + 1)
        return None

    def _rest(self, bound: float) -> float:
        """Seconds that all microbatches but one spend on the slowest stage."""
        return (self.num_microbatches - 1) * bound

    def _highest(self) -> int:
        """The index of the largest bound that can still beat the best; stages take at least work / devices in sum."""
        if self.num_microbatches == 1 or not np.isfinite(self.below_s):
            return len(self.bounds) - 1
        # below_s >= sum of t_i + (m - 1) t_max >= work / D + (m - 1) t_max
        slowest = (self.below_s - float(self.work.sum()) / self.devices) / (self.num_microbatches - 1)
        return int(np.searchsorted(self.bounds, slowest, side="right")) - 1

    def _least(self, number: int) -> float:
        """The least sum of stage times under a bound, over all numbers of stages; kept if it beats the best."""
        ways = self._ways(float(self.bounds[number]))
        if ways.initial < 0 or not len(ways.after):
            return np.inf
        sums = self._sums(ways)
        least = min(float(each[ways.initial]) for each in sums)
        if least + self._rest(ways.bound) < self.below_s:
            self.below_s, self._best = least + self._rest(ways.bound), (ways, sums)
        return least

    def _sums(self, ways: _Ways) -> list[Floats]:
        """F for every number of stages, as float64[states] each; the last entry of states is "impossible"."""
        sums = [np.full(ways.count + 1, np.inf)]
        sums[0][ways.count - 1] = 0.0
        most = min(self.times.shape[2] - 1, self.devices // min(self.sizes), MAX_STAGES)
        while len(sums) <= most and np.isfinite(sums[-1]).any():
            grown = np.full(ways.count + 1, np.inf)
            grown[ways.state] = np.minimum.reduceat(self._totals(ways, sums, len(sums)), ways.start)
            sums.append(grown)
        return sums

    def _totals(self, ways: _Ways, sums: Sequence[Floats], stages: int) -> Floats:
        """The sum of every way as the first of ``stages`` stages, with the best continuation."""
        size, length, block = ways.entry
        times = self._by_length[min(stages, len(self.times)) - 1][size, length, block]
        total: Floats = np.where(times <= ways.bound, times, np.inf) + self.latency[block + length]
        return total + sums[stages - 1][ways.after]

    def _ways(self, bound: float) -> _Ways:
        """Every (submesh, length, block) under the bound, for every number of devices that the work allows."""
        blocks, devices = self.times.shape[2] - 1, self.devices
        before = np.concatenate([[0.0], np.cumsum(self.work)])
        low = np.ceil((before[-1] - before) / bound - _ROUNDING).astype(np.int64)
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
        return _Ways(
            bound=bound,
            count=int(offset[-1]),
            state=distinct,
            start=start,
            entry=(size[which][order], length[which][order], block[which][order]),
            after=after[order],
            initial=int(devices - low[0]) if low[0] <= devices <= high[0] else -1,
        )

    def _trace(self, ways: _Ways, sums: Sequence[Floats], count: int) -> StageCut:
        state, stages, times = ways.initial, [], []
        ends = np.append(ways.start[1:], len(ways.after))
        for left in range(count, 0, -1):
            at = int(np.searchsorted(ways.state, state))
            start, end = int(ways.start[at]), int(ends[at])
            best = start + int(np.argmin(self._totals(ways, sums, left)[start:end]))
            size, length, block = (int(column[best]) for column in ways.entry)
            times.append(float(self._by_length[min(left, len(self.times)) - 1][size, length, block]))
            stages.append((block, block + length, self.sizes[size]))
            state = int(ways.after[best])
        return StageCut(tuple(stages), float(sums[count][ways.initial]) + self._rest(max(times)))
