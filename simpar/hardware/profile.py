"""Cluster profiles: what a node is made of and how nodes are joined."""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from simpar.calls import Strict
from simpar.hardware.device import Device
from simpar.units import Bytes, BytesPerS, Count, Fraction, LinkRate, PositiveFraction, Seconds, UsdPerHour, Watts


class ScaleUp(Strict):
    """The fabric inside a domain of devices: a switch, PCIe, a mesh, a torus, or shared memory.

    ``bandwidth`` is per device and direction: of a mesh, of all its links together; of a torus, of its links
    along one axis. ``domain`` devices reach each other without a NIC (default: a node). ``dims`` are the sides of
    a whole torus, of which a smaller job gets a box; a side is a ring where it is a multiple of ``wrap``. Without
    ``peer_to_peer`` devices cannot read each other's memory: bytes cross the host's, as the parameters of collectives
    say.
    """

    kind: Literal["nvswitch", "mesh", "pcie", "torus", "shared_memory"]
    bandwidth: LinkRate
    latency: Seconds
    domain: Count | None = None
    nvls: bool = False
    peer_to_peer: bool = True
    dims: tuple[Count, ...] = ()
    wrap: Count = 1

    @model_validator(mode="after")
    def _dims_of_a_torus(self) -> Self:
        if bool(self.dims) != (self.kind == "torus"):
            raise ValueError(f"dims = {list(self.dims)}: a torus needs its sides, such as [4, 4], others have none")
        return self


class Groups(Strict):
    """What joins leaves: groups of ``nodes`` nodes, whose leaves reach each other, and the links out of a group.

    ``tree``: the spines of a group have uplinks to a core, of which ``oversubscription`` divides the bandwidth (a fat
    tree of three levels). ``dragonfly``: as many links go straight to other groups, to each in equal shares; what two
    groups exchange beyond theirs makes a detour over third ones, which takes a link of two groups.
    """

    nodes: Count
    oversubscription: float = Field(1.0, ge=1, allow_inf_nan=False)
    kind: Literal["tree", "dragonfly"] = "tree"


class ScaleOut(Strict):
    """The network between nodes.

    ``nic_bandwidth`` is per NIC and direction. ``ethernet`` is TCP over the kernel's sockets, RDMA over Ethernet is
    ``roce``, and ``dcn`` what joins slices of TPUs. ``latency`` is that of a message between processes.
    With ``rails`` the i-th NIC of every node hangs on the same leaf, one leaf per rail; else all NICs of
    ``nodes_per_leaf`` nodes share one. ``nodes_per_leaf`` left out means one non-blocking switch.
    ``oversubscription`` divides a leaf's uplinks, which end in one core, or in the spines of ``groups``. With
    ``rail_only`` nothing above the leaves joins rails: a message to another rail first moves to a device on it over
    the scale-up fabric, whichever that is [Wang et al. 2023, arXiv 2307.12169].
    """

    kind: Literal["ib", "roce", "efa", "tcpxo", "ethernet", "dcn"]
    nics_per_node: Count
    nic_bandwidth: LinkRate
    latency: Seconds
    nodes_per_leaf: Count | None = None
    oversubscription: float = Field(1.0, ge=1, allow_inf_nan=False)
    rails: bool = True
    rail_only: bool = False
    groups: Groups | None = None
    sharp: bool = False

    @model_validator(mode="after")
    def _groups_of_leaves(self) -> Self:
        if self.rail_only and not self.rails:
            raise ValueError("rail_only = true: allowed: with rails = true")
        if self.groups and (self.nodes_per_leaf is None or self.groups.nodes % self.nodes_per_leaf):
            leaf = self.nodes_per_leaf
            allowed = "with nodes_per_leaf" if leaf is None else f"multiples of {leaf}, the nodes of a leaf"
            raise ValueError(f"groups.nodes = {self.groups.nodes}: allowed: {allowed}")
        return self


class NodePower(Strict):
    """What a node draws besides its devices, by parts; :mod:`simpar.cost.power` adds them up.

    ``processors`` are the limits of all sockets, of which training takes a share; ``memory``, ``switches`` (of the
    scale-up fabric), ``network`` (cards and transceivers) and ``drives`` of a whole node; ``other`` what is not listed,
    whatever the load. ``fans`` draw that share of everything that they cool, and power supplies turn
    ``supply_efficiency`` of what they take into what all these draw. A single quantity instead of parts is all of it,
    fans and losses included, whatever the load.
    """

    processors: Watts = 0.0
    memory: Watts = 0.0
    switches: Watts = 0.0
    network: Watts = 0.0
    drives: Watts = 0.0
    other: Watts = 0.0
    fans: Fraction = 0.0
    supply_efficiency: PositiveFraction = 1.0

    @model_validator(mode="before")
    @classmethod
    def _one_quantity(cls, data: object) -> object:
        return {"other": data} if isinstance(data, str | int | float) else data


def _or_all_of_it(schema: dict[str, Any]) -> None:
    """Parts, or a single quantity."""
    parts = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [parts, {"type": "string", "description": "all of it, such as 1500 W"}]


class Host(Strict):
    """The host side of a node: memory, drives, and the PCIe link of each device.

    ``devices_per_switch`` devices share the link of their PCIe switch to the host, ``switch_bandwidth`` each way
    (default: that of one device). ``nvme_bandwidth`` is what all drives of a node read together,
    ``nvme_write_bandwidth`` what they write (default: the same). ``update_efficiency`` is the share of
    ``memory_bandwidth`` that a vectorised optimizer on the processors reaches.

    Devices that are processes on the same cores (a machine without accelerators) work ``compute_capacity`` at a time
    at full speed, more of them slow each other down; None: a device has compute of its own. ``collective_load`` is
    the part of a device's cores that its share of a running collective takes.
    """

    memory_bytes: Bytes
    memory_bandwidth: LinkRate
    pcie_bandwidth: LinkRate
    devices_per_switch: Count = 1
    switch_bandwidth: LinkRate | None = None
    nvme_bytes: Bytes | None = None
    nvme_bandwidth: LinkRate | None = None
    nvme_write_bandwidth: LinkRate | None = None
    update_efficiency: Fraction = 0.5
    power: NodePower = Field(NodePower(), json_schema_extra=_or_all_of_it)
    compute_capacity: float | None = Field(None, ge=1, allow_inf_nan=False)
    collective_load: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)


class Disturbance(Strict):
    """A state that jobs found some nodes in: which ones, and the fitted parameters of collectives there.

    A job is disturbed whose own all-reduce inside a node reaches less than ``below`` bytes/s of bus bandwidth.
    """

    below: BytesPerS
    collectives: dict[str, float] = Field(default_factory=dict)


class Jobs(Strict):
    """Collectives inside jobs: ``in_training`` unlike in back-to-back tests, on ``disturbed`` or ``broken`` nodes."""

    in_training: dict[str, float] = Field(default_factory=dict)
    disturbed: Disturbance | None = None
    broken: Disturbance | None = None


class ClusterProfile(Strict):
    """A kind of cluster; the number of nodes is the user's choice.

    ``device`` is a name, a file beside the profile, or a device itself. ``collectives`` holds the fitted parameters
    that :mod:`simpar.cost.collectives` reads, ``jobs`` what differs
    inside jobs.
    """

    name: str
    device: str | Device
    devices_per_node: Count
    scale_up: ScaleUp
    scale_out: ScaleOut | None = None
    host: Host
    price_per_device_hour: UsdPerHour | None = None
    reliability: str | None = Field(None, description="reliability profile of clusters like it, where one is known")
    collectives: dict[str, float] = Field(default_factory=dict)
    jobs: Jobs = Jobs()
    provenance: str = ""
    sources: tuple[str, ...] = ()

    @property
    def domain_size(self) -> int:
        """Devices that reach each other over the scale-up fabric."""
        return self.scale_up.domain or self.devices_per_node

    @model_validator(mode="after")
    def _whole_nodes(self) -> Self:
        if self.domain_size % self.devices_per_node:
            raise ValueError(f"scale_up.domain = {self.domain_size}: allowed: multiples of {self.devices_per_node}")
        if self.devices_per_node % self.host.devices_per_switch:
            raise ValueError(
                f"host.devices_per_switch = {self.host.devices_per_switch}: allowed: divisors of "
                f"{self.devices_per_node}"
            )
        groups = self.scale_out.groups if self.scale_out else None
        if groups and groups.nodes * self.devices_per_node % self.domain_size:
            within = self.domain_size // self.devices_per_node
            raise ValueError(f"scale_out.groups.nodes = {groups.nodes}: allowed: multiples of {within}, of a domain")
        sides = self.scale_up.dims
        if sides and math.prod(sides) != self.domain_size:
            raise ValueError(f"scale_up.dims = {list(sides)}: must hold {self.domain_size} devices, the domain")
        return self


class Between(Strict):
    """What joins the groups: the uplinks of a group together, per direction (left out: they never bind).

    ``latency`` is what a step between groups takes longer than one inside the slower of them.
    """

    bandwidth: LinkRate | None = None
    latency: Seconds = 0.0


class NodeGroup(Strict):
    """Nodes of one kind: a hardware profile and how many."""

    hardware: str | ClusterProfile = Field(
        description="name or file of a hardware profile of one kind of nodes, or the profile itself"
    )
    nodes: Count = Field(1, description="number of nodes")


class MixedProfile(Strict):
    """A cluster of several kinds of nodes; ranks are numbered through the groups in order.

    More nodes than the groups have together come in the same proportion.
    """

    name: str
    groups: tuple[NodeGroup, ...] = Field(min_length=2)
    between: Between = Between()
    provenance: str = ""
    sources: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of all groups together."""
        return sum(group.nodes for group in self.groups)
