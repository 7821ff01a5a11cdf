"""Jitter: the kernels of every pass of every rank a little slower or faster, the same under the same seed.

One factor a pass (an action of the schedule: one microbatch through one stage; or the step's tail) and rank, lognormal
with mean 1: what varies is clocks, power and the host, which change slower than kernels follow one another. A unit,
ranks that wait for each other within every block, takes the largest factor of its ranks: with equal kernels between
two collectives, the slowest rank decides at each of them. Collectives are not touched. No factor is below ``least``, at
which the kernels of a step would need the peak of the devices: a wide distribution does not make them faster than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simpar.program.blocks.segments import varying_ns
from simpar.program.fold.refinement import mix
from simpar.program.ir.program import OpTable
from simpar.program.lower import Lowered
from simpar.program.structure.templates import Node
from simpar.program.vary.expand import Expanded
from simpar.program.vary.lockstep import Units
from simpar.units import NS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MANTISSA_BITS = 53


@dataclass(frozen=True)
class Kernels:
    """The part of every op that jitter touches: ``time_ns`` int64[num_ops] of kernels, in the pass ``action``.

    ``on_device`` bool[num_ops] is false where the host launches beside the device.
    """

    time_ns: Ints
    action: Ints
    on_device: NDArray[np.bool_]

    @staticmethod
    def of(lowered: Lowered) -> Kernels:
        """Kernels in the ops of a Program."""
        time_ns, action = (np.zeros(len(lowered.program), dtype=np.int64) for _ in range(2))
        for class_id, actions in enumerate(lowered.actions):
            slots, mine = lowered.slots, lowered.slots.of_class(class_id)
            alone = slots.group[mine] < 0
            ops, at, node = (column[mine][alone] for column in (lowered.op_of_slot, slots.action, slots.node))
            each = [kernel_ns(node) for template in actions.templates for node in template.nodes]
            first = np.cumsum([0, *(len(template.nodes) for template in actions.templates)])
            time_ns[ops] = np.array(each, dtype=np.int64)[first[actions.template[at]] + node]
            action[ops] = at
        on_device = np.zeros(len(lowered.program), dtype=bool)
        on_device[lowered.program.streams.item] = True
        return Kernels(time_ns, action, on_device)


def kernel_ns(node: Node) -> int:
    """How long kernels, and gaps between launches, keep the compute stream of a node busy."""
    if node.collective is not None:
        return 0
    if not node.segments:
        return node.varying_ns
    return node.repeats * sum(varying_ns(segment) for _, segment in node.segments)


def slowest(units: Units, num_actions: int, sigma: float, seed: int) -> Floats:
    """Largest factor of any rank of every unit in every pass: float64[num_units, num_actions]."""
    from scipy.special import ndtri

    ranks, begins = units.ranks
    key = mix(mix(np.full(1, seed % 2**64, dtype=np.uint64)) + ranks.astype(np.uint64))
    found = np.empty((num_actions, len(units)))
    for action in range(num_actions):
        bits = mix(key ^ mix(np.full(1, action, dtype=np.uint64))) >> np.uint64(64 - MANTISSA_BITS)
        normal = ndtri((bits.astype(np.float64) + 0.5) / 2**MANTISSA_BITS)
        found[action] = np.maximum.reduceat(normal, begins)
    factors: Floats = np.exp(sigma * found.T - sigma**2 / 2)
    return factors


@dataclass(frozen=True)
class Jitter:
    """An expanded Program whose kernels take random factors, none below ``least``."""

    expanded: Expanded
    kernel_ns: Ints
    action: Ints
    least: float = 0.0

    @staticmethod
    def of(lowered: Lowered, expanded: Expanded, *, at_peak_s: float = 0.0) -> Jitter:
        """The kernels of all units, which take ``at_peak_s`` a step at the least."""
        kernels = Kernels.of(lowered)
        busiest_ns = np.bincount(lowered.program.ops.class_id, kernels.time_ns * kernels.on_device).max(
            initial=1.0
        )
        least = min(1.0, at_peak_s * NS_PER_S / busiest_ns)
        time_ns, action = (np.repeat(column, expanded.count) for column in (kernels.time_ns, kernels.action))
        return Jitter(expanded, time_ns, action, least)

    def ops(self, sigma: float, seed: int) -> OpTable:
        """The ops under one seed; a kernel that drains over shared cores has more or less to drain."""
        table = self.expanded.program.ops
        touched = np.flatnonzero(self.kernel_ns)
        factor = slowest(self.expanded.units, int(self.action.max(initial=-1)) + 1, sigma, seed)
        own, factor = self.kernel_ns[touched], np.maximum(factor, self.least)
        more = np.rint(own * factor[self.expanded.unit[touched], self.action[touched]]).astype(np.int64) - own
        drains = table.work_bytes[touched] > 0
        fixed, work = table.fixed_ns.copy(), table.work_bytes.copy()
        fixed[touched[~drains]] += more[~drains]
        work[touched[drains]] += more[drains]
        return replace(table, fixed_ns=fixed, work_bytes=work)


def unfolded(lowered: Lowered) -> Expanded:
    """A Program that was lowered without folding, as it is: every rank is a unit."""
    layout, count = lowered.layout, len(lowered.program)
    units = Units(layout.class_of_rank, np.arange(layout.num_classes), np.arange(layout.num_classes + 1))
    return Expanded(lowered.program, units, np.ones(count, dtype=np.int64), lowered.program.ops.class_id)
