"""What an algorithm takes on one group: straight lines in the size, one per protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.table import ALGORITHMS, POINT_TO_POINT, Algorithm
from simpar.cost.collectives.traffic import Edges, occupancy
from simpar.errors import UserError
from simpar.files import choose
from simpar.units import GB, GIB, US

_OWN_SHARES = {"all_gather": "gather_share", "reduce_scatter": "scatter_share"}


@dataclass(frozen=True)
class Candidate:
    """An algorithm on a group before any fitted parameter: hops in sequence, raw links' seconds per byte.

    ``on_bridge`` counts the groups that share the bridge between the halves of a PCIe node, 0 where none crosses it.
    """

    op: str
    algorithm: str
    shape: Shape
    hops: Mapping[str, float]
    port_s_per_byte: float
    network_s_per_byte: float
    mesh_share: float
    on_bridge: int


@dataclass(frozen=True)
class Line:
    """Time of one algorithm and protocol on a shape: ``latency_s + size * seconds_per_byte``."""

    algorithm: str
    protocol: str
    latency_s: float
    seconds_per_byte: float
    rate_cap_bytes_per_s: float | None = None

    def time_s(self, size_bytes: float) -> float:
        """Seconds for a size."""
        return self.latency_s + size_bytes * self.seconds_per_byte


@dataclass(frozen=True)
class Efficiency:
    """Shares of raw bandwidth reached on ports and on NICs."""

    port: float
    nic: float


def candidates(op: str, placed: Placement, algorithm: str = "auto") -> list[Candidate]:
    """The algorithms to consider for the first group of a placement.

    Links count as undamaged: the library chooses before it knows what is degraded. Raises UserError where the
    algorithm that is asked for cannot serve the group.
    """
    first = placed.take(slice(0, 1))
    return [_candidate(op, first, name) for name in _able(op, first, algorithm)]


def considered(op: str, placed: Placement) -> list[Algorithm]:
    """The algorithms that the library considers by itself, for groups of one shape. Raises UserError."""
    modules = [module for module in ALGORITHMS.values() if module.automatic(op, placed.shape)]
    able = [module for module in modules if module.refuses(op, placed) is None]
    if not able:
        reasons = sorted({str(module.refuses(op, placed)) for module in modules})
        raise UserError(f"{op} on {placed.members} ranks: {'; '.join(reasons)}")
    return able


def _able(op: str, placed: Placement, algorithm: str) -> list[str]:
    if algorithm == "auto":
        return [module.NAME for module in considered(op, placed)]
    choose(algorithm, (*ALGORITHMS, "auto"), "collective algorithm")
    reason = ALGORITHMS[algorithm].refuses(op, placed)
    if reason is not None:
        others = ", ".join(["auto", *serving(op, placed)])
        raise UserError(f"algorithm {algorithm} for {op}: {reason}; allowed here: {others}")
    return [algorithm]


def serving(op: str, placed: Placement) -> list[str]:
    """Names of all algorithms that can serve the groups of a placement."""
    return [name for name, module in ALGORITHMS.items() if module.refuses(op, placed) is None]


def _candidate(op: str, placed: Placement, name: str) -> Candidate:
    module, cluster = ALGORITHMS[name], placed.cluster
    loads = module.loads(op, placed)
    kind, beside = cluster.profile.scale_up.kind, placed.shape.per_domain
    return Candidate(
        op=op,
        algorithm=name,
        shape=placed.shape,
        hops=module.hops(op, placed.shape),
        port_s_per_byte=_slowest(occupancy([loads.ports], cluster.num_links), placed),
        network_s_per_byte=_slowest(occupancy([loads.network], cluster.num_links), placed),
        # a mesh port is the sum of the links to all others, of which a group uses those to its members
        mesh_share=max(beside - 1, 1) / max(cluster.domain_size - 1, 1) if kind == "mesh" else 1.0,
        on_bridge=_on_bridge(placed.shape, cluster.profile.devices_per_node) if kind == "pcie" else 0,
    )


def _on_bridge(shape: Shape, per_node: int) -> int:
    """Groups that cross between the two halves of a node beside each other, this one included; 0: it does not cross."""
    if shape.per_domain == 1:
        return 0
    span = shape.stride * (shape.per_domain - 1) + 1
    return max(shape.stride, 1) if 2 * span > per_node else 0


def _slowest(edges: Edges, placed: Placement) -> float:
    return float((edges.coefficient / placed.cluster.nominal_capacity(edges.link_id)).max(initial=0.0))


def efficiency(candidate: Candidate, values: Mapping[str, float]) -> Efficiency:
    """Shares of ports and NICs that an algorithm reaches on its shape, in its full-bandwidth protocol."""
    port_name, nic_name = ALGORITHMS[candidate.algorithm].RATES[candidate.op]
    shape, port = candidate.shape, values[port_name] * candidate.mesh_share
    if port_name == "port_efficiency":
        port *= 1 - values["pair_loss"] * (2 / max(shape.per_domain, 2)) ** 2
        port *= values["far_port_share"] if shape.num_domains > 1 else 1.0
        port *= values[_OWN_SHARES[candidate.op]] if candidate.op in _OWN_SHARES else 1.0
    port *= (1 - values["port_scale_loss"]) ** max(math.log2(shape.per_domain) - 1, 0.0)
    if candidate.on_bridge:
        port = min(port, _bridge_share(candidate, values))
    doublings = max(math.log2(shape.num_domains) - 1, 0.0)
    kept = 1 - values["nic_scale_loss"]
    if candidate.op in ("all_gather", "reduce_scatter"):
        kept *= 1 - values["gather_scale_loss"]
    return Efficiency(port, values[nic_name] * kept**doublings)


def _bridge_share(candidate: Candidate, values: Mapping[str, float]) -> float:
    """Share of a port at which data cross between the sockets of a PCIe node beside the other groups that do.

    A ring crosses with one flow each way. Of an all-to-all every member of one half sends to every one of the other:
    n^2/4 flows, which carry n/4 of what a member sends.
    """
    members = candidate.shape.per_domain
    exchange = candidate.op == "all_to_all"
    flows = members * members / 4 if exchange else 1.0
    crossing = flows / (members - 1) if exchange else 1.0  # bytes on the bridge for one on a port
    flows *= candidate.on_bridge
    reached = values["host_bridge_share"] * flows / (flows + values["host_bridge_flows"])
    return reached / (crossing * candidate.on_bridge)


def lines(candidate: Candidate, values: Mapping[str, float]) -> list[Line]:
    """One line per protocol, under given parameters (see :mod:`simpar.cost.collectives.parameters`)."""
    reached = efficiency(candidate, values)
    slope = max(candidate.port_s_per_byte / reached.port, candidate.network_s_per_byte / reached.nic)
    travel_us = sum(values[key] * count for key, count in candidate.hops.items())
    late_us = values["far_member_us" if candidate.shape.num_domains > 1 else "member_us"]
    late_s = candidate.shape.members * late_us * US
    # late members wait for each other once a gibibyte, as tests of that size show
    caps = [cap for cap in (_rate_cap(candidate, values), GIB / late_s if late_s else None) if cap]
    cap = min(caps, default=None)
    found = []
    for protocol in ALGORITHMS[candidate.algorithm].PROTOCOLS:
        wait_us = values["peer_wait_us"] if candidate.op == "send" else 0.0
        latency_us = (
            values["base_us"] + wait_us + late_s / US + travel_us * values.get(f"{protocol}_hop_factor", 1.0)
        )
        per_byte = max(slope / protocol_share(protocol, values), 1 / cap if cap else 0.0)
        found.append(Line(candidate.algorithm, protocol, latency_us * US, per_byte, cap))
    return found


def protocol_share(protocol: str, values: Mapping[str, float]) -> float:
    """Bandwidth of a protocol over that of Simple."""
    return values.get(f"{protocol}_efficiency", 1.0)


def _rate_cap(candidate: Candidate, values: Mapping[str, float]) -> float | None:
    """Channels bound every message between domains, also those that make up an all-to-all."""
    if candidate.op not in POINT_TO_POINT or candidate.shape.num_domains == 1:
        return None
    messages = candidate.shape.members if candidate.op == "all_to_all" else 1
    return messages * values["p2p_channels"] * values["p2p_channel_gb_per_s"] * GB


def envelope_s(found: Sequence[Line], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time of the best line at every size."""
    best: NDArray[np.float64] = np.min(
        [line.latency_s + sizes * line.seconds_per_byte for line in found], axis=0
    )
    return best
