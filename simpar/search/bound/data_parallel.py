"""Data parallelism in bulk: what every scheme gathers and reduces, when, and how long its collectives take.

A *scheme* is one combination of the axes that decide it. Times are those of the groups of rank 0, whose pipeline
stands for all of them in a lower bound. Experts have ranks of their own that hold copies of them (see
:mod:`simpar.program.structure.synchronisation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.models.graph import evaluate
from simpar.plan.schedules import make_schedule
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import FREE, Added, Price, shared_slopes_s
from simpar.program.emission.traffic import EMBEDDING_GROUP, group_kinds
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS, Synchronisation
from simpar.program.structure.templates import Copies, SyncPolicy
from simpar.search.bound.block_costs import BlockCosts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SCHEME_AXES = (
    "tp", "cp", "pp", "ep", "order", "precision", "zero", "hsdp", "overlap_grad_reduce", "overlap_param_gather",
    "sequence_parallel", "etp", "tp_method", "tp_depth", "optimizer", "moment_dtype", "grad_dtype", "reduce_dtype",
    "gather_dtype", "sync", "sync_every", "staleness", "servers", "reshard_after_forward", "offload_optimizer",
    "offload_ratio", "offload_delayed", "offload_gradients", "offload_parameters", "offload_activations",
    "bucket_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Moves:
    """What passes of one kind move for one block by itself, in nanoseconds by kind of block, float64[kinds].

    ``gather`` all its parameter gathers; ``first`` its first reductions, which share a stream; ``reduce`` all of
    them; ``both`` the longest first and second reduction in turn. ``occupied`` is how long all of it slows kernels.
    """

    gather: Floats
    first: Floats
    reduce: Floats
    both: Floats
    occupied: Floats


@dataclass(frozen=True)
class Cut:
    """First reductions of one backward pass over a stage, in the order of their queue.

    ``rest`` float64[b] nanoseconds of each and all that queue behind it, ``total`` of all; ``behind`` float64[b, kinds]
    blocks that run their backward after a bucket is full; ``second`` nanoseconds of the last second reduction.
    """

    rest: Floats
    behind: Floats
    total: float
    second: float


@dataclass(frozen=True)
class Scheme:
    """One scheme: its behaviour, its wires by (operation, group), and parameters on a rank by who holds copies.

    ``still`` are those that are not trained, and come with the others where these are freed after use; ``rests`` marks
    kinds that run nothing backward and need nothing for it.
    ``drains_s`` are seconds a byte that gathers and reductions take of the link that they share.
    ``own`` are the links of rank 0.
    """

    sync: Synchronisation
    wires: Mapping[tuple[str, str], Price]
    parameters: Mapping[str, Floats]
    still: Mapping[str, Floats]
    rests: Bools
    drains_s: tuple[float, float]
    own: Ints

    @cached_property
    def policies(self) -> dict[tuple[str, bool], SyncPolicy]:
        """Hooks of passes by (letter, boundary)."""
        return {
            (letter, boundary): self.sync.policy(name, boundary=boundary)
            for letter, name in PASSES.items()
            for boundary in (False, True)
        }

    @cached_property
    def apart(self) -> frozenset[tuple[str, bool]]:
        """Passes that run together with no other, because parameters are gathered or gradients reduced in them."""
        return frozenset(key for key, policy in self.policies.items() if policy.gathers or policy.reduces)

    @property
    def always_apart(self) -> bool:
        """Whether no forward can run together with a backward."""
        forward, *back = ({(letter, False), (letter, True)} <= self.apart for letter in "FBI")
        return forward or all(back)

    @cached_property
    def moves(self) -> dict[tuple[str, bool], Moves]:
        """What passes move, by (letter, boundary)."""
        asked = {key: (policy, key[0] == "F") for key, policy in self.policies.items()}
        known = {each: self._moves(*each) for each in set(asked.values())}
        return {key: known[each] for key, each in asked.items()}

    def _moves(self, policy: SyncPolicy, ahead: bool) -> Moves:
        none = np.zeros(len(self.parameters[DENSE]))
        gather, first, every, both, occupied = (none.copy() for _ in range(5))
        for copies in policy.copies:
            count = self.parameters[copies.kind]
            if copies.gather_group:
                wire = self.wires["all_gather", copies.gather_group]
                comes = count + self.still[copies.kind] * (copies.buffer_bytes > 0)
                comes = comes if ahead else np.where(self.rests, 0.0, comes)
                gather += np.where(comes > 0, wire.time_ns(comes * copies.gathered_bytes), 0)
                occupied += np.where(count > 0, wire.occupied_ns(count * copies.gathered_bytes), 0)
            in_turn = none.copy()
            for position, took in enumerate(self.reduction_ns(copies, count * copies.gradient_bytes)):
                spent = np.where(count > 0, took, 0)
                in_turn, every = in_turn + spent, every + spent
                first += spent if position == 0 else 0
            both = np.maximum(both, in_turn)
            for group, op, share in copies.reduce_ops:
                reduced = count * copies.gradient_bytes * share
                occupied += np.where(count > 0, self.wires[op, group].occupied_ns(reduced), 0)
        return Moves(gather, first, every, both, occupied)

    def reduction_ns(self, copies: Copies, size_bytes: Any, count: Any = 1) -> tuple[Ints, ...]:
        """The reductions in turn of gradients of ``size_bytes``, in ``count`` calls each."""
        return tuple(
            self.wires[op, group].time_ns(size_bytes * share / count, count)
            for group, op, share in copies.reduce_ops
        )

    @cached_property
    def _cuts(self) -> dict[tuple[tuple[int, ...], SyncPolicy], Cut]:
        return {}

    def cut(self, pieces: tuple[int, ...], policy: SyncPolicy) -> Cut:
        """How the gradients of a stage are reduced under a policy, found once."""
        if (pieces, policy) not in self._cuts:
            self._cuts[pieces, policy] = _cut(self, pieces, policy)
        return self._cuts[pieces, policy]

    @property
    def reduces_late(self) -> bool:
        """Whether gradients are reduced behind the last backward."""
        sync = self.sync
        return not sync.job.plan.data_parallel.overlap_grad_reduce and not sync.single_process

    def late_reduction_ns(self, held: Mapping[str, Floats]) -> Floats:
        """What that takes, for parameters of ranks by who holds copies."""
        total = np.zeros_like(held[DENSE])
        for each in self.sync.replicas:
            size = held[each.kind] * self.sync.gradient_bytes
            count = self.sync.late_calls(size)
            copies = Copies(each.kind, reduce_ops=self.sync.reduce_ops(each))
            for took in self.reduction_ns(copies, size, count):
                total = total + np.where(size > 0, took, 0)
        return np.asarray(total)

    @property
    def gathers_late(self) -> bool:
        """Whether parameters are gathered at once, behind the update."""
        sync = self.sync
        overlap = sync.job.plan.data_parallel.overlap_param_gather
        return sync.zero > 0 and not sync.per_unit and not overlap and not sync.single_process

    def late_gather_ns(self, held: Mapping[str, Floats]) -> Floats:
        """What that takes, for parameters of ranks by who holds copies."""
        total = np.zeros_like(held[DENSE])
        for each in self.sync.replicas:
            if each.zero:
                wire = self.wires["all_gather", each.shard_group]
                took = wire.time_ns(held[each.kind] * self.sync.parameter_bytes)
                total = total + np.where(held[each.kind] > 0, took, 0)
        return np.asarray(total)

    @cached_property
    def embedding_ns(self) -> float:
        """The sum of the gradients of tied embeddings, zero where there is none."""
        wire = self.wires.get(("all_reduce", EMBEDDING_GROUP), FREE)
        if wire is FREE or self.sync.job.graph.embedding.still:
            return 0.0
        graph, view = self.sync.job.graph, RankView.of(self.sync.job)
        weights = graph.embedding.operators[0].weights[0].size
        return float(wire.time_ns(float(evaluate(weights, view.tensor)) * self.sync.gradient_bytes))

    def gather_slopes_s(self, *, kind: str, letter: str, boundary: bool) -> Floats:
        """Seconds a parameter that the gathers of a pass take of each of rank 0's links."""
        copies = [
            one for one in self.policies[letter, boundary].copies if one.kind == kind and one.gather_group
        ]
        found = np.zeros(len(self.own))
        for each in copies:
            found += each.gathered_bytes * self.wires["all_gather", each.gather_group].slopes_s(self.own)
        return found

    def reduce_slopes_s(self, *, kind: str, letter: str, boundary: bool) -> Floats:
        """Seconds a parameter that the reductions of a pass take of each of rank 0's links."""
        found = np.zeros(len(self.own))
        for each in self.policies[letter, boundary].copies:
            for group, op, share in each.reduce_ops if each.kind == kind else ():
                found += each.gradient_bytes * share * self.wires[op, group].slopes_s(self.own)
        return found

    @property
    def least_slopes_s(self) -> tuple[float, ...]:
        """Seconds a byte that first reductions take of their busiest link, by who holds copies."""
        found = []
        for kind in (DENSE, EXPERTS):
            each = next((one for one in self.sync.replicas if one.kind == kind), None)
            ops = self.sync.reduce_ops(each) if each else ()
            found.append(self.wires[ops[0][1], ops[0][0]].least_slope_s if ops else 0.0)
        return tuple(found)


@dataclass
class Schemes:
    """Schemes of all rows: ``index`` int64[rows] into ``row``, one row of every scheme; made when asked for.

    ``meet`` says of every row whether embedding and head of one table are on one rank, which moves it once.
    """

    passes: BlockCosts
    index: Ints
    row: Ints
    meet: Bools
    _made: dict[int, Scheme] = field(default_factory=dict)
    _groups: dict[tuple[Any, ...], dict[str, Ints]] = field(default_factory=dict)

    @staticmethod
    def of(passes: BlockCosts, meet: Bools) -> Schemes:
        """Schemes of all rows."""
        code = passes.jobs.rows.number(SCHEME_AXES, meet, 2)
        _, row, index = np.unique(code, return_index=True, return_inverse=True)
        return Schemes(passes, index, row, meet)

    def __getitem__(self, index: int) -> Scheme:
        """One scheme."""
        if index not in self._made:
            self._made[index] = self._make(int(self.row[index]))
        return self._made[index]

    def _make(self, row: int) -> Scheme:
        passes = self.passes
        sync = Synchronisation.of(passes.jobs.job(row))
        groups = self._groups_of(sync)
        added = Added.of(sync.job.stack, sync.quantise_s_per_byte)
        wires = {(op, group): FREE for group, op in _uses(sync)}
        for op, group in wires:
            if group in groups:
                wire = passes.wires.of(op, groups[group], group)
                per_byte = added.of_call(op, group)[1]
                wires[op, group] = replace(wire, added_s_per_byte=per_byte) if per_byte else wire
        key, dense = int(passes.key[row]), sync.replicas[0]
        reduce = sync.reduce_ops(dense)
        gather = wires.get(("all_gather", dense.shard_group), FREE)
        parameters = passes.dense[key].copy()
        if self.meet[row] and not sync.per_unit:
            parameters[passes.head] -= passes.projection[key]
        return Scheme(
            sync=sync,
            wires=wires,
            parameters={DENSE: parameters, EXPERTS: passes.experts[key]},
            still={kind: still[key] for kind, still in passes.still.items()},
            rests=np.array([kind.block.still for kind in passes.kinds]),
            drains_s=shared_slopes_s(gather, wires[reduce[0][1], reduce[0][0]] if reduce else FREE),
            own=passes.wires.own,
        )

    def _groups_of(self, sync: Synchronisation) -> dict[str, Ints]:
        """The group of rank 0 of every kind."""
        mesh, data = sync.job.plan.mesh, sync.job.plan.data_parallel
        copies = (data.hsdp if sync.zero else 1, bool(data.zero), sync.alone)
        key = (*mesh.shape, mesh.ep, mesh.etp, mesh.order, *copies)
        if key not in self._groups:
            kinds = group_kinds(RankView.of(sync.job), sync, make_schedule("1f1b", mesh.pp, 1))
            self._groups[key] = {kind.name: kind.groups[0].copy() for kind in kinds}
        return self._groups[key]


def _uses(sync: Synchronisation) -> list[tuple[str, str]]:
    """(group, operation) of everything that data parallelism moves."""
    found = [(EMBEDDING_GROUP, "all_reduce")] if sync.job.graph.tied_embeddings else []
    for each in () if sync.single_process else sync.replicas:
        found += [(group, op) for group, op, _ in sync.reduce_ops(each)]
        found += [(each.shard_group, "all_gather")] if each.zero else []
    return found


@dataclass(frozen=True)
class Buckets:
    """Gradient buckets of one backward pass over a stage, in the order in which they close.

    ``size_bytes`` and ``count`` of calls; ``behind[b, kind]`` how many blocks of a kind run their backward after the
    bucket is full.
    """

    size_bytes: Floats
    count: Floats
    behind: Floats


def buckets(scheme: Scheme, pieces: Sequence[int], policy: SyncPolicy, copies: Copies) -> Buckets:
    """How the gradients of a stage are cut, by the rule of :mod:`simpar.program.structure.templates`."""
    bytes_of = scheme.parameters[copies.kind] * copies.gradient_bytes
    limit, pending = policy.first_bucket_bytes or policy.bucket_bytes, 0.0
    sizes, counts, behind = [], [], []
    left = np.bincount(pieces, minlength=len(bytes_of)).astype(np.float64)
    for position, kind in enumerate(reversed(pieces)):
        pending += float(bytes_of[kind])
        left[kind] -= 1
        full = policy.per_unit or pending >= limit
        if not (full or position == len(pieces) - 1) or pending <= 0:
            continue
        whole = policy.per_unit or policy.bucket_bytes <= 0
        sizes.append(pending)
        counts.append(1 if whole else max(1, round(pending / policy.bucket_bytes)))
        behind.append(left.copy())
        pending, limit = 0.0, policy.bucket_bytes
    shape = (-1, len(bytes_of))
    return Buckets(np.array(sizes), np.array(counts, dtype=np.float64), np.array(behind).reshape(shape))


def _cut(scheme: Scheme, pieces: tuple[int, ...], policy: SyncPolicy) -> Cut:
    """First reductions of a stage in the order of their queue, and the last second one."""
    took, behind, second = [], [], 0.0
    for copies in policy.copies:
        if not copies.reduce_ops:
            continue
        each = buckets(scheme, pieces, policy, copies)
        times = scheme.reduction_ns(copies, each.size_bytes, each.count)
        took.append(times[0])
        behind.append(each.behind)
        if len(times) > 1 and len(times[1]):
            second = float(times[1][-1])
    if not took:
        return Cut(np.zeros(0), np.zeros((0, len(scheme.parameters[DENSE]))), 0.0, 0.0)
    left = np.concatenate([one.sum(axis=1) for one in behind])
    order = np.argsort(-left, kind="stable")
    sizes = np.concatenate(took)[order].astype(np.float64)
    return Cut(np.cumsum(sizes[::-1])[::-1], np.concatenate(behind)[order], float(sizes.sum()), second)
