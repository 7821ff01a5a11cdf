"""A cluster: nodes of a profile, their devices, and the fabric that joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.device import Device, load_device
from simpar.hardware.fabric import Fabric
from simpar.hardware.levels import Home
from simpar.hardware.limits import check_links
from simpar.hardware.part import nodes_words
from simpar.hardware.profile import ClusterProfile
from simpar.units import Ints

if TYPE_CHECKING:
    import networkx

MAX_DEVICES = 2**21
LATE = ("member_us", "far_member_us")
"""Parameters of the time for which a collective waits for late members: inside a domain, and across domains."""


@dataclass(frozen=True, repr=False)
class Cluster(Fabric):
    """``nodes`` nodes of a profile: their devices, and the fabric that joins them.

    ``state`` replaces fitted parameters of collectives (a measured state of the fabric).
    """

    state: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        devices = " + ".join(f"{part.world_size:,} {part.device.name}" for part in self.parts)
        degraded = f", {len(self.scaling)} links degraded" if self.scaling else ""
        return f"<Cluster {nodes_words(self.nodes, self.profile.name)}: {devices}{degraded}>"

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: copies in other processes start without caches."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def known(self) -> dict[tuple[str, bytes], object]:
        """A cache of answers about this cluster: lines of collectives on groups, layouts of groups."""
        return {}

    @cached_property
    def in_training(self) -> Cluster:
        """The cluster with the profile's parameters inside training steps; a measured state takes precedence."""
        return replace(self, state={**self.profile.jobs.in_training, **self.state})

    @property
    def whole(self) -> Cluster:
        """The cluster with degraded links at their nominal capacity."""
        return replace(self, scaling={}) if self.scaling else self

    @cached_property
    def punctual(self) -> Cluster:
        """The cluster without the time that its state adds for late members."""
        if self.state.keys().isdisjoint(LATE):
            return self
        return replace(self, state={key: value for key, value in self.state.items() if key not in LATE})

    @cached_property
    def device(self) -> Device:
        """The device of every rank."""
        own = self.profile.device
        return own if isinstance(own, Device) else load_device(own)

    def with_device(self, device: Device) -> Cluster:
        """The same cluster with another device."""
        return replace(self, profile=self.profile.model_copy(update={"device": device}))

    @property
    def devices(self) -> tuple[Device, ...]:
        """The kinds of devices: one, except in mixed clusters."""
        return (self.device,)

    def device_of(self, ranks: Ints) -> Ints:
        """Index into ``devices`` of every rank."""
        return np.zeros_like(np.asarray(ranks))

    @property
    def is_mixed(self) -> bool:
        """Whether there are several kinds of nodes (:class:`simpar.hardware.mixed.MixedCluster`)."""
        return False

    @property
    def parts(self) -> tuple[Cluster, ...]:
        """Groups of equal nodes: the cluster itself, except in mixed clusters."""
        return (self,)

    def part_of(self, ranks: Ints) -> Ints:
        """Index into ``parts`` of every rank."""
        return np.zeros(np.shape(ranks), dtype=np.int64)

    @property
    def latency_between_s(self) -> float:
        """Seconds by which a step between groups of nodes is longer than one inside the slower group."""
        return 0.0

    def homes(self, groups: Ints) -> list[Home]:
        """The parts in which process groups int64[G, N] lie: the cluster itself, except in mixed clusters."""
        return [Home(np.arange(len(groups)), groups, self)]

    def with_degraded(self, links: Mapping[str, float]) -> Cluster:
        """The cluster with capacities multiplied by a factor in (0, 1]: {"nic_tx[17]": 0.5, "node:3": 0.8}.

        Patterns: a link's name, a block of links ("leaf_up"), or all NICs of a node. Raises UserError.
        """
        for pattern, factor in links.items():
            if not 0 < factor <= 1:
                raise UserError(f"degraded link {pattern} = {factor}: allowed: greater than 0, at most 1")
        changed = replace(self, scaling={**self.scaling, **links})
        _ = changed.link_capacity_bytes_per_s
        check_links(changed)
        return changed

    def reducing(self, *, nvls: bool | None = None, sharp: bool | None = None) -> Cluster:
        """The cluster with reduction in its switches turned on or off: NVLS inside a domain, SHARP between nodes.

        None leaves the profile's choice. Raises UserError where the fabric has no such switches.
        """
        up, out = self.profile.scale_up, self.profile.scale_out
        if nvls and up.kind != "nvswitch":
            raise UserError(
                f"cluster.nvls = true: the scale-up fabric of {self.profile.name} is {up.kind}; allowed: nvswitch"
            )
        if sharp and (out is None or out.kind != "ib"):
            kind = "missing" if out is None else out.kind
            raise UserError(f"cluster.sharp = true: the network of {self.profile.name} is {kind}; allowed: ib")
        changed = self.profile
        if nvls is not None:
            changed = changed.model_copy(update={"scale_up": up.model_copy(update={"nvls": nvls})})
        if sharp is not None and out is not None:
            changed = changed.model_copy(update={"scale_out": out.model_copy(update={"sharp": sharp})})
        return self if changed is self.profile else replace(self, profile=changed)

    def to_networkx(self) -> networkx.DiGraph[Any]:
        """The cluster as a directed graph of gpu, switch, nic, leaf and spine nodes, ``capacity`` in bytes/s."""
        from simpar.hardware.view import to_networkx

        return to_networkx(self)


def make_cluster(profile: ClusterProfile, nodes: int) -> Cluster:
    """A cluster of ``nodes`` nodes. Raises UserError for an impossible number."""
    most = MAX_DEVICES // profile.devices_per_node
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= most:
        raise UserError(f"nodes = {nodes!r}: allowed: 1 to {most}")
    within = profile.domain_size // profile.devices_per_node
    if nodes > within and profile.scale_out is None:
        rule = "nodes = 1" if within == 1 else f"nodes up to {within}"
        said = f"hardware {profile.name}: has no network between nodes"
        raise UserError(f"{said}; allowed: {rule}, not {nodes}")
    cluster = Cluster(profile, nodes)
    _ = cluster.device
    check_links(cluster)
    return cluster
