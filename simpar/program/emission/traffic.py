"""Process groups of a plan and what their collectives cost on the quotient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from simpar.architectures.encoders import encoded_elements
from simpar.architectures.graph import Block
from simpar.cost.collectives.choice import choose_fastest, occupied_s_per_byte, offers
from simpar.cost.collectives.lines import Line
from simpar.dataclass import dataclass
from simpar.hardware.cluster import LATE, Cluster
from simpar.layout.mirrored import MirroredMesh
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.mesh import Mesh
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.context import HEADS, RING
from simpar.program.blocks.experts import RANKS, SLICES
from simpar.program.blocks.phases import CONTEXT, EXPERT, TENSOR, CollectiveUse
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import Added, calls_ns, is_tensor_parallel, occupied_ns, on_time
from simpar.program.fold.group_routes import GroupKind
from simpar.program.fold.quotient import Quotient, build_quotient
from simpar.program.fold.refinement import rows_by_appearance
from simpar.program.ir.flow import solo_duration_ns
from simpar.program.ir.program import Csr, Routes
from simpar.program.structure.synchronisation import DENSE, ENCODER, EXPERTS, Synchronisation
from simpar.program.structure.templates import DRIVE_IN, DRIVE_OUT, GATHER, HOST_OPS, REDUCE
from simpar.units import US, Flags, Floats, Indices, Ints, Numbers, floats, unique

EMBEDDING_GROUP = "embedding"
_BLOCK_STREAM = {TENSOR: TENSOR, RING: CONTEXT, HEADS: CONTEXT, RANKS: EXPERT, SLICES: TENSOR}
BLOCK_KINDS = tuple(_BLOCK_STREAM)
"""Kinds of groups in which the passes of a block communicate."""


def late_per_member_s(cluster: Cluster, mesh: Mesh) -> float:
    """Seconds per member for which a tensor-parallel collective holds up the host; 0 except on disturbed nodes."""
    if cluster.is_mixed:
        return 0.0
    first = mesh.groups("tp")[0] // cluster.domain_size
    return cluster.state.get(LATE[int((first != first[0]).any())], 0.0) * US


def embedding_sum(elements: Numbers, sync: Synchronisation) -> CollectiveUse:
    """The sum, before the update, of gradients of tied embeddings that live on the first and the last stage."""
    return CollectiveUse(EMBEDDING_GROUP, "all_reduce", elements * sync.gradient_bytes)


def hop_kind(delta: int) -> str:
    """Name of the point-to-point groups that send ``delta`` pipeline ranks ahead (modulo the pipeline)."""
    return f"{PIPELINE}+{delta}"


def send_bytes(view: RankView, block: Block) -> Numbers:
    """Bytes of the activation behind ``block`` that a rank sends: its slice where the residual is sharded.

    With ``scatter_gather_p2p`` the tensor is scattered over the tensor-parallel ranks without sequence parallelism too
    [Narayanan et al. 2021, arXiv 2104.04473, section 4.1].
    """
    return _slice_bytes(view, block.output_elements(view.tensor))


def encoded_bytes(view: RankView) -> float:
    """Bytes that a rank sends of what the encoders in front make of one microbatch, sliced as in :func:`send_bytes`."""
    return float(_slice_bytes(view, encoded_elements(view.job.graph, view.tensor)))


def _slice_bytes(view: RankView, elements: Numbers) -> Numbers:
    whole = floats(elements) * view.compute_bytes
    sliced = view.sequence_parallel or view.job.stack.overlap.scatter_gather_p2p
    return whole / view.tensor_parallel if sliced else whole


def group_kinds(view: RankView, sync: Synchronisation, schedule: Schedule) -> list[GroupKind]:
    """Every kind of process group of a uniform plan, with the collectives that it runs."""
    job = view.job
    mesh = job.layout.mesh
    pipelines = mesh.pipelines
    kinds = [*block_groups(view), *_data_parallel_kinds(sync)]
    for delta in sorted(_ways(schedule)):
        if delta:
            pairs = np.stack([pipelines.ravel(), np.roll(pipelines, -delta, axis=1).ravel()], axis=1)
            kinds.append(GroupKind(hop_kind(delta), pairs, ("send",), directed=True))
    if isinstance(mesh, MirroredMesh):
        pairs = np.stack([pipelines[:, -1], mesh.opposite(pipelines[:, -1])], axis=1)
        kinds.append(GroupKind(hop_kind(0), pairs, ("send",), directed=True))
    at = schedule.rank_of_stage[0], schedule.rank_of_stage[-1]
    if job.graph.tied_embeddings and at[0] != at[1]:
        kinds.append(GroupKind(EMBEDDING_GROUP, pipelines[:, list(at)], ("all_reduce",)))
    return [*kinds, *_host_kinds(sync)]


def _ways(schedule: Schedule) -> dict[int, set[str]]:
    """Distances in pipeline ranks (modulo their number) of messages, each with its directions: "ahead", "back"."""
    result: dict[int, set[str]] = {}
    between = np.diff(schedule.rank_of_stage)
    if schedule.ranks_of_first:  # from every rank's encoder to the first stage behind it
        between = np.append(between, schedule.rank_of_stage[0] - np.arange(schedule.num_ranks))
    for way, deltas in (("ahead", between), ("back", -between)):
        for delta in sorted(set((deltas % schedule.num_ranks).tolist())):
            result.setdefault(delta, set()).add(way)
    return result


def _host_kinds(sync: Synchronisation) -> list[GroupKind]:
    """Every rank with its host, by direction; with the host's drives only where a plan uses them."""
    alone, layout = np.arange(sync.job.layout.mesh.world_size)[:, None], sync.job.layout
    drives = "nvme" in (layout.offload_optimizer, layout.offload_parameters)
    unused = () if drives else (DRIVE_IN, DRIVE_OUT)
    named = {name: op for name, op in HOST_OPS.items() if name in sync.host_streams and name not in unused}
    return [GroupKind(name, alone, (op,)) for name, op in named.items()]


def block_groups(view: RankView) -> list[GroupKind]:
    """Groups in which the blocks of a rank communicate.

    These are tensor-parallel ranks; neighbours that exchange heads; rings, or ranks that gather keys, across these
    neighbours; ranks that exchange tokens; and ranks that share an expert.
    """
    mesh, heads = view.job.layout.mesh, int(view.job.layout.ulysses_ranks)
    sums, kinds = ("all_gather", "reduce_scatter", "all_reduce"), list[GroupKind]()
    swaps = ("all_to_all",) if view.job.layout.matrix_layout == "layer_sharded" else ()
    if mesh.tp > 1:
        kinds.append(GroupKind(TENSOR, mesh.groups("tp"), (*sums, *swaps)))
    if mesh.cp > 1 and heads > 1:
        kinds.append(GroupKind(HEADS, mesh.groups("cp").reshape(-1, heads), ("all_to_all",)))
    if mesh.cp > heads:
        lines = mesh.groups("cp").reshape(-1, mesh.cp // heads, heads).transpose(0, 2, 1)
        across = np.ascontiguousarray(lines).reshape(-1, mesh.cp // heads)
        ops = ("permute",) if view.tensor["gathered"] == 1 else ("all_gather", "reduce_scatter")
        states = ("all_to_all",) if view.job.graph.has_mixers else ()
        kinds.append(GroupKind(RING, across, (*ops, *states)))
    if view.job.graph.is_mixture and mesh.ep > 1:
        gathers = view.job.layout.dispatcher == "all_gather"
        exchanges = ("all_gather", "reduce_scatter") if gathers else (view.exchange_op,)
        kinds.append(GroupKind(RANKS, mesh.groups("ep"), exchanges))
    if view.job.graph.is_mixture and mesh.expert_tensor_parallel > 1:
        kinds.append(GroupKind(SLICES, mesh.groups("etp"), (*sums, *swaps)))
    return kinds


_AXES: Mapping[str, str | tuple[str, ...]] = {DENSE: ("dp", "cp"), EXPERTS: "edp", ENCODER: ("dp", "cp", PIPELINE)}
"""Axes along which ranks hold copies, by kind."""


def _data_parallel_kinds(sync: Synchronisation) -> list[GroupKind]:
    mesh = sync.job.layout.mesh
    kinds: list[GroupKind] = []
    for each in sync.replicas:
        if each.width == 1:
            continue
        groups = mesh.groups(_AXES[each.group])
        if sync.single_process:
            return [GroupKind(each.kind, groups, ("scatter", "broadcast", "gather", "reduce"))]
        if sync.alone:  # replicas that step on their own are groups of their own
            groups = groups.reshape(-1, each.width) if each.zero else mesh.groups("cp")
        ops: dict[str, list[str]] = {}
        for group, op, _ in sync.reduce_ops(each):
            ops.setdefault(group, []).append(op)
        if each.zero:
            swaps = ["all_to_all"] if sync.exchanges_matrices else []
            moves = dict.fromkeys(("all_gather", sync.late_gather_op))
            ops.setdefault(each.shard_group, []).extend([*moves, *swaps])
        shards = groups.reshape(len(groups), each.copies, -1)
        members = {
            f"{each.kind}_replicate": np.ascontiguousarray(shards.transpose(0, 2, 1)).reshape(-1, each.copies),
            each.shard_group: shards.reshape(len(groups) * each.copies, -1),
            each.kind: groups,
        }
        kinds += [GroupKind(name, members[name], tuple(names)) for name, names in ops.items()]
    return kinds


@dataclass(frozen=True)
class _Priced:
    """A collective of groups that are alike: its duration alone, latency, bytes to drain and rate cap.

    As a flow it loads those links of its group that stand at ``positions``, with ``coefficients``; without positions it
    has a fixed duration. ``route_of`` are the routes of the groups asked for so far.
    """

    solo_ns: int
    fixed_ns: int
    work_bytes: int = 0
    rate_cap_bytes_per_s: int = 0
    positions: Ints | None = None
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))
    route_of: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbances:
    """Kinds of groups whose collectives others may disturb: ``always``, or only ``beside`` the rank's own in others.

    The latter run in groups of the kinds ``sharers``, whose links only ranks of the same class use.
    """

    always: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    sharers: frozenset[str] = frozenset()


@dataclass
class QuotientNetwork:
    """Prices collectives on a quotient: private ones as fixed durations, contended ones as flows with a route.

    Without ``contention`` every collective is priced alone on its links: a lower bound without flows.
    ``streams_of_kind`` names the streams that carry collectives of a kind. A link used by a single stream is private,
    because a stream runs its collectives one after the other. ``added`` is what the stack adds to calls.
    """

    cluster: Cluster
    kinds: Sequence[GroupKind]
    quotient: Quotient
    streams_of_kind: Mapping[str, frozenset[str]]
    contention: bool = True
    added: Added = field(default_factory=Added)
    routes: list[tuple[Indices, Floats]] = field(default_factory=list)
    algorithms: dict[tuple[str, str], str] = field(default_factory=dict)
    _prices: dict[tuple[int, CollectiveUse], _Priced] = field(default_factory=dict)
    _lines: dict[tuple[int, int, str], list[Line]] = field(default_factory=dict)
    _offers: dict[tuple[str, bool, bytes], list[Line]] = field(default_factory=dict)

    def with_colours(self, colours: Ints) -> QuotientNetwork:
        """The same network with a quotient in which only ranks of one colour, int64[world], may be alike."""
        quotient = build_quotient(self.cluster, self.kinds, colours)
        return QuotientNetwork(self.cluster, self.kinds, quotient, self.streams_of_kind, self.contention, self.added)

    @cached_property
    def _shared(self) -> Flags:
        """Which link classes carry flows of more than one stream that may use them at the same time."""
        groups, links = self.quotient.groups, self.quotient.links_of_groups
        families = {kind: number for number, kind in enumerate(dict.fromkeys(map(_family, self.quotient.group_class)))}
        family = np.array([families[_family(group.kind)] for group in groups], dtype=np.int64)
        streams = [self.streams_of_kind[group.kind] for group in groups]
        owner = links.owners()
        among = Csr.of(links.item * len(families) + family[owner], owner, len(self._capacity) * len(families))
        many = np.diff(among.pointer)
        users = np.bincount(links.item, np.array([len(each) for each in streams])[owner], len(self._capacity))
        known: dict[bytes, int] = {}
        for place in np.flatnonzero(many > 1).tolist():
            key = among.row(place).tobytes()
            if key not in known:
                members = among.row(place).tolist()
                joined = (set() if groups[at].directed else {*groups[at].members} for at in members)
                # a rank class that all these groups have in common serves them one after the other
                serial = set.intersection(*joined)
                each = [stream for at in members for stream in streams[at]]
                known[key] = len(each) - len(set(each)) if serial else 0
            users[place // len(families)] -= known[key]
        return (users > 1) & self.contention

    @property
    def _capacity(self) -> Ints:
        """Bytes per second of every link class."""
        return self.quotient.capacity_bytes_per_s

    @property
    def block_kinds(self) -> tuple[str, ...]:
        """Kinds of groups in which blocks communicate."""
        return tuple(kind for kind in self.quotient.group_class if _family(kind) == "block")

    def group_of(self, class_id: int, kind: str) -> int:
        """The group class of a kind that a rank class belongs to."""
        return int(self.quotient.group_class[kind][class_id])

    @cached_property
    def secluded(self) -> Flags:
        """For every group class, whether all its links are private and its members are of a single rank class."""
        links = self.quotient.links_of_groups
        private = np.bincount(links.owners(), self._shared[links.item], len(links)) == 0
        return np.asarray(private & [len(group.members) == 1 for group in self.quotient.groups])

    def disturbances(self, class_id: int) -> Disturbances:
        """Whose collectives others may disturb, of the groups in which a class's blocks communicate."""
        groups, links = self.quotient.groups, self.quotient.links_of_groups
        owner = links.owners()
        always, beside, sharers = set[str](), set[str](), set[str]()
        for kind in self.block_kinds:
            if (at := self.group_of(class_id, kind)) < 0:
                continue
            touched = links.row(at)
            users = owner[np.isin(links.item, touched[self._shared[touched]])]
            others = [groups[each] for each in dict.fromkeys([at, *users.tolist()])]
            foreign = {each.kind for each in others if _family(each.kind) != "block"}
            streams = set[str]().union(
                *(self.streams_of_kind[each.kind] for each in others if each.kind not in foreign)
            )
            if any(each.members != (class_id,) for each in others) or (len(users) and len(streams) > 1):
                always.add(kind)
            elif foreign:
                beside.add(kind)
                sharers |= foreign
        return Disturbances(frozenset(always), frozenset(beside), frozenset(sharers))

    @cached_property
    def alike(self) -> Ints:
        """For every group class, the first one whose collectives take equally long, each on its own links.

        Their places are the same but for the domain, and the links that they load agree, in order, in load, capacity,
        kind (port or not) and in being shared or private.
        """
        quotient, capacity = self.quotient, self._capacity
        shared, port = self._shared, quotient.link_is_port
        result, first = np.arange(len(quotient.groups)), 0
        moved = [group.in_first_domain.tobytes() for group in quotient.groups]
        places = {ranks: number for number, ranks in enumerate(dict.fromkeys(moved))}
        for kind, traffic in enumerate(quotient.traffic):
            count = sum(group.kind_index == kind for group in quotient.groups[first:])
            place = np.array([places[ranks] for ranks in moved[first : first + count]])
            order = np.argsort(traffic.group, kind="stable")
            group, link = traffic.group[order], traffic.link[order]
            of_links = quotient.links_of_groups
            keys = of_links.owners() * len(capacity) + of_links.item
            local = np.searchsorted(keys, group * len(capacity) + link) - of_links.pointer[group]
            of_edges, of_link = (traffic.label[order], traffic.count[order]), (capacity, shared, port)
            rows = np.stack([local, *of_edges, *(each[link] for each in of_link)], axis=1).astype(np.int64)
            ends = np.searchsorted(group, first + np.arange(count + 1))
            for length in unique(np.diff(ends)).tolist():
                mine = np.flatnonzero(np.diff(ends) == length)
                table = rows[ends[mine][:, None] + np.arange(length)].reshape(len(mine), -1)
                table = np.concatenate([place[mine][:, None], table], axis=1)
                alike = rows_by_appearance(table)
                result[first + mine] = first + mine[alike.representative[alike.class_of]]
            first += count
        return result

    def flows(self, classes: Ints, uses: Sequence[CollectiveUse]) -> Ints:
        """Program entries of collectives of rank classes whose groups are alike: int64[uses, 5, classes].

        They are the group, ``fixed_ns``, ``work_bytes``, the route (-1: none) and ``rate_cap_bytes_per_s``.
        """
        rows, first = list[list[int]](), int(classes[0])
        for use in uses:
            groups = self.quotient.group_class[use.group][classes].tolist()
            price = self._priced(self._first_alike[use.group][first], use)
            route = [self._route_of(price, group) for group in groups]
            numbers = (price.fixed_ns, price.work_bytes, price.rate_cap_bytes_per_s)
            fixed, work, cap = ([number] * len(classes) for number in numbers)
            rows += groups, fixed, work, route, cap
        return np.array(rows, dtype=np.int64).reshape(len(uses), 5, len(classes))

    def _route_of(self, price: _Priced, group: int) -> int:
        """The number of the route of a collective of a group; -1 of one whose duration is fixed."""
        if price.positions is None:
            return -1
        if group not in price.route_of:
            price.route_of[group] = len(self.routes)
            self.routes.append((self.quotient.links_of_groups.row(group)[price.positions], price.coefficients))
        return price.route_of[group]

    def solo_ns(self, class_id: int, use: CollectiveUse) -> int:
        """Duration of a collective that has its links to itself."""
        return self._priced(self._first_alike[use.group][class_id], use).solo_ns

    @cached_property
    def _first_alike(self) -> dict[str, list[int]]:
        """By kind of group, the first group that is alike to that of every rank class."""
        return {kind: self.alike[groups].tolist() for kind, groups in self.quotient.group_class.items()}

    def occupied_ns(self, class_id: int, use: CollectiveUse) -> int:
        """How long a collective slows the kernels beside it."""
        solo_ns, per_byte = self.solo_ns(class_id, use), occupied_s_per_byte(use.op, self.cluster)
        return int(occupied_ns(solo_ns, use.size_bytes, use.count, per_byte))

    def _priced(self, alike: int, use: CollectiveUse) -> _Priced:
        """The price of a collective of a group class, by the first one that is alike."""
        key = alike, use
        if key not in self._prices:
            self._prices[key] = self._make(alike, use)
        return self._prices[key]

    def _make(self, group: int, use: CollectiveUse) -> _Priced:
        line = choose_fastest(self._considered(group, use.op), float(use.size_bytes))
        self.algorithms.setdefault((use.group, use.op), line.algorithm)
        route = self.quotient.route(group, use.op, line)
        added = self.added.of_call(use.op, use.group)
        latency_ns = int(calls_ns(line.latency_s, added, use.size_bytes, use.count))
        work, cap = use.moved_bytes, int(line.rate_cap_bytes_per_s or 0)
        if not len(route.links) and not cap:
            return _Priced(latency_ns, latency_ns)
        solo_ns = solo_duration_ns(latency_ns, work, route.rate, cap)
        if not self._shared[route.links].any():
            return _Priced(solo_ns, solo_ns)
        positions = np.searchsorted(self.quotient.links_of_groups.row(group), route.links)
        return _Priced(solo_ns, latency_ns, work, cap, positions, route.coefficients)

    def _considered(self, group: int, op: str) -> list[Line]:
        """The lines that the library considers for an op on a group class; equal for groups in like places."""
        result = self.quotient.groups[group]
        key = (result.kind_index, result.place, op)
        if key not in self._lines:
            moved = op, is_tensor_parallel(result.kind), result.in_first_domain.tobytes()
            if moved not in self._offers:
                self._offers[moved] = offers(op, result.in_first_domain, on_time(self.cluster, result.kind))
            self._lines[key] = self._offers[moved]
        return self._lines[key]

    def program_routes(self) -> Routes:
        """The routes of all flows asked for so far, over classes of links."""
        every = [(np.zeros(0, dtype=np.int64), np.zeros(0)), *self.routes]
        links, coefficients = (np.concatenate(column) for column in zip(*every, strict=True))
        pointer = np.cumsum([len(each) for each, _ in every])
        return Routes(Csr(pointer, links), coefficients, self._capacity, self.quotient.link_names)


def streams_of(
    kinds: Sequence[GroupKind], schedule: Schedule, syncs: Sequence[Synchronisation]
) -> dict[str, frozenset[str]]:
    """Streams that carry the collectives of each kind of group; ``syncs`` are those of the plan's stages.

    Collectives of a block follow one another and count as one stream, except where passes run beside each other, or
    shared experts beside the exchange of tokens.
    """
    layout = syncs[0].job.layout
    beside = layout.ep_overlap or layout.shared_expert_overlap or any(rank.overlap.any() for rank in schedule.ranks)
    ways = {hop_kind(delta): hops for delta, hops in _ways(schedule).items()}
    gathering = {each.shard_group for sync in syncs for each in sync.replicas if each.zero}

    def streams(kind: str) -> set[str]:
        if (hop := kind.partition(".")[0]) in ways:
            return ways[hop]
        if _family(kind) == "block":
            return {_BLOCK_STREAM.get(kind, TENSOR) if beside else TENSOR}
        if _family(kind) == DENSE and not kind.endswith("_replicate"):
            return {REDUCE, GATHER} if kind in gathering else {REDUCE}
        return {kind}

    return {kind.name: frozenset(streams(kind.name)) for kind in kinds}


def _family(kind: str) -> str:
    """The family of a kind of groups: a rank issues the collectives of one family from the same streams."""
    if kind in BLOCK_KINDS or is_tensor_parallel(kind):
        return "block"
    return DENSE if kind.startswith((DENSE, EXPERTS)) else kind
