"""How weights get from the training layout to that of generation, and states to the host and back.

Layers are rows and tensor-parallel parts are columns of a grid (experts have a grid of their own, whose columns are
experts). A device of either side holds a rectangle of it; under ZeRO-3 a rank holds an equal share of its rectangle. So
for every rollout device the bytes that it needs and does not have, those of them that its node has, and those that come
from other nodes are sums over cells, and hold for any two layouts.

    time = latency + max(port: from its node, NICs of the receiving node, NICs of the sending nodes) + copies in memory

The parts overlap layer by layer, as buckets of tensors go. With "gathered" a device needs the whole grid, and engines
apart get it by broadcasts of one rank [NeMo-RL, nemo_rl/utils/packed_tensor.py; vLLM, examples of weight transfer: NCCL
from rank 0]. NCCL sends a broadcast along a ring, where each node passes on what it receives while more arrives. So W
bytes enter every node and leave every one but the last once, however many there are:

    W / min(NICs of the first node, NICs of a receiving node) + a hop for each node.

Where one rank of the first node is in the ring, alone, its NICs are those next to its device: nodes have a NIC for each
device, or share a few. Engines on the node that trains receive over its own links.

With "resharded" parts differ, and training nodes send every replica its own: R nodes that need W take R W of the NICs
of all training nodes together.
"""

from functools import cached_property

import numpy as np

from simpar.architectures.graph import Block, evaluate
from simpar.cost.collectives.parameters import parameters
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.post_training import WeightMoves
from simpar.posttraining.engine import ServingEngine
from simpar.units import DTYPE_BYTES, US, Floats, Ints

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
class Received:
    """Bytes of a weight update: of the fullest device from its own node, of the fullest node from others, and in all.

    ``own`` are those that the fullest device has already, ``needed`` what it keeps of all.
    """

    from_node: float
    into_node: float
    from_others: float
    own: float
    needed: float
    whole: float


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
    def rows(self) -> tuple[Block, ...]:
        """Blocks in the order of the model: embedding, layers, head."""
        graph = self.engine.graph
        layers = (graph.blocks[name] for name in graph.layers if name not in graph.auxiliary)
        return (graph.embedding, *layers, graph.head)

    @cached_property
    def row_bytes(self) -> Floats:
        """Bytes sent of every row, float64[2, rows]: outside experts, of experts; a tied table counts once."""
        graph = self.engine.graph
        result = np.zeros((2, len(self.rows)))
        for at, block in enumerate(self.rows):
            for op in block.operators:
                for weight in op.weights:
                    grid = EXPERT if weight.kind == "expert" else DENSE
                    if weight.kind != "shared":
                        result[grid, at] += float(evaluate(weight.size, block.view(graph.dims))) * SENT
        if graph.tied_embeddings:
            table = float(graph.dims["vocab"]) * float(graph.dims["hidden"]) * SENT
            result[DENSE, -1] = max(0.0, result[DENSE, -1] - table)
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
        counts = layout.stage_layers(len(self.engine.graph.layers))
        ranks = int(getattr(layout, PIPELINE))
        owner = np.repeat(np.arange(len(counts)) % ranks, counts)[: len(self.rows) - 2]
        owners = np.concatenate([[0], owner, [(len(counts) - 1) % ranks]])
        mine = (at[PIPELINE][:, None] == owners[None, :]).astype(np.float64)
        sharded = int(layout.zero) == 3
        dense = _columns(at["tp"], int(layout.tp), self.columns[0]) / (int(layout.shards) if sharded else 1)
        parts = int(layout.ep) * int(layout.expert_tensor_parallel)
        # experts lie over tensor- and data-parallel ranks, the first of which vary fastest
        inner = at["tp"] + int(layout.tp) * at["dp"]
        shards = int(layout.expert_shards) if sharded else 1
        experts = _columns(inner % parts, parts, self.columns[1]) / shards
        return Holding(mine[:, :, None] * dense[:, None, :], mine[:, :, None] * experts[:, None, :])

    @cached_property
    def served(self) -> Holding:
        """What rollout devices keep: tensor-parallel ranks vary fastest, then those of attention, then stages."""
        rollout, world = self.engine.rollout, self.targets.world_size
        ranks = np.arange(world) % rollout.devices
        inner = rollout.tp * rollout.attention_ranks
        stage = ranks // inner
        layers = len(self.rows) - 2
        bound = -(-layers // rollout.stages)
        owners = np.concatenate([[0], np.arange(layers) // bound, [rollout.stages - 1]])
        mine = (stage[:, None] == owners[None, :]).astype(np.float64)
        dense = _columns(ranks % rollout.tp, rollout.tp, self.columns[0])
        parts = rollout.ep if rollout.ep > 1 else rollout.tp
        experts = _columns((ranks % inner) % parts, parts, self.columns[1])
        return Holding(mine[:, :, None] * dense[:, None, :], mine[:, :, None] * experts[:, None, :])

    @cached_property
    def received(self) -> Received:
        """Bytes of one update of all replicas."""
        nodes = self.targets.node_of(np.arange(self.targets.world_size))
        device, own, node, kept = (np.zeros(n) for n in (len(nodes), len(nodes), int(nodes.max()) + 1, len(nodes)))
        for grid in (DENSE, EXPERT):
            cells = self.row_bytes[grid][:, None] / self.columns[grid]
            shard = self.served.of(grid)
            need = np.ones_like(shard) if self.moves.method == "gathered" else shard
            have = self.trained.of(grid) if self.is_same_pool else np.zeros_like(shard)
            in_node = np.minimum(_by_node(have, nodes, np.add), 1.0)
            wanted = _by_node(need, nodes, np.maximum)
            own += (need * np.minimum(have, 1.0) * cells).sum(axis=(1, 2))
            device += (need * (in_node[nodes] - np.minimum(have, 1.0)) * cells).sum(axis=(1, 2))
            # what comes from other nodes enters once, and goes on inside
            missing = (need * (1.0 - in_node[nodes]) * cells).sum(axis=(1, 2))
            device += missing
            node += (wanted * (1.0 - in_node) * cells).sum(axis=(1, 2))
            kept += (shard * cells).sum(axis=(1, 2))
        fullest = int(np.argmax(device))
        share = self._share
        return Received(
            from_node=float(device.max()) * share,
            into_node=float(node.max()) * share,
            from_others=float(node.sum()) * share,
            own=float(own[fullest]),
            needed=float(kept.max()),
            whole=float(self.row_bytes.sum()),
        )

    @property
    def _share(self) -> float:
        """Bytes that are sent over those of all values."""
        changed = self.moves.changed
        return changed if changed == 1.0 else min(1.0, changed * (1.0 + POSITION_BYTES / SENT))

    @cached_property
    def time_s(self) -> float:
        """Seconds of one update of all replicas."""
        received, target, up = self.received, parameters(self.targets), self.targets.profile.scale_up
        inside = received.from_node / (up.bandwidth * target["send_efficiency"])
        over = self._network_s if received.into_node and not self.is_same_node else 0.0
        latency = (target["base_us"] + self._hops * target["nic_hop_us"]) * US
        parts = [inside, over]
        if self.moves.through == "host":
            held = received.whole / self._copies_apart
            parts = [
                over,
                held * self._share / host_rate(self.sources),
                received.needed * self._share / host_rate(self.targets),
            ]
        copied = (2.0 * received.from_node + 2.0 * received.needed) / self.engine.kernels.bandwidth
        return float(latency + max(parts) + copied + self.moves.overhead)

    @property
    def _is_broadcast(self) -> bool:
        """Whether nodes pass on to others what they receive."""
        return self.moves.method == "gathered" and not self.is_same_pool

    @property
    def _hops(self) -> int:
        """Nodes that a value goes through, one after the other."""
        return self.targets.nodes if self._is_broadcast and not self.is_same_node else 1

    @property
    def _network_s(self) -> float:
        """Seconds of the busiest NICs."""
        received, out = self.received, self.targets.profile.scale_out
        sending = self.sources.profile.scale_out or out
        assert out is not None, "a pool of several nodes has a network"
        assert sending is not None, "as has the one that sends to it"
        rate = out.nics_per_node * out.nic_bandwidth * parameters(self.targets)["nic_efficiency"]
        nics = sending.nics_per_node
        if self._is_broadcast and self.moves.senders == "rank":
            nics = max(1, nics // self.sources.profile.devices_per_node)
        sent = nics * sending.nic_bandwidth * parameters(self.sources)["nic_efficiency"]
        if self._is_broadcast:
            return received.into_node / min(rate, sent)
        return max(received.into_node / rate, received.from_others / self.sources.nodes / sent)

    @property
    def _copies_apart(self) -> int:
        """Training devices that hold one copy of the weights together."""
        layout = self.layout
        ranks = int(layout.tp) * int(getattr(layout, PIPELINE))
        return ranks * int(layout.shards) if int(layout.zero) == 3 else ranks


def _columns(part: Ints, parts: int, columns: int) -> Floats:
    """Share of every column that the part of each device covers, float64[devices, columns]."""
    covered: Floats = (part[:, None] == np.arange(columns)[None, :] * parts // columns).astype(np.float64)
    return covered


def _by_node(held: Floats, nodes: Ints, combine: np.ufunc) -> Floats:
    """Holdings of all devices of a node together; devices of a node follow each other."""
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    return np.asarray(combine.reduceat(held, starts, axis=0), dtype=np.float64)


def host_rate(cluster: Cluster) -> float:
    """Bytes/s of a device to or from its host, all devices of a node at once."""
    host = cluster.profile.host
    switch = (host.switch_bandwidth or host.pcie_bandwidth) / host.devices_per_switch
    return min(host.pcie_bandwidth, switch, host.memory_bandwidth / cluster.profile.devices_per_node)
