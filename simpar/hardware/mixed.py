"""Clusters of several kinds of nodes: groups of nodes with devices and links of their own, joined by a trunk.

A group is a :class:`Cluster` of its own; ranks and links of the groups follow one another. A collective inside a group
is priced there as if the others did not exist; one that spans groups uses the links of all of them and the trunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import Device
from simpar.hardware.levels import Home, Level
from simpar.hardware.profile import Between, ClusterProfile
from simpar.units import Ints, unique

LEAVES = ("leaf_up", "leaf_down")
TRUNKS = ("trunk_up", "trunk_down")


@dataclass(frozen=True, repr=False)
class MixedCluster(Cluster):
    """Groups of nodes (``parts``) in one cluster. Blocks of links hold those of all parts in order.

    ``profile`` is the one for collectives that span parts: no reduction in switches, and the scale-up fabric of the
    part with the slowest ports. A part without leaf switches counts as one leaf that never binds.
    """

    parts: tuple[Cluster, ...] = ()
    between: Between = field(default_factory=Between)

    @staticmethod
    def of(name: str, parts: tuple[Cluster, ...], between: Between) -> MixedCluster:
        """The cluster of groups of nodes, joined by what is between them."""
        return MixedCluster(_joined(name, parts), sum(part.nodes for part in parts), parts=parts, between=between)

    @cached_property
    def in_training(self) -> Cluster:
        """The cluster with every part's parameters inside training steps."""
        return replace(self, parts=tuple(part.in_training for part in self.parts))

    @cached_property
    def punctual(self) -> Cluster:
        """The cluster without the time that the parts' states add for late members."""
        return replace(self, parts=tuple(part.punctual for part in self.parts))

    def reducing(self, *, nvls: bool | None = None, sharp: bool | None = None) -> Cluster:
        """Reduction in the switches of every part, on or off. Raises UserError where a part has no such switches."""
        return replace(self, parts=tuple(part.reducing(nvls=nvls, sharp=sharp) for part in self.parts))

    @property
    def latency_between_s(self) -> float:
        """Seconds by which a step between parts is longer than one inside the slower part."""
        return self.between.latency

    @property
    def is_mixed(self) -> bool:
        """Whether there are several kinds of nodes."""
        return True

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return sum(part.world_size for part in self.parts)

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """First rank of every part, and the number of ranks behind the last."""
        return tuple(int(n) for n in np.cumsum([0, *(part.world_size for part in self.parts)]))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The kinds of devices."""
        return tuple({part.device.name: part.device for part in self.parts}.values())

    @cached_property
    def device(self) -> Device:
        """The device of the first part."""
        return self.parts[0].device

    def device_of(self, ranks: Ints) -> Ints:
        """Index into ``devices`` of every rank."""
        names = [device.name for device in self.devices]
        kind = np.array([names.index(part.device.name) for part in self.parts])
        return kind[self.part_of(ranks)]

    def part_of(self, ranks: Ints) -> Ints:
        """Part of every rank."""
        return np.searchsorted(np.array(self.first_rank[1:]), np.asarray(ranks), side="right")

    @property
    def hands_over(self) -> bool:
        """Messages between parts leave by the NIC of their sender."""
        return False

    @property
    def num_leaves(self) -> int:
        """Leaf switches of all parts, at least one each."""
        return sum(max(part.num_leaves, 1) for part in self.parts)

    @cached_property
    def _sizes(self) -> dict[str, list[int]]:
        """Links of every part, by block."""
        blocks = [name for name in self.parts[0].blocks if not name.startswith("group")]
        sizes = {name: [part._blocks[name][1] for part in self.parts] for name in blocks}
        sizes |= {name: [max(size, 1) for size in sizes[name]] for name in LEAVES}
        return sizes | dict.fromkeys(TRUNKS, [1] * len(self.parts))

    @cached_property
    def _blocks(self) -> dict[str, tuple[int, int]]:
        total = {name: sum(sizes) for name, sizes in self._sizes.items()}
        starts = np.concatenate([[0], np.cumsum(list(total.values()))])
        return {name: (int(start), size) for (name, size), start in zip(total.items(), starts, strict=False)}

    def _starts(self, block: str) -> list[int]:
        """First link of every part in a block."""
        before = np.cumsum([0, *self._sizes[block][:-1]])
        return [int(self._blocks[block][0] + n) for n in before]

    @cached_property
    def _link(self) -> Mapping[str, Ints]:
        """Link of every rank, by block: int64[world]."""
        result = {}
        for block in self.blocks:
            pieces = []
            for part, start in zip(self.parts, self._starts(block), strict=True):
                ranks = np.arange(part.world_size)
                inner = np.zeros_like(ranks)
                if block not in TRUNKS and part._blocks[block][1]:
                    inner = part.link_of(block, ranks) - part._blocks[block][0]
                pieces.append(start + inner)
            result[block] = np.concatenate(pieces)
        return result

    @cached_property
    def _nominal(self) -> NDArray[np.float64]:
        """Capacity of every link, degradations left out."""
        capacity = np.ones(self.num_links)
        for block in self.blocks:
            for part, start, size in zip(self.parts, self._starts(block), self._sizes[block], strict=True):
                capacity[start : start + size] = self._capacity(part, block)
        return capacity

    def _capacity(self, part: Cluster, block: str) -> float:
        """Capacity of the links of a part in a block."""
        inside = part._block_capacity()
        if block in TRUNKS:
            everything = inside["nic_tx"] * part.nodes * part.rails
            return float(everything if self.between.bandwidth is None else self.between.bandwidth)
        if block in LEAVES and not part.num_leaves:
            return inside["nic_tx"] * part.nodes * part.rails
        return inside[block]

    @cached_property
    def link_capacity_bytes_per_s(self) -> NDArray[np.float64]:
        """Capacity of every link, float64[num_links], with degradations applied."""
        capacity = self._nominal.copy()
        for pattern, factor in self.scaling.items():
            capacity[self._matching(pattern)] *= factor
        return capacity

    def can_bind(self, links: Ints) -> NDArray[np.bool_]:
        """Which links can be the narrowest of a route: not uplinks that carry whatever the NICs below them send."""
        return self.capacity_of(links) < np.where(self._takes_all[links], self._nominal[links], np.inf)

    @cached_property
    def _takes_all(self) -> NDArray[np.bool_]:
        """Which links nominally carry all that the NICs below send: leaves that do not bind, trunks without a limit."""
        result = np.zeros(self.num_links, dtype=bool)
        for block in (*LEAVES, *TRUNKS):
            for part, start, size in zip(self.parts, self._starts(block), self._sizes[block], strict=True):
                binds = part.leaves_bind if block in LEAVES else self.between.bandwidth is not None
                result[start : start + size] = not binds
        return result

    def nominal_capacity(self, links: Ints) -> NDArray[np.float64]:
        """Capacity of links in bytes/s, degradations left out."""
        return self._nominal[links]

    def owner_of(self, links: Ints) -> Ints:
        """The lowest rank that every link belongs to."""
        owner = np.zeros(self.num_links, dtype=np.int64)
        backwards = np.arange(self.world_size)[::-1]
        for table in self._link.values():
            owner[table[::-1]] = backwards
        return owner[links]

    def _node_links(self, node: int) -> Ints:
        """All NICs of a node, both ways."""
        ranks = np.flatnonzero(self._place["node"] == node)
        return unique(np.concatenate([self.nic_tx(ranks), self.nic_rx(ranks)]))

    @cached_property
    def _place(self) -> Mapping[str, Ints]:
        """Node, scale-up domain, rail, leaf and pod of every rank; those of a part follow those of the one before."""
        places: dict[str, list[Ints]] = {name: [] for name in ("node", "domain", "rail", "leaf", "pod")}
        for part in self.parts:
            ranks = np.arange(part.world_size)
            for name, pieces in places.items():
                here = getattr(part, f"{name}_of")(ranks)
                shift = 0 if name == "rail" or not pieces else int(pieces[-1].max()) + 1
                pieces.append(here + shift)
        return {name: np.concatenate(pieces) for name, pieces in places.items()}

    def node_of(self, ranks: Ints) -> Ints:
        """Node of every rank."""
        return self._place["node"][ranks]

    def domain_of(self, ranks: Ints) -> Ints:
        """Scale-up domain of every rank."""
        return self._place["domain"][ranks]

    def rail_of(self, ranks: Ints) -> Ints:
        """Rail (index within the node) that a rank's traffic leaves by."""
        return self._place["rail"][ranks]

    def leaf_of(self, ranks: Ints) -> Ints:
        """Leaf switch of a rank's NIC."""
        return self._place["leaf"][ranks]

    def pod_of(self, ranks: Ints) -> Ints:
        """Nodes under one leaf (per rail) share a number."""
        return self._place["pod"][ranks]

    def link_of(self, block: str, ranks: Ints) -> Ints:
        """The link of a block that every rank uses."""
        return self._link[block][ranks]

    @property
    def levels(self) -> tuple[Level, ...]:
        """Leaves, and the trunk between parts."""
        trunk = Level(*TRUNKS, self.part_of, self.part_of)
        return (Level(*LEAVES, self.pod_of, self.leaf_of), trunk)

    @property
    def leaves_bind(self) -> bool:
        """Whether the links above NICs can be the narrowest: taken as given where parts meet."""
        return True

    def trunk_up(self, ranks: Ints) -> Ints:
        """Uplinks of a rank's part."""
        return self.link_of("trunk_up", ranks)

    def trunk_down(self, ranks: Ints) -> Ints:
        """Downlinks of a rank's part."""
        return self.link_of("trunk_down", ranks)

    def homes(self, groups: Ints) -> list[Home]:
        """Groups int64[G, N] inside one part with the ranks and links of that part; others with those of the whole."""
        part = self.part_of(groups)
        alone = (part == part[:, :1]).all(axis=1)
        result = []
        for index, (one, first) in enumerate(zip(self.parts, self.first_rank, strict=False)):
            mine = np.flatnonzero(alone & (part[:, 0] == index))
            if len(mine):
                result.append(Home(mine, groups[mine] - first, one, self._links_from(index)))
        across = np.flatnonzero(~alone)
        if len(across):
            result.append(Home(across, groups[across], self, np.arange(self.num_links)))
        return result

    def _links_from(self, index: int) -> Ints:
        """For every link of a part, its number in the whole cluster: int64[links of the part]."""
        part = self.parts[index]
        result = np.empty(part.num_links, dtype=np.int64)
        for block, (start, size) in part._blocks.items():
            if not size:
                continue
            result[start : start + size] = self._starts(block)[index] + np.arange(size)
        return result


def _joined(name: str, parts: tuple[Cluster, ...]) -> ClusterProfile:
    """The profile across parts: the scale-up fabric with the slowest ports, the slowest network, no reductions."""
    slow = min((part.profile for part in parts), key=lambda each: each.scale_up.bandwidth)
    network = min(
        (part.profile.scale_out for part in parts if part.profile.scale_out), key=lambda out: out.nic_bandwidth
    )
    changed: dict[str, Any] = {
        "name": name,
        "scale_up": slow.scale_up.model_copy(update={"nvls": False}),
        "scale_out": network.model_copy(update={"sharp": False}),
        "collectives": {},
        "jobs": type(slow.jobs)(),
        "price_per_device_hour": None,
    }
    return slow.model_copy(update=changed)
