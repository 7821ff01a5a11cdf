"""The links of a cluster and the routes over them, both by arithmetic on rank numbers."""

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware import torus
from simpar.hardware.levels import Level
from simpar.hardware.profile import ClusterProfile
from simpar.units import Ints, unique

ABOVE = ("leaf_up", "leaf_down", "group_up", "group_down")
"""Blocks of links above NICs."""
OF_NODE = ("host_memory", "nvme_read", "nvme_write")
"""Blocks with one link per node."""


@dataclass(frozen=True)
class Fabric:
    """Links of ``nodes`` nodes of a profile. Each has one direction; link ids are computed from ranks, block by block.

    Blocks in order: ``port_tx port_rx`` (scale-up port of every device), ``nic_tx nic_rx`` (rails of every node),
    ``leaf_up leaf_down`` (leaf switches), ``group_up group_down`` (out of a group of leaves), ``pcie_tx pcie_rx``
    (device to host), ``host_memory`` (a node), ``switch_up switch_down`` (PCIe switch to host), ``nvme_read
    nvme_write`` (all drives of a node).
    ``scaling`` multiplies capacities by link name (degraded links).
    """

    profile: ClusterProfile
    nodes: int
    scaling: Mapping[str, float] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return self.nodes * self.profile.devices_per_node

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels of the network above NICs."""
        out, result = self.profile.scale_out, []
        if self.num_leaves:
            result.append(Level("leaf_up", "leaf_down", self.pod_of, self.leaf_of))
        if self.num_groups and out is not None and out.groups is not None:
            joined = -(-self.nodes // out.groups.nodes) if out.groups.kind == "dragonfly" else 0
            result.append(Level("group_up", "group_down", self.group_of, self.group_of, joined))
        return tuple(result)

    @property
    def leaves_bind(self) -> bool:
        """Whether an uplink can be the narrowest link of a route: only oversubscribed, degraded or detoured ones can.

        All others carry whatever the NICs below them send: their fair shares are never below those of the NICs, and it
        makes no difference which nodes share a leaf.
        """
        out = self.profile.scale_out
        if not (self.num_leaves or self.num_groups) or out is None:
            return False
        degraded = any(name.startswith(("leaf", "group")) for name in self.scaling)
        groups = out.groups if self.num_groups else None
        return (
            degraded
            or out.oversubscription > 1
            or (groups is not None and (groups.oversubscription > 1 or groups.kind == "dragonfly"))
        )

    def can_bind(self, links: Ints) -> NDArray[np.bool_]:
        """Which links can be the narrowest of a route."""
        if self.leaves_bind or not (self.num_leaves or self.num_groups):
            return np.ones(len(links), dtype=bool)
        leaves = [self.blocks.index(name) for name in ABOVE]
        return ~np.isin(self.block_of(links), leaves)

    @cached_property
    def is_of_device(self) -> NDArray[np.bool_]:
        """For every block of links, whether each device of a node has a link of its own: bool[blocks]."""
        node = np.arange(self.profile.devices_per_node)
        return np.array([len(unique(self.link_of(block, node))) == len(node) for block in self.blocks])

    @property
    def rails(self) -> int:
        """Network links of a node: one per device where NICs allow, else one per NIC."""
        out = self.profile.scale_out
        return min(self.profile.devices_per_node, out.nics_per_node) if out else 1

    @property
    def domain_size(self) -> int:
        """Devices that reach each other over the scale-up fabric."""
        return self.profile.domain_size

    @cached_property
    def torus_sides(self) -> tuple[int, ...]:
        """Sides of the torus of a domain, or of the box that a job gets if it needs less than a whole torus."""
        fabric, used = self.profile.scale_up, min(self.world_size, self.domain_size)
        return torus.slice_sides(used, fabric.dims, fabric.wrap) if fabric.dims else ()

    @property
    def hands_over(self) -> bool:
        """Whether a device passes messages on to a neighbour on the receiver's rail.

        Over NVLink or xGMI that is faster (PXN); where rails are not joined it is the only way.
        """
        out = self.profile.scale_out
        return out is not None and out.rails and (out.rail_only or self.profile.scale_up.kind in ("nvswitch", "mesh"))

    @property
    def num_leaves(self) -> int:
        """Leaf switches: one per pod and rail, or per pod; 0 if no traffic ever leaves a leaf."""
        out = self.profile.scale_out
        if out is None or out.nodes_per_leaf is None:
            return 0
        if self.nodes <= out.nodes_per_leaf and (self.hands_over or not out.rails):
            return 0
        return -(-self.nodes // out.nodes_per_leaf) * (self.rails if out.rails else 1)

    @property
    def num_groups(self) -> int:
        """Links out of groups of leaves, each way: one per group and rail, or per group; 0 if no traffic leaves one."""
        out = self.profile.scale_out
        if out is None or out.groups is None or self.nodes <= out.groups.nodes:
            return 0
        return -(-self.nodes // out.groups.nodes) * (self.rails if out.rails else 1)

    @property
    def _switches(self) -> int:
        """PCIe switches."""
        return self.world_size // self.profile.host.devices_per_switch

    @cached_property
    def _blocks(self) -> dict[str, tuple[int, int]]:
        sizes = {
            "port_tx": self.world_size, "port_rx": self.world_size,
            "nic_tx": self.nodes * self.rails, "nic_rx": self.nodes * self.rails,
            "leaf_up": self.num_leaves, "leaf_down": self.num_leaves,
            "group_up": self.num_groups, "group_down": self.num_groups,
            "pcie_tx": self.world_size, "pcie_rx": self.world_size, "host_memory": self.nodes,
            "switch_up": self._switches, "switch_down": self._switches,
            "nvme_read": self.nodes, "nvme_write": self.nodes,
        }  # fmt: skip
        starts = np.concatenate([[0], np.cumsum(list(sizes.values()))])
        return {name: (int(start), size) for (name, size), start in zip(sizes.items(), starts[:-1], strict=True)}

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return sum(size for _, size in self._blocks.values())

    @cached_property
    def link_capacity_bytes_per_s(self) -> NDArray[np.float64]:
        """Capacity of every link, float64[num_links], with degradations applied."""
        capacity = np.ones(self.num_links)
        for name, value in self._block_capacity().items():
            start, size = self._blocks[name]
            capacity[start : start + size] = value
        for pattern, factor in self.scaling.items():
            capacity[self._matching(pattern)] *= factor
        return capacity

    @property
    def periods(self) -> tuple[int, ...]:
        """Numbers of ranks in the fabric's repeating blocks: that share a NIC, a node, a domain, a binding leaf."""
        per_node, out = self.profile.devices_per_node, self.profile.scale_out
        sizes = {per_node, self.domain_size}
        if self.profile.host.devices_per_switch > 1:
            sizes.add(self.profile.host.devices_per_switch)
        if per_node % self.rails == 0:
            sizes.add(per_node // self.rails)
        if self.leaves_bind and out is not None and out.nodes_per_leaf:
            sizes.add(out.nodes_per_leaf * per_node)
            sizes |= {out.groups.nodes * per_node} if out.groups else set()
        return tuple(sorted(sizes))

    @property
    def rigid_ranks(self) -> int:
        """Ranks of the smallest block that moves as a whole: a torus, or a node with unevenly shared NICs; else 1."""
        if self.profile.scale_up.kind == "torus":
            return self.domain_size
        return self.profile.devices_per_node if self.profile.devices_per_node % self.rails else 1

    def nominal_capacity(self, links: Ints) -> NDArray[np.float64]:
        """Capacity of links in bytes/s, degradations left out."""
        return np.array(list(self._block_capacity().values()))[self.block_of(links)]

    def capacity_of(self, links: Ints) -> NDArray[np.float64]:
        """Capacity of links in bytes/s, degradations applied."""
        return self.link_capacity_bytes_per_s[links] if self.scaling else self.nominal_capacity(links)

    def block_of(self, links: Ints) -> Ints:
        """Index in ``blocks`` of every link."""
        starts = np.array([start for start, _ in self._blocks.values()])
        return np.searchsorted(starts, links, side="right") - 1

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks of links, in order, for use with ``link_of``."""
        return tuple(self._blocks)

    def has_links(self, block: str) -> bool:
        """Whether a block has any links: those above NICs have none where all nodes hang on one switch."""
        return self._blocks[block][1] > 0

    def owner_of(self, links: Ints) -> Ints:
        """The lowest rank that every link belongs to."""
        block, owner = self.block_of(links), np.empty_like(links)
        for index, (name, (start, _)) in enumerate(self._blocks.items()):
            mine = block == index
            if mine.any():
                owner[mine] = self._lowest_rank(name, links[mine] - start)
        return owner

    def _lowest_rank(self, block: str, index: Ints) -> Ints:
        per_node, out = self.profile.devices_per_node, self.profile.scale_out
        if block in OF_NODE:
            return index * per_node
        if block.startswith("switch"):
            return index * self.profile.host.devices_per_switch
        if block not in (*ABOVE, "nic_tx", "nic_rx"):
            return index
        rails = 1 if block in ABOVE and out is not None and not out.rails else self.rails
        nodes = int((out and out.nodes_per_leaf) or self.nodes) if block in ABOVE else 1
        if block.startswith("group") and out is not None and out.groups is not None:
            nodes = out.groups.nodes
        return index // rails * nodes * per_node + -(-(index % rails) * per_node // rails)

    def _block_capacity(self) -> dict[str, float]:
        profile, out = self.profile, self.profile.scale_out
        rail = out.nic_bandwidth * out.nics_per_node / self.rails if out else profile.scale_up.bandwidth
        nodes_per_leaf = (out.nodes_per_leaf or self.nodes) if out else 1
        rails_per_leaf = 1 if out and out.rails else self.rails
        uplinks = rail * rails_per_leaf / (out.oversubscription if out else 1.0)  # of a node's
        leaf, groups = uplinks * nodes_per_leaf, out.groups if out else None
        group = uplinks * groups.nodes / groups.oversubscription if groups else 1.0
        host = profile.host
        return {
            "port_tx": profile.scale_up.bandwidth, "port_rx": profile.scale_up.bandwidth, "nic_tx": rail,
            "nic_rx": rail, "leaf_up": leaf, "leaf_down": leaf, "group_up": group, "group_down": group,
            "pcie_tx": host.pcie_bandwidth, "pcie_rx": host.pcie_bandwidth, "host_memory": host.memory_bandwidth,
            "switch_up": host.switch_bandwidth or host.pcie_bandwidth,
            "switch_down": host.switch_bandwidth or host.pcie_bandwidth,
            "nvme_read": host.nvme_bandwidth or 1.0,
            "nvme_write": host.nvme_write_bandwidth or host.nvme_bandwidth or 1.0,
        }  # fmt: skip

    def _matching(self, pattern: str) -> Ints:
        """Link ids of ``name``, ``name[i]`` or ``node:i`` (all NICs of a node, both ways). Raises UserError."""
        match = re.fullmatch(r"node:([0-9]{1,9})", pattern)
        if match:
            node = int(match.group(1))
            if node >= self.nodes:
                raise UserError(f"degraded link {pattern}: the cluster has nodes 0..{self.nodes - 1}")
            return self._node_links(node)
        match = re.fullmatch(r"(\w+?)(?:\[([0-9]{1,9})\])?", pattern)
        if not match or match.group(1) not in self._blocks:
            raise UserError(f"degraded link {pattern!r}: allowed {', '.join(self._blocks)} with [index], or node:index")
        start, size = self._blocks[match.group(1)]
        if match.group(2) is None:
            return np.arange(start, start + size)
        if int(match.group(2)) >= size:
            raise UserError(f"degraded link {pattern}: index out of range, allowed 0..{size - 1}")
        return np.array([start + int(match.group(2))])

    def _node_links(self, node: int) -> Ints:
        """All NICs of a node, both ways."""
        rails = np.arange(node * self.rails, (node + 1) * self.rails)
        return np.concatenate([self._blocks["nic_tx"][0] + rails, self._blocks["nic_rx"][0] + rails])

    def link_name(self, link: int) -> str:
        """``block[index]`` of a link id."""
        for name, (start, size) in self._blocks.items():
            if start <= link < start + size:
                return f"{name}[{link - start}]"
        raise IndexError(link)

    def node_of(self, ranks: Ints) -> Ints:
        """Node of every rank."""
        return np.asarray(ranks) // self.profile.devices_per_node

    def domain_of(self, ranks: Ints) -> Ints:
        """Scale-up domain of every rank."""
        return np.asarray(ranks) // self.domain_size

    def rail_of(self, ranks: Ints) -> Ints:
        """Rail (index within the node) that a rank's traffic leaves by."""
        local = np.asarray(ranks) % self.profile.devices_per_node
        return local * self.rails // self.profile.devices_per_node

    def link_of(self, block: str, ranks: Ints) -> Ints:
        """The link of a block that every rank uses."""
        start, ranks = self._blocks[block][0], np.asarray(ranks)
        if block.startswith("nic"):
            return start + self.node_of(ranks) * self.rails + self.rail_of(ranks)
        if block.startswith("leaf"):
            return start + self.leaf_of(ranks)
        if block.startswith("group"):
            out, group = self.profile.scale_out, self.group_of(ranks)
            by_rail = self.num_groups and out is not None and out.rails
            return start + (group * self.rails + self.rail_of(ranks) if by_rail else group)
        if block.startswith("switch"):
            return start + ranks // self.profile.host.devices_per_switch
        return start + (self.node_of(ranks) if block in OF_NODE else ranks)

    def port_tx(self, ranks: Ints) -> Ints:
        """Outgoing scale-up port."""
        return self.link_of("port_tx", ranks)

    def port_rx(self, ranks: Ints) -> Ints:
        """Incoming scale-up port."""
        return self.link_of("port_rx", ranks)

    def nic_tx(self, ranks: Ints) -> Ints:
        """Outgoing network link (shared by the ranks of a rail)."""
        return self.link_of("nic_tx", ranks)

    def nic_rx(self, ranks: Ints) -> Ints:
        """Incoming network link (shared by the ranks of a rail)."""
        return self.link_of("nic_rx", ranks)

    def leaf_of(self, ranks: Ints) -> Ints:
        """Leaf switch of a rank's NIC (0 where a single switch joins all)."""
        out = self.profile.scale_out
        if self.num_leaves == 0 or out is None:
            return np.zeros_like(np.asarray(ranks))
        pod = self.pod_of(ranks)
        return pod * self.rails + self.rail_of(ranks) if out.rails else pod

    def pod_of(self, ranks: Ints) -> Ints:
        """Pod of every rank: nodes under one leaf (per rail) have the same number."""
        out = self.profile.scale_out
        return self.node_of(ranks) // int((out and out.nodes_per_leaf) or self.nodes)

    def group_of(self, ranks: Ints) -> Ints:
        """Group of leaves of every rank (0 where there are none)."""
        out = self.profile.scale_out
        return self.node_of(ranks) // int(out.groups.nodes if out is not None and out.groups else self.nodes)

    def detours(self, links: Ints) -> NDArray[np.float64]:
        """How often a byte between two places loads links of its route: more than once where it makes detours."""
        result = np.ones(len(links))
        for level in (level for level in self.levels if level.joined):
            blocks = [self.blocks.index(name) for name in (level.up, level.down)]
            result[np.isin(self.block_of(links), blocks)] = level.detour(1)
        return result

    def leaf_up(self, ranks: Ints) -> Ints:
        """Uplink of a rank's leaf."""
        return self.link_of("leaf_up", ranks)

    def leaf_down(self, ranks: Ints) -> Ints:
        """Downlink of a rank's leaf."""
        return self.link_of("leaf_down", ranks)

    def pcie_tx(self, ranks: Ints) -> Ints:
        """Device to host link."""
        return self.link_of("pcie_tx", ranks)

    def pcie_rx(self, ranks: Ints) -> Ints:
        """Host to device link."""
        return self.link_of("pcie_rx", ranks)

    def host_memory(self, ranks: Ints) -> Ints:
        """Memory of a rank's node."""
        return self.link_of("host_memory", ranks)

    def route(self, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
        """Links that messages src[i] -> dst[i] cross: (message index, link id), int64.

        Inside a domain: the two ports (on a torus: those of every hop, dimension by dimension). Across domains:
        NICs, and leaf uplink and downlink where the leaves differ. On rails a message to another rail first moves
        over the scale-up fabric to the device on that rail (PXN): two ports more, but no spine for a rail's sake.
        """
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        near = np.flatnonzero((self.domain_of(src) == self.domain_of(dst)) & (src != dst))
        far = np.flatnonzero(self.domain_of(src) != self.domain_of(dst))
        pieces = [*self._inside(near, src[near], dst[near]), *self._across(far, src[far], dst[far])]
        return np.concatenate([i for i, _ in pieces]), np.concatenate([link for _, link in pieces])

    def _inside(self, message: Ints, src: Ints, dst: Ints) -> list[tuple[Ints, Ints]]:
        """Ports that messages within a domain cross; a torus device's port stands for its links along an axis."""
        if self.torus_sides:
            size, wrap = self.domain_size, self.profile.scale_up.wrap
            hop, left, reached = torus.hops(src % size, dst % size, self.torus_sides, wrap)
            first = src[hop] // size * size
            message, src, dst = message[hop], first + left, first + reached
        return [(message, self.port_tx(src)), (message, self.port_rx(dst))]

    def _across(self, message: Ints, src: Ints, dst: Ints) -> list[tuple[Ints, Ints]]:
        """Links that messages between domains cross."""
        leaving = self._exit_rank(src, dst)
        hop = leaving != src
        pieces = [
            *self._inside(message[hop], src[hop], leaving[hop]),
            (message, self.nic_tx(leaving)), (message, self.nic_rx(dst)),
        ]  # fmt: skip
        for level in self.levels:
            up = level.switch(leaving) != level.switch(dst)
            pieces += [
                (message[up], self.link_of(level.up, leaving[up])), (message[up], self.link_of(level.down, dst[up])),
            ]  # fmt: skip
        return pieces

    def _exit_rank(self, src: Ints, dst: Ints) -> Ints:
        """The device by whose NIC a message leaves: under PXN, the one on the receiver's rail."""
        if not self.hands_over:
            return src
        per_node = self.profile.devices_per_node
        peer = self.node_of(src) * per_node + dst % per_node
        return np.where(self.rail_of(src) == self.rail_of(dst), src, peer)
