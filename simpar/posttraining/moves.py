"""How weights get from the training layout to that of generation, and states to the host and back.

Layers are rows and tensor-parallel parts are columns of a grid (experts have a grid of their own, whose columns are
experts); layers that lie on the same stage of both sides are one row. A device of either side holds a rectangle of it;
under ZeRO-3 a rank holds an equal share of its rectangle. So for every rollout device the bytes that it needs and does
not have, those of them that its place has, and those that come from other places are sums over cells, and hold for any
two layouts. A place is what its devices reach each other in without a network: a node, or all of an NVLink domain.

Over which links they go, and how long that takes, is :mod:`simpar.posttraining.weight_flows`.
"""

from functools import cached_property

import numpy as np

from simpar.architectures.graph import Block, Dims, evaluate
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.layout.layout import Layout
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.post_training import WeightMoves
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.served import TOWERS
from simpar.units import DTYPE_BYTES, Floats, Ints, unique

SENT = DTYPE_BYTES["bf16"]
"""Bytes of a value on its way: engines quantise what they receive."""
POSITION_BYTES = 4.0
"""Bytes of the position of a value, where only changed ones are sent."""
DENSE, EXPERT = 0, 1


@dataclass(frozen=True)
class Holding:
    """What every device of a pool holds of each grid: share float64[devices, rows, columns], for the two grids."""

    dense: Floats
    experts: Floats

    def of(self, grid: int) -> Floats:
        """One of the two."""
        return self.experts if grid == EXPERT else self.dense


@dataclass(frozen=True)
class Places:
    """Where the devices of a pool are: ranks of ``cluster`` from ``first``; ``of`` is the place of each, in order."""

    cluster: Cluster
    first: int
    of: Ints

    @cached_property
    def ranks(self) -> Ints:
        """The devices' numbers in their cluster."""
        return self.first + np.arange(len(self.of))

    @cached_property
    def numbers(self) -> Ints:
        """The places that the pool has devices in, ascending."""
        return unique(self.of)

    def index(self, place: int) -> Ints:
        """The devices in a place, as their positions in the pool."""
        return np.flatnonzero(self.of == place)


@dataclass(frozen=True)
class Received:
    """Bytes of a weight update: of the fullest device from its place, of the fullest place from others, and in all.

    ``own`` are those that the fullest device has already, ``needed`` what it keeps of all.
    """

    from_node: float
    into_node: float
    from_others: float
    own: float
    needed: float
    whole: float


@dataclass(frozen=True)
class Cells:
    """One grid of an update: bytes of its ``cells``, and shares of them.

    By device of the targets what it ``needs`` and has as its ``own``; by place of the targets what some device of it
    ``wants`` and what lies ``beside`` these; by place of the sources what it has (``held``).
    """

    cells: Floats
    needs: Floats
    own: Floats
    wants: Floats
    beside: Floats
    held: Floats

    @cached_property
    def held_in_all(self) -> Floats:
        """Shares that all places of the sources have together."""
        return np.asarray(self.held.sum(axis=0), dtype=np.float64)


@dataclass(frozen=True)
class Resharding:
    """Weights of a model from a training layout to the replicas of an engine.

    ``sources`` is the cluster that trains, ``targets`` the one that generates; ``is_same_pool``: the same devices,
    ``is_same_node``: other ones of the only node.
    """

    layout: Layout
    engine: ServingEngine
    sources: Cluster
    targets: Cluster
    moves: WeightMoves
    is_same_pool: bool
    is_same_node: bool = False

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks in the order of the model: embedding, layers, head."""
        graph = self.engine.graph
        layers = (graph.blocks[name] for name in graph.layers if name not in graph.auxiliary)
        return (graph.embedding, *layers, graph.head)

    @cached_property
    def block_bytes(self) -> Floats:
        """Bytes sent of every block, float64[2, blocks]: outside experts, of experts; a tied table counts once."""
        graph, known = self.engine.graph, dict[int, Floats]()
        for block in self.blocks:
            if id(block) not in known:
                known[id(block)] = _bytes_of(block, graph.dims)
        result = np.stack([known[id(block)] for block in self.blocks], axis=1)
        if graph.tied_embeddings:
            table = float(graph.dims["vocab"]) * float(graph.dims["hidden"]) * SENT
            result[DENSE, -1] = max(0.0, result[DENSE, -1] - table)
        return result

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """Rows of the grids, and the row of each block.

        int64[rows, 3]: the stage that trains it, the stage that serves it, and 1 where tensor parallelism does not
        divide it.
        """
        layout, stages = self.layout, self.engine.rollout.stages
        counts, ranks = layout.stage_layers(len(self.engine.graph.layers)), int(getattr(layout, PIPELINE))
        inside = self.blocks[1:-1]
        trained = np.repeat(np.arange(len(counts)) % ranks, counts)[: len(inside)]
        towers = sum(block.scope in TOWERS for block in inside)  # on the first stage
        bound = max(1, -(-(len(inside) - towers) // stages))
        served = np.maximum(0, np.arange(len(inside)) - towers) // bound
        owners = np.zeros((len(self.blocks), 3), dtype=np.int64)
        owners[1:-1, 0], owners[1:-1, 1] = trained, served
        owners[-1, :2] = (len(counts) - 1) % ranks, stages - 1
        owners[:, 2] = [block.scope in self.engine.graph.whole_scopes for block in self.blocks]
        kinds, row = np.unique(owners, axis=0, return_inverse=True)
        return kinds, row.ravel()

    @cached_property
    def row_bytes(self) -> Floats:
        """Bytes sent of every row, float64[2, rows]."""
        kinds, row = self.rows
        result = np.zeros((2, len(kinds)))
        for grid in (DENSE, EXPERT):
            np.add.at(result[grid], row, self.block_bytes[grid])
        return result

    @cached_property
    def columns(self) -> tuple[int, int]:
        """Columns of the two grids: parts that both sides cut at."""
        layout, rollout = self.layout, self.engine.rollout
        mine, theirs = int(layout.ep) * int(layout.expert_tensor_parallel), max(rollout.ep, rollout.tp)
        return int(np.lcm(int(layout.tp), rollout.tp)), int(np.lcm(mine, theirs))

    @cached_property
    def trained(self) -> Holding:
        """What training devices hold."""
        layout, world = self.layout, self.sources.world_size
        at = layout.mesh.coordinates(np.arange(world))
        mine = (at[PIPELINE][:, None] == self.rows[0][None, :, 0]).astype(np.float64)
        sharded = int(layout.zero) == 3
        shards = int(layout.shards) if sharded else 1
        dense = self._of_rows(_columns(at["tp"], int(layout.tp), self.columns[0])) / shards
        parts = int(layout.ep) * int(layout.expert_tensor_parallel)
        # experts lie over tensor- and data-parallel ranks, the first of which vary fastest
        inner = at["tp"] + int(layout.tp) * at["dp"]
        shards = int(layout.expert_shards) if sharded else 1
        experts = _columns(inner % parts, parts, self.columns[1]) / shards
        return Holding(mine[:, :, None] * dense, mine[:, :, None] * experts[:, None, :])

    def _of_rows(self, columns: Floats) -> Floats:
        """Columns by row, float64[devices, rows, columns]: of towers that tensor parallelism does not divide, all."""
        whole = self.rows[0][None, :, 2, None] == 1
        return np.asarray(np.where(whole, 1.0, columns[:, None, :]), dtype=np.float64)

    @cached_property
    def served(self) -> Holding:
        """What rollout devices keep: tensor-parallel ranks vary fastest, then those of attention, then stages."""
        rollout, world = self.engine.rollout, self.targets.world_size
        ranks = np.arange(world) % rollout.devices
        inner = rollout.tp * rollout.attention_ranks
        stage = ranks // inner
        mine = (stage[:, None] == self.rows[0][None, :, 1]).astype(np.float64)
        dense = self._of_rows(_columns(ranks % rollout.tp, rollout.tp, self.columns[0]))
        parts = rollout.ep if rollout.ep > 1 else rollout.tp
        experts = _columns((ranks % inner) % parts, parts, self.columns[1])
        return Holding(mine[:, :, None] * dense, mine[:, :, None] * experts[:, None, :])

    @cached_property
    def places(self) -> tuple[Places, Places]:
        """Where weights come from and where they go. Raises UserError for pools that no network joins."""
        mine, theirs = self.sources, self.targets
        if self.is_same_node:
            one, other = (Places(each, 0, np.zeros(each.world_size, dtype=np.int64)) for each in (mine, theirs))
            return one, other
        if self.is_same_pool:
            here = Places(mine, 0, mine.domain_of(np.arange(mine.world_size)))
            return here, here
        if mine.profile == theirs.profile:
            both = make_cluster(mine.profile, mine.nodes + theirs.nodes)
            of, first = both.domain_of(np.arange(both.world_size)), mine.world_size
            return Places(both, 0, of[:first]), Places(both, first, of[first:])
        for each in (mine, theirs):
            if each.profile.scale_out is None:
                raise UserError(f"hardware {each.profile.name}: has no network; allowed for pools apart: with one")
        own, apart = (each.domain_of(np.arange(each.world_size)) for each in (mine, theirs))
        return Places(mine, 0, own), Places(theirs, 0, int(own.max()) + 1 + apart)

    @cached_property
    def grids(self) -> tuple[Cells, Cells]:
        """What moves of the two grids."""
        sources, targets = self.places
        near = np.searchsorted(sources.numbers, targets.numbers)
        shared = np.isin(targets.numbers, sources.numbers)
        result = []
        for grid in (DENSE, EXPERT):
            cells = self.row_bytes[grid][:, None] / self.columns[grid]
            shard, have = self.served.of(grid), np.minimum(self.trained.of(grid), 1.0)
            needs = np.ones_like(shard) if self.moves.method == "gathered" else shard
            held = np.minimum(_by_place(have, sources.of, np.add), 1.0)
            beside = np.zeros((len(shared), *held.shape[1:]))
            beside[shared] = held[near[shared]]
            own = have if self.is_same_pool else np.zeros_like(shard)
            wants = _by_place(needs, targets.of, np.maximum)
            result.append(Cells(cells, needs, own, wants, beside, held))
        return result[0], result[1]

    @cached_property
    def by_device(self) -> tuple[Floats, Floats]:
        """Bytes that every target device receives from its place, and those that come from others."""
        at = np.searchsorted(self.places[1].numbers, self.places[1].of)
        near, far = np.zeros(len(at)), np.zeros(len(at))
        for one in self.grids:
            beside = one.beside[at]
            near += (one.needs * np.maximum(beside - one.own, 0.0) * one.cells).sum(axis=(1, 2))
            far += (one.needs * (1.0 - beside) * one.cells).sum(axis=(1, 2))
        return near * self.share_sent, far * self.share_sent

    @cached_property
    def into_place(self) -> Floats:
        """Bytes that enter every target place from others, once each."""
        entering = sum((one.wants * (1.0 - one.beside) * one.cells).sum(axis=(1, 2)) for one in self.grids)
        return np.asarray(entering, dtype=np.float64) * self.share_sent

    def crossing(self, place: int) -> Floats:
        """Bytes that every source place sends to a target place (by index), in proportion to what it has."""
        sources, targets = self.places
        near = sources.numbers == targets.numbers[place]
        result = np.zeros(len(near))
        for one in self.grids:
            entering = one.wants[place] * (1.0 - one.beside[place]) * one.cells
            others = one.held_in_all - one.held[near].sum(axis=0)
            each = entering / np.where(others > 0, others, 1.0)
            result += one.held.reshape(len(near), -1) @ each.ravel()
        return np.asarray(np.where(near, 0.0, result) * self.share_sent, dtype=np.float64)

    @cached_property
    def received(self) -> Received:
        """Bytes of one update of all replicas."""
        near, far = self.by_device
        fullest = int(np.argmax(near + far))
        own = sum(float((one.needs[fullest] * one.own[fullest] * one.cells).sum()) for one in self.grids)
        kept = sum((self.served.of(at) * one.cells).sum(axis=(1, 2)) for at, one in enumerate(self.grids))
        return Received(
            from_node=float((near + far).max()),
            into_node=float(self.into_place.max()),
            from_others=float(self.into_place.sum()),
            own=own,
            needed=float(np.max(kept)),
            whole=float(self.row_bytes.sum()),
        )

    @property
    def share_sent(self) -> float:
        """Bytes that are sent over those of all values."""
        changed = self.moves.changed
        return changed if changed == 1.0 else min(1.0, changed * (1.0 + POSITION_BYTES / SENT))

    @property
    def is_broadcast(self) -> bool:
        """Whether places pass on to others what they receive."""
        return self.moves.method == "gathered" and not self.is_same_pool

    @property
    def copies_apart(self) -> int:
        """Training devices that hold one copy of the weights together."""
        layout = self.layout
        ranks = int(layout.tp) * int(getattr(layout, PIPELINE))
        return ranks * int(layout.shards) if int(layout.zero) == 3 else ranks

    @property
    def copied_s(self) -> float:
        """Seconds of copies in a device's memory: what arrives is read and written, and what is kept once more."""
        received = self.received
        return (2.0 * received.from_node + 2.0 * received.needed) / self.engine.kernels.bandwidth


def _bytes_of(block: Block, dims: Dims) -> Floats:
    """Bytes sent of a block, float64[2]: outside experts, of experts."""
    result, own = np.zeros(2), block.view(dims)
    for weight in (weight for op in block.operators for weight in op.weights if weight.kind != "shared"):
        result[EXPERT if weight.kind == "expert" else DENSE] += float(evaluate(weight.size, own)) * SENT
    return result


def _columns(part: Ints, parts: int, columns: int) -> Floats:
    """Share of every column that the part of each device covers, float64[devices, columns]."""
    covered: Floats = (part[:, None] == np.arange(columns)[None, :] * parts // columns).astype(np.float64)
    return covered


def _by_place(held: Floats, places: Ints, combine: np.ufunc) -> Floats:
    """Holdings of all devices of a place together; devices of a place follow each other."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    return np.asarray(combine.reduceat(held, starts, axis=0), dtype=np.float64)


def host_rate(cluster: Cluster) -> float:
    """Bytes/s of a device to or from its host, all devices of a node at once."""
    host = cluster.profile.host
    switch = (host.switch_bandwidth or host.pcie_bandwidth) / host.devices_per_switch
    return min(host.pcie_bandwidth, switch, host.memory_bandwidth / cluster.profile.devices_per_node)
