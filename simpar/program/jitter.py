"""Jitter: kernels of every pass of every rank are a little slower or faster, the same way under the same seed.

Every pass (an action of the schedule: one microbatch through one stage; or the step's tail) of every rank has one
factor, lognormal with mean 1: exp(sigma z - sigma^2 / 2) for a standard normal z. Clocks, power and the host vary, and
these change more slowly than kernels follow one another. Ranks that communicate inside blocks (tensor, context, expert
parallel) meet several times per layer. With equal kernels between two collectives, the rank that is slowest in a pass
decides at each of them. Such ranks of one class are therefore a *unit* with one timeline and the largest factor of its
ranks. Folding simulates one rank for all that behave alike; under independent jitter no two units do, so the step is
lowered again with a colour for every unit. Collectives are not touched. No factor is below ``least``, with which the
kernels of a step would run at the peak of the devices, however wide the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.blocks.segments import varying_ns
from simpar.program.fold.refinement import mix
from simpar.program.ir.program import OpTable, Program
from simpar.program.lower import Lowered
from simpar.program.structure.templates import Template, TemplateNode
from simpar.units import NS_PER_S, Flags, Floats, Ints

MANTISSA_BITS = 53


def units_of(lowered: Lowered) -> Ints:
    """Number of every rank's unit, int64[world]: ranks of one class that meet inside blocks form a unit."""
    of_rank, kinds = lowered.quotient.class_of_rank, lowered.maker.network.block_kinds
    world = len(of_rank)
    part = connect_components(world, [kind.groups for kind in lowered.maker.network.kinds if kind.name in kinds])
    units: Ints = np.unique(of_rank * world + part, return_inverse=True)[1].astype(np.int64)
    return units


def connect_components(count: int, groups: Sequence[Ints]) -> Ints:
    """Connected component of each of ``count`` nodes, int64[count], where ``groups`` int64[G, N] join their members."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = [np.zeros((2, 0), dtype=np.int64)]
    for each in groups:
        first = np.broadcast_to(each[:, :1], each.shape)
        ends.append(np.stack([first.ravel(), each.ravel()]))
    before, after = np.concatenate(ends, axis=1)
    graph = coo_array((np.ones(len(before), dtype=np.int8), (before, after)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def num_ops(lowered: Lowered, units: Ints) -> int:
    """Number of ops of a step in which every unit has its own copy of its class's ops."""
    first = np.unique(units, return_index=True)[1]
    each = np.bincount(lowered.quotient.class_of_rank[first])
    return int(each[lowered.program.ops.class_id].sum())


@dataclass(frozen=True)
class Kernels:
    """The part of every op that jitter touches: ``time_ns`` int64[num_ops] of kernels, in pass number ``action``.

    ``on_device`` bool[num_ops] is false for launches by the host beside the device.
    """

    time_ns: Ints
    action: Ints
    on_device: Flags

    @staticmethod
    def of(lowered: Lowered) -> Kernels:
        """Kernels in the ops of a Program."""
        time_ns, action = (np.zeros(len(lowered.program), dtype=np.int64) for _ in range(2))
        known: dict[int, tuple[Template, list[int]]] = {}
        for class_id, actions in enumerate(lowered.actions):
            slots, mine = lowered.slots, lowered.slots.of_class(class_id)
            alone = slots.group[mine] < 0
            ops, at, node = (column[mine][alone] for column in (lowered.op_of_slot, slots.action, slots.node))
            for each in actions.templates:
                if id(each) not in known:
                    known[id(each)] = each, [kernel_ns(one) for one in each.nodes]
            times = [took for each in actions.templates for took in known[id(each)][1]]
            first = np.cumsum([0, *(len(template.nodes) for template in actions.templates)])
            time_ns[ops] = np.array(times, dtype=np.int64)[first[actions.template[at]] + node]
            action[ops] = at
        on_device = np.zeros(len(lowered.program), dtype=bool)
        on_device[lowered.program.streams.item] = True
        return Kernels(time_ns, action, on_device)


def kernel_ns(node: TemplateNode) -> int:
    """Nanoseconds for which kernels, and gaps between launches, keep the compute stream of a node busy."""
    if node.collective is not None:
        return 0
    if not node.segments:
        return node.varying_ns
    return node.repeats * sum(varying_ns(segment) for _, segment in node.segments)


def slowest_factors(units: Ints, num_actions: int, sigma: float, seed: int) -> Floats:
    """Largest factor of any rank of every unit in every pass: float64[num_units, num_actions]."""
    from scipy.special import ndtri

    ranks = np.argsort(units, kind="stable")
    begins = np.flatnonzero(np.diff(units[ranks], prepend=-1))
    key = mix(mix(np.full(1, seed % 2**64, dtype=np.uint64)) + ranks.astype(np.uint64))
    result = np.empty((num_actions, len(begins)))
    for action in range(num_actions):
        bits = mix(key ^ mix(np.full(1, action, dtype=np.uint64))) >> np.uint64(64 - MANTISSA_BITS)
        normal = ndtri((bits.astype(np.float64) + 0.5) / 2**MANTISSA_BITS)
        result[action] = np.maximum.reduceat(normal, begins)
    factors: Floats = np.exp(sigma * result.T - sigma**2 / 2)
    return factors


@dataclass(frozen=True)
class JitteredStep:
    """A step with a timeline for every unit, whose kernels take random factors, none below ``least``.

    ``units`` int64[world] is the unit of every rank, ``unit`` int64[num_ops] that of an op.
    """

    program: Program
    units: Ints
    unit: Ints
    kernels: Kernels
    least: float = 0.0

    @staticmethod
    def of(lowered: Lowered, units: Ints, *, at_peak_s: float = 0.0) -> JitteredStep:
        """The jitter of a folded step, whose kernels on a rank take at least ``at_peak_s`` seconds per step."""
        every = lowered.with_colours(units)
        kernels, class_id = Kernels.of(every), every.program.ops.class_id
        busiest_ns = np.bincount(class_id, kernels.time_ns * kernels.on_device).max(initial=1.0)
        least = min(1.0, at_peak_s * NS_PER_S / busiest_ns)
        return JitteredStep(every.program, units, units[every.quotient.representative_rank][class_id], kernels, least)

    def ops(self, sigma: float, seed: int) -> OpTable:
        """The ops under one seed: kernels with scaled durations, or with scaled work where they share cores."""
        table, time_ns, action = self.program.ops, self.kernels.time_ns, self.kernels.action
        touched = np.flatnonzero(time_ns)
        factor = slowest_factors(self.units, int(action.max(initial=-1)) + 1, sigma, seed)
        own, factor = time_ns[touched], np.maximum(factor, self.least)
        more = np.rint(own * factor[self.unit[touched], action[touched]]).astype(np.int64) - own
        drains = table.work_bytes[touched] > 0
        fixed, work = table.fixed_ns.copy(), table.work_bytes.copy()
        fixed[touched[~drains]] += more[~drains]
        work[touched[drains]] += more[drains]
        return replace(table, fixed_ns=fixed, work_bytes=work)
