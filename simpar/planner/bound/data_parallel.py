"""Data parallelism in bulk: what every configuration gathers and reduces, when, and how long it takes.

A *configuration* is one combination of the axes that decide it. Times are those of the groups of rank 0, whose pipeline
stands for all pipelines in a lower bound. Copies of experts are held by other ranks than copies of dense parameters
(see :mod:`simpar.program.structure.synchronisation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import REPLICAS
from simpar.plan.mesh import Mesh
from simpar.plan.schedules import default_schedule, make_schedule
from simpar.planner.bound.block_costs import BlockCosts
from simpar.planner.space.table import factorize
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import FREE, Added, Price, Prices, occupied_ns
from simpar.program.emission.traffic import EMBEDDING_GROUP, embedding_sum, group_kinds
from simpar.program.fold.group_routes import GroupKind, in_first_domain
from simpar.program.structure.buckets import buckets
from simpar.program.structure.hooks import Copies, SyncPolicy
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS, Synchronisation
from simpar.units import Flags, Floats, Ints

CONFIGURATION_AXES = names_that_decide(REPLICAS)


class BlockCollectives(NamedTuple):
    """Collectives of one block for passes of one kind, in nanoseconds by kind of block, float64[kinds].

    ``gather`` are all its parameter gathers, ``first`` its first reductions, which share a stream, ``both`` the longest
    sequence of a first and a second reduction. ``occupied`` is how long all of it slows kernels.
    """

    gather: Floats
    first: Floats
    both: Floats
    occupied: Floats


@dataclass(frozen=True)
class BucketCut:
    """The first reductions of one backward pass over a stage, in queue order (b buckets).

    ``rest`` float64[b] is the time in nanoseconds of each reduction and all after it, ``total`` that of all. ``behind``
    float64[b, kinds] counts the blocks that run their backward after a bucket is full. ``second`` is the time of the
    second reduction of the last bucket.
    """

    rest: Floats
    behind: Floats
    total: float
    second: float


@dataclass(frozen=True)
class Configuration:
    """One configuration: its behaviour, prices by (operation, group), and parameters on a rank by who holds copies.

    ``still`` are frozen parameters, which are gathered with the others if parameters are freed after use. ``rests``
    marks kinds of blocks that run nothing in the backward and need no parameters for it. ``own`` are the links of rank
    0. ``crowded`` float64[ranks, links] holds, by (operation, group), seconds per byte on the links of the most crowded
    rank of every pipeline rank, the one with the fewest members of its group in its domain. It is empty if mesh blocks
    and domains nest, so that rank 0 is as crowded as any. ``groups`` are those of rank 0 by name. ``shared`` are the
    collectives of blocks of all configurations, some of which move the same at the same prices.
    """

    sync: Synchronisation
    prices: Mapping[tuple[str, str], Price]
    parameters: Mapping[str, Floats]
    still: Mapping[str, Floats]
    has_no_backward: Flags
    own: Ints
    crowded: Mapping[tuple[str, str], Floats]
    groups: Mapping[str, Ints] = field(default_factory=dict)
    shared: dict[Any, BlockCollectives] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def policies(self) -> dict[tuple[str, bool], SyncPolicy]:
        """Synchronisation policies of passes by (letter, boundary)."""
        return {
            (letter, boundary): self.sync.policy(name, boundary=boundary)
            for letter, name in PASSES.items()
            for boundary in (False, True)
        }

    @cached_property
    def apart(self) -> frozenset[tuple[str, bool]]:
        """Passes that run together with no other, because they gather parameters or reduce or hold gradients."""
        return frozenset(
            key for key, policy in self.policies.items() if policy.gathers or policy.reduces or policy.holds
        )

    def moves(self, letter: str, *, boundary: bool) -> BlockCollectives:
        """The collectives of passes, computed once per distinct policy."""
        policy, ahead = self.policies[letter, boundary], letter == "F"
        if not (policy.gathers or policy.reduces):
            none = np.zeros(len(self.has_no_backward))
            return BlockCollectives(none, none, none, none)
        uses = [("all_gather", each.gather_group) for each in policy.copies if each.gather_group]
        uses += [(op, group) for each in policy.copies for group, op, _ in each.reduce_ops]
        known = policy, ahead, self.sizes, tuple(id(self.prices[use]) for use in uses)
        if known not in self.shared:
            self.shared[known] = self._moves(policy, ahead)
        return self.shared[known]

    @cached_property
    def sizes(self) -> bytes:
        """What decides the sizes of gathers and reductions."""
        return b"".join(each[kind].tobytes() for each in (self.parameters, self.still) for kind in sorted(each))

    def _moves(self, policy: SyncPolicy, ahead: bool) -> BlockCollectives:
        none = np.zeros(len(self.parameters[DENSE]))
        gather, first, both, occupied = (none.copy() for _ in range(4))
        for copies in policy.copies:
            count = self.parameters[copies.kind]
            if copies.gather_group:
                price = self.prices["all_gather", copies.gather_group]
                comes = self._arriving(copies, ahead)
                call, own = copies.gather(comes), copies.gather(count)
                gather += np.where(comes > 0, price.time_ns(call.size_bytes, call.count), 0)
                occupied += np.where(count > 0, price.occupied_ns(own.size_bytes, own.count), 0)
            in_turn, sizes = none, self.reduced_bytes(copies, count * copies.gradient_bytes)
            for position, (price, size) in enumerate(sizes):
                took_ns = price.time_ns(size)
                spent = np.where(count > 0, took_ns, 0)
                in_turn = in_turn + spent
                first += spent if position == 0 else 0
                occupied += np.where(count > 0, occupied_ns(took_ns, size, 1, price.occupied), 0)
            both = np.maximum(both, in_turn)
        return BlockCollectives(gather, first, both, occupied)

    def _arriving(self, copies: Copies, ahead: bool) -> Floats:
        """Parameters of every kind of block that are gathered before a pass."""
        comes = self.parameters[copies.kind] + self.still[copies.kind] * (copies.buffer_bytes > 0)
        return comes if ahead else np.where(self.has_no_backward, 0.0, comes)

    def gathered_bytes(self, letter: str, *, boundary: bool) -> Floats:
        """Bytes of the gathers before every kind of block in passes of a letter, float64[kinds]."""
        result = np.zeros(len(self.has_no_backward))
        for copies in self.policies[letter, boundary].copies:
            if copies.gather_group:
                call = copies.gather(self._arriving(copies, letter == "F"))
                result += call.size_bytes * call.count
        return result

    def reduction_ns(self, copies: Copies, size_bytes: Any, count: Any = 1) -> tuple[Ints, ...]:
        """Nanoseconds of the reductions in sequence of gradients of ``size_bytes``, in ``count`` calls each."""
        return tuple(price.time_ns(size / count, count) for price, size in self.reduced_bytes(copies, size_bytes))

    def reduced_bytes(self, copies: Copies, size_bytes: Any) -> list[tuple[Price, Any]]:
        """Price and bytes of each of the reductions in sequence of gradients of ``size_bytes``."""
        return [(self.prices[op, group], size_bytes * share) for group, op, share in copies.reduce_ops]

    @cached_property
    def _cuts(self) -> dict[tuple[tuple[int, ...], SyncPolicy], BucketCut]:
        return {}

    @cached_property
    def _own_s(self) -> dict[tuple[str, str], Floats]:
        return {use: price.slopes_s(self.own) for use, price in self.prices.items()}

    @cached_property
    def _crowded_s(self) -> dict[tuple[str, bool], Floats]:
        return {}

    def cut(self, pieces: tuple[int, ...], policy: SyncPolicy) -> BucketCut:
        """The buckets of a stage's gradients under a policy, computed once."""
        if (pieces, policy) not in self._cuts:
            self._cuts[pieces, policy] = _cut(self, pieces, policy)
        return self._cuts[pieces, policy]

    def occupied_ns(self, uses: Sequence[CollectiveUse]) -> Floats:
        """Nanoseconds of collectives in sequence; their sizes are arrays of one shape."""
        each = [
            np.where(use.size_bytes > 0, self.prices[use.op, use.group].time_ns(use.size_bytes, use.count), 0.0)
            for use in uses
        ]
        return np.asarray(sum(each))

    def drained_s(self, uses: Sequence[CollectiveUse]) -> Floats:
        """Seconds that collectives occupy each of rank 0's links, float64[..., links], from sizes [...]."""
        each = [np.asarray(use.size_bytes * use.count)[..., None] * self._own_s[use.op, use.group] for use in uses]
        return np.asarray(sum(each))

    @cached_property
    def embedding_ns(self) -> float:
        """Nanoseconds of the all-reduce of tied embedding gradients; 0 without any."""
        if ("all_reduce", EMBEDDING_GROUP) not in self.prices or self.sync.job.graph.embedding.has_no_backward:
            return 0.0
        return float(self.occupied_ns([embedding_sum(RankView.of(self.sync.job).table_elements, self.sync)]))

    def slopes_s(self, letter: str, *, boundary: bool) -> Floats:
        """Seconds per parameter that a pass occupies each of rank 0's links, float64[2, 2, links].

        The first axis is who holds copies (dense, experts), the second is gathers and reductions.
        """
        return self._taken_s(self.policies[letter, boundary], self._own_s, (len(self.own),))

    def most_loaded_s(self, letter: str, ranks: int, *, boundary: bool) -> Floats:
        """Seconds per parameter on the links of the crowded rank of every pipeline rank, float64[2, ranks, links].

        Gathers and reductions are added up; zero if none of the ``ranks`` is crowded.
        """
        if (letter, boundary) not in self._crowded_s:
            policy, size = self.policies[letter, boundary], (ranks, len(self.own))
            self._crowded_s[letter, boundary] = self._taken_s(policy, self.crowded, size).sum(axis=1)
        return self._crowded_s[letter, boundary]

    def _taken_s(self, policy: SyncPolicy, of_byte: Mapping[tuple[str, str], Floats], size: tuple[int, ...]) -> Floats:
        """Seconds per parameter that a pass occupies some links, from seconds per byte of each (operation, group).

        The result is float64[2, 2, *size], with the first two axes as in :meth:`slopes_s`; zero if ``of_byte`` is
        empty.
        """
        result = np.zeros((2, 2, *size))
        if not of_byte:
            return result
        for each in policy.copies:
            gathers, reduces = result[int(each.kind == EXPERTS)]
            if each.gather_group:
                gathers += each.gathered_bytes * of_byte["all_gather", each.gather_group]
            for group, op, share in each.reduce_ops:
                reduces += each.gradient_bytes * share * of_byte[op, group]
        return result


@dataclass
class Configurations:
    """Configurations of all rows, made on demand: ``index`` int64[rows] points into ``row``, one row of each.

    ``meet`` marks rows in which one rank has embedding and head of a tied table, which is then moved once.
    """

    blocks: BlockCosts
    index: Ints
    row: Ints
    meet: Flags
    _made: dict[int, Configuration] = field(default_factory=dict)
    _shared: dict[Any, BlockCollectives] = field(default_factory=dict)
    _known: dict[Any, dict[int, Any]] = field(default_factory=dict)
    _groups: dict[tuple[Any, ...], tuple[dict[str, Ints], list[MostLoadedRank]]] = field(default_factory=dict)

    @staticmethod
    def of(blocks: BlockCosts, meet: Flags) -> Configurations:
        """Configurations of all rows."""
        code = blocks.jobs.rows.number(CONFIGURATION_AXES, meet, 2)
        row, index = factorize(code)
        return Configurations(blocks, index, row, meet)

    def __getitem__(self, index: int) -> Configuration:
        """One configuration."""
        if index not in self._made:
            self._made[index] = self._make(int(self.row[index]))
        return self._made[index]

    def each(self, name: Any, value: Callable[[Configuration], Any], which: Ints) -> Any:
        """``value`` of some configurations, evaluated once for each and kept under ``name``."""
        known, numbers = self._known.setdefault(name, {}), which.tolist()
        known.update((at, value(self[at])) for at in numbers if at not in known)
        return np.array([known[at] for at in numbers])

    def _make(self, row: int) -> Configuration:
        blocks = self.blocks
        sync = Synchronisation.of(blocks.jobs.job(row))
        groups, crowded = self._groups_of(sync)
        added = Added.of(sync.job.stack, sync.quantise_s_per_byte)
        prices = {(op, group): FREE for group, op in _uses(sync)}
        for op, group in prices:
            if group in groups:
                alone = blocks.prices.of(op, groups[group], group)
                price = blocks.lockstep.price(alone, (op, group), groups[group], sync.job.layout.mesh)
                per_byte = added.of_call(op, group)[1]
                prices[op, group] = replace(price, added_s_per_byte=per_byte) if per_byte else price
        key = int(blocks.key[row])
        parameters = blocks.dense[key].copy()
        if self.meet[row] and not sync.per_unit:
            parameters[blocks.head] -= blocks.projection[key]
        return Configuration(
            sync=sync,
            prices=prices,
            parameters={DENSE: parameters, EXPERTS: blocks.experts[key]},
            still={kind: still[key] for kind, still in blocks.still.items()},
            has_no_backward=np.array([kind.block.has_no_backward for kind in blocks.kinds]),
            own=blocks.prices.own,
            crowded=_taken_of(crowded, prices, blocks.prices),
            groups=groups,
            shared=self._shared,
        )

    def _groups_of(self, sync: Synchronisation) -> tuple[dict[str, Ints], list[MostLoadedRank]]:
        """The group of rank 0 of every kind, and the crowded rank of every pipeline rank."""
        mesh, layout = sync.job.layout.mesh, sync.job.layout
        copies = (int(layout.hsdp) if sync.zero else 1, bool(layout.zero), sync.alone)
        key = (*mesh.shape, mesh.ep, mesh.etp, mesh.order, *copies)
        if key not in self._groups:
            kinds = group_kinds(RankView.of(sync.job), sync, make_schedule(default_schedule(), mesh.pp, 1))
            first = {kind.name: kind.groups[0].copy() for kind in kinds}
            copied = [each for each in kinds if each.name.startswith((DENSE, EXPERTS))]
            self._groups[key] = first, find_most_loaded_ranks(mesh, copied, self.blocks.prices.cluster, copies[0])
        return self._groups[key]


@dataclass(frozen=True)
class MostLoadedRank:
    """A rank with its group of every kind, int64[members]."""

    rank: int
    groups: Mapping[str, Ints]

    def occupied_s(self, op: str, name: str, prices: Prices) -> Floats:
        """Seconds per byte of an operation on a group that the links of the rank are occupied, float64[links]."""
        group = self.groups.get(name, np.zeros(0, dtype=np.int64))
        moved = self.rank - (int(group[0]) - int(in_first_domain(group, prices.cluster)[0]) if len(group) else 0)
        return prices.of(op, group, name).slopes_s(prices.ends(moved, moved))


def _taken_of(
    crowded: Sequence[MostLoadedRank], uses: Iterable[tuple[str, str]], prices: Prices
) -> dict[tuple[str, str], Floats]:
    """Seconds per byte of each (operation, group) on the links of crowded ranks, float64[ranks, links]."""
    return {use: np.stack([one.occupied_s(*use, prices) for one in crowded]) for use in uses if crowded}


def find_most_loaded_ranks(
    mesh: Mesh, kinds: Sequence[GroupKind], cluster: Cluster, copies: int
) -> list[MostLoadedRank]:
    """For every pipeline rank, the rank with the fewest members of its group in its domain.

    Only groups that span domains count. Such a rank carries traffic to other domains that more ranks share elsewhere:
    if a group has 32 ranks in most domains and 4 in the last, those 4 load their NICs eight times as much. Empty if
    mesh blocks and domains nest, because then all groups are alike.
    """
    strides = np.cumprod([1, *mesh.shape])
    at = mesh.order.index("dp")
    strides = np.append(strides, strides[at] * mesh.shape[at] // copies)
    size = cluster.domain_size
    nest = ((size % strides == 0) | (strides % size == 0)).all()
    kinds = [kind for kind in kinds if kind.groups.shape[1] > 1]
    if nest or not kinds or cluster.is_mixed or cluster.world_size <= size:
        return []
    groups = max(kinds, key=lambda kind: kind.groups.shape[1] if "all_gather" in kind.ops else 0).groups
    domains = cluster.world_size * np.arange(len(groups))[:, None] + cluster.domain_of(groups)
    _, index, beside = np.unique(domains, return_inverse=True, return_counts=True)
    beside = beside[index.reshape(groups.shape)]
    beside = np.where(beside < groups.shape[1], beside, cluster.world_size).ravel()
    ranks, place = groups.ravel(), mesh.pipeline_rank(groups.ravel())
    result = []
    for each in range(mesh.pp):
        mine = np.flatnonzero(place == each)
        rank = int(ranks[mine[np.argmin(beside[mine])]])
        through = {kind.name: kind.groups[(kind.groups == rank).any(axis=1)][0] for kind in kinds}
        result.append(MostLoadedRank(rank, through))
    return result


def _uses(sync: Synchronisation) -> list[tuple[str, str]]:
    """The (group, operation) of every data-parallel collective."""
    result = [(EMBEDDING_GROUP, "all_reduce")] if sync.job.graph.tied_embeddings else []
    for each in () if sync.single_process else sync.replicas:
        result += [(group, op) for group, op, _ in sync.reduce_ops(each)]
        result += [(each.shard_group, "all_gather")] if each.zero else []
    return result


def _cut(configuration: Configuration, pieces: tuple[int, ...], policy: SyncPolicy) -> BucketCut:
    """The first reductions of a stage in queue order, and the second reduction of the last of them.

    Second reductions of the other kind of parameters may be over by then: their last bucket may have left the queue
    long before.
    """
    backwards, second = np.array(pieces[::-1]), list[Ints]()
    left = np.eye(len(configuration.has_no_backward))[backwards][::-1].cumsum(axis=0)[::-1]  # blocks from here on
    took: list[Ints] = []
    closing: list[Ints] = []
    for copies in policy.copies:
        if not copies.reduce_ops:
            continue
        sizes = configuration.parameters[copies.kind][backwards] * copies.gradient_bytes
        each = buckets(sizes, policy.first_bucket_bytes, policy.bucket_bytes, per_unit=copies.per_unit)
        size, count = (np.array([getattr(one, name) for one in each]) for name in ("size_bytes", "count"))
        times = configuration.reduction_ns(copies, size, count)
        took.append(times[0])
        closing.append(np.array([one.at for one in each], dtype=np.int64))
        second.append(times[1] if len(times) > 1 else np.zeros_like(times[0]))
    if not took:
        return BucketCut(np.zeros(0), left[:0], 0.0, 0.0)
    at = np.concatenate(closing)
    order = np.argsort(at, kind="stable")
    times_ns = np.concatenate(took)[order].astype(np.float64)
    behind = left[at[order]] - np.eye(len(configuration.has_no_backward))[backwards[at[order]]]
    last_ns = float(np.concatenate(second)[order][-1]) if len(order) else 0.0
    return BucketCut(np.cumsum(times_ns[::-1])[::-1], behind, float(times_ns.sum()), last_ns)
