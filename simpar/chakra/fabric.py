"""The cluster in the form of ASTRA-sim's analytical network: switches in dimensions, links with one rate and latency.

Further properties of a fabric cannot be expressed there and are listed. Bandwidths are those that rings reach on the
profile, and latencies those of its ring steps, because a message there takes latency plus bytes over bandwidth.
Sources: astra-sim, examples/system/native_collectives/HGX-H100-validated.json (keys of a system), examples/network/
analytical/HGX-H100-validated.yml; astra-network-analytical, which counts a GB as 2^30 bytes and two links between
neighbours of a switch.
"""

import json
from collections.abc import Iterator

from simpar.cost.collectives.parameters import parameters
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.units import GIB, GIGA, US

LINKS_THROUGH_A_SWITCH = 2
SWITCHED = ("nvswitch", "pcie", "shared_memory")
RING, DIRECT = "ring", "direct"


@dataclass(frozen=True)
class Dimension:
    """Devices, or nodes, that reach each other alike: bytes/s of each per direction, seconds of a step between two."""

    topology: str
    size: int
    bandwidth_bytes_per_s: float
    step_s: float

    @property
    def link_ns(self) -> float:
        """Latency of one link."""
        links = LINKS_THROUGH_A_SWITCH if self.topology == "Switch" else 1
        return round(self.step_s * GIGA / links, 3)

    @property
    def link_gib_per_s(self) -> float:
        """Rate of one link: a device of a full mesh has one to each other."""
        links = self.size - 1 if self.topology == "FullyConnected" else 1
        return round(self.bandwidth_bytes_per_s / GIB / links, 6)


def dimensions(cluster: Cluster) -> tuple[Dimension, ...] | None:
    """The dimensions of the network from the inside out; None unless it consists of switches and full meshes."""
    if cluster.is_mixed or cluster.profile.scale_up.kind == "torus":
        return None
    profile, fitted = cluster.profile, parameters(cluster)
    inside, out, world = profile.scale_up, profile.scale_out, cluster.world_size
    domain = min(profile.domain_size, world)
    result = []
    if domain > 1:
        topology = "Switch" if inside.kind in SWITCHED else "FullyConnected"
        reached = inside.bandwidth * fitted["port_efficiency"]
        result.append(Dimension(topology, domain, reached, fitted["port_hop_us"] * US))
    if world > domain and out is not None:
        share = out.nics_per_node * out.nic_bandwidth / profile.devices_per_node
        step = fitted["nic_hop_us"] * US
        result.append(Dimension("Switch", world // domain, share * fitted["nic_efficiency"], step))
    return tuple(result)


def network_text(dims: tuple[Dimension, ...]) -> str:
    """The network as YAML: GiB/s and ns of every dimension."""
    rows: dict[str, list[str] | list[int] | list[float]] = {
        "topology": [each.topology for each in dims],
        "npus_count": [each.size for each in dims],
        "bandwidth": [each.link_gib_per_s for each in dims],
        "latency": [each.link_ns for each in dims],
    }
    return "".join(f"{key}: [ {', '.join(str(value) for value in values)} ]\n" for key, values in rows.items())


def system_text(cluster: Cluster, num_dimensions: int) -> str:
    """The system as JSON: rings in every dimension, undivided collectives, compute times from the traces."""
    many = max(num_dimensions, 1)
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": [RING] * many,
        "all-gather-implementation": [RING] * many,
        "reduce-scatter-implementation": [RING] * many,
        "all-to-all-implementation": [DIRECT] * many,
        "collective-optimization": "localBWAware",
        "local-mem-bw": round(cluster.devices[0].memory_bandwidth / GIGA),
        "boost-mode": 0,
    }
    return json.dumps(system, indent=2) + "\n"


def list_unexpressed(cluster: Cluster) -> Iterator[str]:
    """Properties of the fabric that the profile states and the files cannot express, in words."""
    if cluster.is_mixed:
        yield "no network.yml: nodes of several kinds have no place in one"
        return
    profile, fitted = cluster.profile, parameters(cluster)
    if profile.scale_up.kind == "torus":
        yield "no network.yml: a box of a torus, with wraps on some sides, has no place in one"
        return
    if cluster.world_size > 1:
        yield (
            f"launch and rendezvous ({fitted['base_us']:g} us of a collective, {fitted['send_us']:g} us more of a "
            "message), trees, protocols for short messages and reduction in switches have no place in the files"
        )
    out = profile.scale_out
    if out is not None and cluster.leaves_bind and cluster.world_size > profile.domain_size:
        above = f", groups of {out.groups.nodes} nodes" if out.groups else ""
        oversubscribed = f"oversubscription {out.oversubscription:g}{above}"
        yield f"uplinks of leaves ({oversubscribed}, degraded links): no place in network.yml"
