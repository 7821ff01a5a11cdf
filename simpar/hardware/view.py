"""A cluster as a networkx graph, for inspection; nothing in simpar computes with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.units import unique

if TYPE_CHECKING:
    import networkx

    from simpar.hardware.cluster import Cluster

Edge = tuple[str, str, float]


def to_networkx(cluster: Cluster) -> networkx.DiGraph[Any]:
    """Devices, switches, NICs, leaves and the spine as a directed graph with ``capacity`` in bytes/s."""
    import networkx as nx

    graph: networkx.DiGraph[Any] = nx.DiGraph()
    if cluster.is_mixed:
        return _joined(cluster, graph)
    for left, right, capacity in (*_scale_up(cluster), *_scale_out(cluster)):
        graph.add_edge(left, right, capacity=capacity)
    return graph


def _joined(cluster: Cluster, graph: networkx.DiGraph[Any]) -> networkx.DiGraph[Any]:
    """The graphs of all parts ("part0/gpu0"), with a trunk between the highest switch of each."""
    capacity, ranks = cluster.link_capacity_bytes_per_s, np.arange(cluster.world_size)
    first = np.unique(cluster.link_of("trunk_up", ranks), return_index=True)[1]
    for index, (part, rank) in enumerate(zip(cluster.parts, first.tolist(), strict=True)):
        for left, right, attributes in to_networkx(part).edges(data=True):
            graph.add_edge(f"part{index}/{left}", f"part{index}/{right}", **attributes)
        top = f"part{index}/{'spine' if part.num_leaves else 'leaf0'}"
        graph.add_edge(top, "trunk", capacity=float(capacity[cluster.link_of("trunk_up", ranks[rank : rank + 1])][0]))
        graph.add_edge("trunk", top, capacity=float(capacity[cluster.link_of("trunk_down", ranks[rank : rank + 1])][0]))
    return graph


def _scale_up(cluster: Cluster) -> Iterator[Edge]:
    """A star around the domain's switch, or pairs of devices in a mesh or torus."""
    ranks = np.arange(cluster.world_size)
    kind, capacity = cluster.profile.scale_up.kind, cluster.link_capacity_bytes_per_s
    sending, receiving = capacity[cluster.port_tx(ranks)], capacity[cluster.port_rx(ranks)]
    domain = cluster.domain_of(ranks)
    if kind in ("mesh", "torus"):
        for left, right in _neighbours(cluster):
            share = 1 / max(cluster.domain_size - 1, 1) if kind == "mesh" else 1.0
            yield f"gpu{left}", f"gpu{right}", float(min(sending[left], receiving[right])) * share
        return
    for rank in ranks.tolist():
        yield f"gpu{rank}", f"switch{domain[rank]}", float(sending[rank])
        yield f"switch{domain[rank]}", f"gpu{rank}", float(receiving[rank])


def _neighbours(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Pairs of devices in a domain that are one hop apart."""
    ranks = np.arange(cluster.world_size)
    for first in range(0, cluster.world_size, cluster.domain_size):
        inside = ranks[first : first + cluster.domain_size]
        src, dst = (side.ravel() for side in np.meshgrid(inside, inside, indexing="ij"))
        message, _ = cluster.route(src, dst)
        near = np.bincount(message, minlength=len(src)) == 2
        yield from zip(src[near].tolist(), dst[near].tolist(), strict=True)


def _scale_out(cluster: Cluster) -> Iterator[Edge]:
    """Devices to the NICs of their rails, NICs to leaves (or one switch), leaves to spines, spines to a core."""
    if cluster.profile.scale_out is None:
        return
    ranks, capacity = np.arange(cluster.world_size), cluster.link_capacity_bytes_per_s
    nic, leaf = cluster.nic_tx(ranks) - cluster.nic_tx(ranks[:1]), cluster.leaf_of(ranks)
    links = (cluster.pcie_tx, cluster.pcie_rx, cluster.nic_tx, cluster.nic_rx)
    for rank, to_nic, from_nic, tx, rx in zip(
        ranks.tolist(), *(capacity[link(ranks)].tolist() for link in links), strict=True
    ):
        yield f"gpu{rank}", f"nic{nic[rank]}", to_nic
        yield f"nic{nic[rank]}", f"gpu{rank}", from_nic
        yield f"nic{nic[rank]}", f"leaf{leaf[rank]}", tx
        yield f"leaf{leaf[rank]}", f"nic{nic[rank]}", rx
    if cluster.num_leaves:
        up, down = capacity[cluster.leaf_up(ranks)], capacity[cluster.leaf_down(ranks)]
        for rank in np.unique(leaf, return_index=True)[1].tolist():
            spine = f"spine{cluster.group_of(ranks[rank])}" if cluster.num_groups else "spine"
            yield f"leaf{leaf[rank]}", spine, float(up[rank])
            yield spine, f"leaf{leaf[rank]}", float(down[rank])
    for level in (level for level in cluster.levels if level.up == "group_up"):
        group = level.place(ranks)
        for one in unique(group).tolist():
            out, back = (unique(cluster.link_of(block, ranks[group == one])) for block in (level.up, level.down))
            yield f"spine{one}", "core", float(capacity[out].sum())
            yield "core", f"spine{one}", float(capacity[back].sum())
