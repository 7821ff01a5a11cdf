"""What passes lose on NICs while parameters are gathered: when actions end at the earliest.

Where groups inside passes span domains, their collectives share NICs with the gathers of data parallelism. Flows that
meet on a link drain at one rate (:mod:`simpar.engine.sharing`), however much of the link a byte of each takes. So such
collectives may take several times as long beside a gather, which neither the work of a link nor passes by themselves
tell.

Let the gathers of a rank queue from time zero and take S with nothing beside them, of which they drain for D. A byte
takes a seconds of one of the rank's NIC links inside passes, and b in a gather.

1. Until S, gathers are left, because none ends earlier than by itself; and they drain for D or longer, so that for at
   most L = S - D none of them drains.
2. The links of a gather are NICs of ranks that may change places, so all are as full as this one
   (:class:`GatherLoads`). Fair shares rise from one full link to the next, and a full link fixes all of its flows: one
   that crosses a link of the gather is fixed when the gather is, or before, and gets no higher rate. With r for its
   rate, r (a + b) <= 1.
3. Let a clock run at full speed while a gather drains and k times as fast while none does, where k is the largest ratio
   of 1 / r between these collectives beside a gather and alone. On this clock, a collective takes at least the time
   that it takes beside a gather, and a kernel at least its own. So do passes, in which they wait for each other.
4. At S, the clock shows S + (k - 1) L at most. Blocks that end later on it, one after the other, have not ended at S,
   and those behind the first of them have not begun: they take their own time from then on.

Whatever else is under way, or is waited for, only makes all of this later.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from simpar.cost.collectives.choice import offers_and_loads
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.schedules.actions import LETTERS, F
from simpar.planner.bound.action_tables import PrecedenceGraph, Times
from simpar.planner.bound.data_parallel import Configuration
from simpar.planner.bound.shapes import weigh
from simpar.planner.bound.steps import ROUNDING_MARGIN, RowCharge
from simpar.planner.problem import Problem
from simpar.program.fold.group_routes import in_first_domain
from simpar.program.ir.flow import fixed_point
from simpar.program.structure.synchronisation import DENSE
from simpar.units import NS_PER_S, Floats, Ints

ALL_GATHER = "all_gather"


@dataclass
class GatherLoads:
    """What gathers put on NICs, for jobs in which all places of a mesh are alike."""

    problem: Problem
    cluster: Cluster
    _even: dict[bytes, bool] = field(default_factory=dict)

    @property
    def are_places_alike(self) -> bool:
        """Whether every rank has a NIC of its own, no rank or link is slow, and no other link of the network binds."""
        cluster, problem = self.cluster, self.problem
        own = dict(zip(cluster.blocks, cluster.is_of_device.tolist(), strict=True))
        fast = not (problem.cluster.scaling or problem.perturbation.slow_ranks or cluster.is_mixed)
        return bool(
            fast
            and cluster.world_size > cluster.domain_size
            and cluster.rigid_ranks == 1
            and not cluster.leaves_bind
            and own["nic_tx"]
            and own["nic_rx"]
            and not problem.graph.is_mixture
        )

    def taken_s(self, one: Configuration) -> Floats:
        """Seconds that a byte of the gathers before first forwards takes of each of rank 0's links, float64[links].

        Zero where there are none, where they do not follow one another from time zero, and where their links may be
        unlike each other: ranks that change places with all others of their group have to move whole domains.
        """
        policy, none = one.policies["F", True], np.zeros(len(one.own))
        copies = [each for each in policy.copies if each.gather_group]
        if len(copies) != 1 or copies[0].kind != DENSE or copies[0].reshard or copies[0].fetched_bytes:
            return none
        mesh, size = one.sync.job.layout.mesh, self.cluster.domain_size
        if mesh.cp > 1 or one.sync.alone:  # ranks may have unequal parts of a causal sequence, replicas run apart
            return none
        strides = np.cumprod([1, *mesh.shape])
        if not ((size % strides == 0) | (strides % size == 0)).all():
            return none
        if not self._is_even(one.groups[copies[0].gather_group]):
            return none
        return one.prices[ALL_GATHER, copies[0].gather_group].slopes_s(one.own)

    def _is_even(self, group: Ints) -> bool:
        """Whether a gather over a group puts as much on the NICs of all members, nothing else that binds, uncapped."""
        group = in_first_domain(group, self.cluster)
        if group.tobytes() not in self._even:
            self._even[group.tobytes()] = self._weigh(group)
        return self._even[group.tobytes()]

    def _weigh(self, group: Ints) -> bool:
        lines, loads = offers_and_loads(ALL_GATHER, group, self.cluster)
        nics = np.sort(np.concatenate([self.cluster.nic_tx(group), self.cluster.nic_rx(group)]))
        for edges in loads.values():
            binds = self.cluster.can_bind(edges.link_id)
            links, held = edges.link_id[binds], edges.coefficient[binds]
            if not np.array_equal(np.sort(links), nics) or np.ptp(fixed_point(held)) > 0:
                return False
        return not any(line.rate_cap_bytes_per_s for line in lines)


def ends_beside_gathers_ns(
    charge: RowCharge, loads: GatherLoads, table: PrecedenceGraph, times: Times
) -> Floats | None:
    """When actions end at the earliest, float64[actions, n]; None where that is known of none.

    ``times`` are the durations of passes, [n, stages] by (letter, boundary).
    """
    result: Floats | None = None
    blocks = charge.bounds.pipelines.blocks
    if len(table.joined) or not loads.are_places_alike:
        return None
    for configuration, mine in charge.by_configuration():
        taken_s, keys = loads.taken_s(configuration), charge.keys[mine]
        if not blocks.drains_s(keys, "F")[..., taken_s > 0].any():
            continue
        stretched_ns, ratio = blocks.stretched_ns(keys, "F", taken_s)
        if (ratio <= 1.0).all():
            continue
        if result is None:
            result = np.zeros((len(table.code), len(charge.mine)))
        opening = _Opening.of(charge, configuration, mine, taken_s, ratio)
        for rank in range(charge.shape.num_ranks):
            actions = np.flatnonzero(table.rank == rank)
            result[np.ix_(actions, mine)] = opening.ends_ns(rank, table, actions, times, stretched_ns)
    return None if result is None else ROUNDING_MARGIN * result


@dataclass(frozen=True)
class _Opening:
    """How ranks of some rows open, under one configuration.

    ``gather_ns`` [n, kinds] are gathers, ``queued_ns`` [n, ranks] all that a rank has (S above), and ``shown_ns`` [n,
    ranks] the most that the clock shows then.
    """

    charge: RowCharge
    mine: Ints
    gather_ns: Floats
    queued_ns: Floats
    shown_ns: Floats

    @staticmethod
    def of(charge: RowCharge, one: Configuration, mine: Ints, taken_s: Floats, ratio: Floats) -> _Opening:
        """``ratio`` [n] is the largest ratio of collectives beside a gather to those alone (k above)."""
        counts, gather_ns = charge.shape.of_ranks, charge.moves("gather", "F", boundary=True)[mine]
        moved = np.broadcast_to(one.gathered_bytes("F", boundary=True), gather_ns.shape)
        queued_ns = weigh(gather_ns, counts)
        drained_ns = ROUNDING_MARGIN * NS_PER_S * taken_s.max() * weigh(moved, counts)
        idle_ns = np.maximum(queued_ns - drained_ns, 0.0)
        return _Opening(charge, mine, gather_ns, queued_ns, queued_ns + (ratio - 1.0)[:, None] * idle_ns)

    def ends_ns(self, rank: int, table: PrecedenceGraph, actions: Ints, times: Times, stretched_ns: Ints) -> Floats:
        """When the ``actions`` of a rank end at the earliest, [actions, n]; ``stretched_ns`` are those of forwards."""
        shape, stages, codes = self.charge.shape, table.stage[actions], table.code[actions]
        beside_ns = weigh(stretched_ns, shape.by_stage)
        took = np.stack(
            [
                times[LETTERS[code], bool(boundary)][self.mine, stage]
                for code, stage, boundary in zip(
                    codes.tolist(), stages.tolist(), table.boundary[actions].tolist(), strict=True
                )
            ]
        )
        clock = np.where((codes == F)[:, None], beside_ns[:, stages].T, took)
        begin = self.gather_ns[:, shape.pieces[stages[0]][0]]  # nothing begins before the first gather has ended
        shown = begin + np.cumsum(clock, axis=0)
        late = shown > self.shown_ns[:, rank]
        first = np.argmax(late, axis=0)  # the first action that has not ended at S
        behind = np.cumsum(took, axis=0)
        n = np.arange(len(self.mine))
        left = self._left_ns(rank, shown[first, n] - clock[first, n], stages[first], codes[first], stretched_ns)
        ends = (self.queued_ns[:, rank] + left - behind[first, n]) + behind
        return np.asarray(np.where(late, ends, 0.0))

    def _left_ns(self, rank: int, shown: Floats, stages: Ints, codes: Ints, stretched_ns: Ints) -> Floats:
        """What blocks that have not begun at S take of the forwards that have not ended, [n]; 0 of other passes.

        ``shown`` [n] is the clock when these may begin at the earliest.
        """
        plain_ns, result = self.charge.pass_times("F", boundary=False)[self.mine], np.zeros(len(self.mine))
        for at in np.flatnonzero(codes == F).tolist():
            kinds = np.array(self.charge.shape.pieces[int(stages[at])])
            ends = shown[at] + np.cumsum(stretched_ns[at, kinds])
            result[at] = plain_ns[at, kinds[1:]][ends[:-1] > self.shown_ns[at, rank]].sum()
        return result
