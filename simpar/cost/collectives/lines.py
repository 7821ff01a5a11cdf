"""What an algorithm takes on one group: straight lines in the size, one per protocol."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives.algorithm import Algorithm, base_op, is_exchange
from simpar.cost.collectives.algorithms import ALGORITHMS
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, is_port, occupancy
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import choose
from simpar.units import GB, GIB, KIB, US

_OWN_SHARES = {"all_gather": "gather_share", "reduce_scatter": "scatter_share"}

STEP_BYTES = 512 * KIB  # a channel's buffer of 4 MiB has 8 steps [NCCL, NCCL_BUFFSIZE and NCCL_STEPS]
NETWORK_HOPS = ("nic_hop_us", "tree_hop_us")
DATA_SHARES = {"ll": 1 / 2, "ll128": 15 / 16}
"""Of what a protocol sends, the part that is data; the rest are flags [NCCL, device/prims_ll.h, prims_ll128.h]."""
DEVICES_OF_SOCKET = 4  # of PCIe nodes: what one socket, or its switch, has lanes for


@dataclass(frozen=True)
class RawCost:
    """An algorithm on a group before any fitted parameter: hops in sequence, and seconds per byte of the raw links.

    ``mesh_share`` is the part of a mesh port that the group's links make up. ``on_bridge`` counts the groups that share
    the bridge between the sockets of a PCIe node, 0 where this one does not cross it. ``chain`` counts the network hops
    that wait for a whole step, ``step_bytes`` of which are under way on all NICs of a node. ``on_thread`` are the bytes
    that a thread passes on per byte of size over TCP, 0 over other networks; ``wire_s`` is the time of a message there.
    """

    op: str
    algorithm: str
    shape: GroupShape
    hops: Mapping[str, float]
    port_s_per_byte: float
    network_s_per_byte: float
    mesh_share: float
    on_bridge: int
    chain: int = 0
    step_bytes: float = 0.0
    on_thread: float = 0.0
    wire_s: float = 0.0


@dataclass(frozen=True)
class Line:
    """Time of one algorithm and protocol on a shape: ``latency_s + size * seconds_per_byte``.

    ``port_share`` and ``nic_share`` are the shares that it reaches of the bandwidth of ports and NICs.
    """

    algorithm: str
    protocol: str
    latency_s: float
    seconds_per_byte: float
    rate_cap_bytes_per_s: float | None = None
    port_share: float = 1.0
    nic_share: float = 1.0

    def time_s(self, size_bytes: float) -> float:
        """Seconds for a size."""
        return self.latency_s + size_bytes * self.seconds_per_byte

    def share(self, of_port: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The share of bandwidth that it reaches on each link: ports where ``of_port``, else links of the network."""
        return np.where(of_port, self.port_share, self.nic_share)


def raw_costs(op: str, placed: Placement, algorithm: str = "auto") -> list[RawCost]:
    """The algorithms to consider for the first group of a placement.

    Links count as undamaged: the library chooses without knowing what is degraded. Raises UserError where the
    algorithm that is asked for cannot serve the group.
    """
    first = placed.take(slice(0, 1))
    if algorithm == "auto":
        return [raw_cost(op, first, each, unit_loads(op, first, each)) for each in list_considered(op, first)]
    asked = ALGORITHMS[choose(algorithm, (*ALGORITHMS, "auto"), "collective algorithm")]
    reason = asked.refuses(op, first)
    if reason is not None:
        others = ", ".join(["auto", *list_serving(op, first)])
        raise UserError(f"algorithm {algorithm} for {op}: {reason}; allowed here: {others}")
    return [raw_cost(op, first, asked, unit_loads(op, first, asked))]


def list_considered(op: str, placed: Placement) -> list[Algorithm]:
    """The algorithms that the library considers by itself, for groups of one shape. Raises UserError."""
    asked = [each for each in ALGORITHMS.values() if base_op(op) in each.OPS and each.automatic(op, placed.shape)]
    refused = {each.NAME: each.refuses(op, placed) for each in asked}
    able = [each for each in asked if refused[each.NAME] is None]
    if not able:
        raise UserError(f"{op} on {placed.members} ranks: {'; '.join(sorted(map(str, refused.values())))}")
    return able


def list_serving(op: str, placed: Placement) -> list[str]:
    """Names of all algorithms that can serve the groups of a placement."""
    return [name for name, each in ALGORITHMS.items() if each.refuses(op, placed) is None]


def unit_loads(op: str, placed: Placement, algorithm: Algorithm) -> Edges:
    """Bytes on links per byte of size of an algorithm on the groups of a placement, before any efficiency."""
    return occupancy(algorithm.loads(op, placed), placed.cluster.num_links)


def raw_cost(op: str, placed: Placement, algorithm: Algorithm, loads: Edges) -> RawCost:
    """The raw cost of an algorithm on a single group, whose ``loads`` are those of :func:`unit_loads`."""
    cluster, out = placed.cluster, placed.cluster.profile.scale_out
    per_byte = loads.coefficient / cluster.nominal_capacity(loads.link_id)
    port = is_port(loads.link_id, cluster)
    kind, beside = cluster.profile.scale_up.kind, placed.shape.per_domain
    return RawCost(
        op=op,
        algorithm=algorithm.NAME,
        shape=placed.shape,
        hops=algorithm.hops(op, placed.shape),
        port_s_per_byte=float(per_byte[port].max(initial=0.0)),
        network_s_per_byte=float(per_byte[~port].max(initial=0.0)),
        # a mesh port is the sum of the links to all others, of which a group uses those to its members
        mesh_share=max(beside - 1, 1) / max(cluster.domain_size - 1, 1) if kind == "mesh" else 1.0,
        on_bridge=_on_bridge(placed.shape, cluster.profile.devices_per_node) if kind == "pcie" else 0,
        chain=algorithm.chain(op, placed.shape),
        step_bytes=STEP_BYTES * (out.nics_per_node if out else 0.0),
        **_over_sockets(op, placed, loads),
    )


def _over_sockets(op: str, placed: Placement, loads: Edges) -> dict[str, float]:
    """What NCCL's sockets add to a raw cost, of groups that span domains over TCP; nothing for others.

    A ring or tree enters and leaves a node through one rank for each card; in an exchange every rank sends.
    """
    cluster, out = placed.cluster, placed.cluster.profile.scale_out
    if out is None or out.kind != "ethernet" or placed.shape.num_domains == 1:
        return {}
    cards = np.isin(cluster.block_of(loads.link_id), [cluster.blocks.index(name) for name in ("nic_tx", "nic_rx")])
    busiest = float(loads.coefficient[cards].max(initial=0.0))
    senders = max(placed.shape.per_domain / cluster.rails, 1.0) if is_exchange(op) else 1.0
    return {"on_thread": busiest / senders, "wire_s": out.latency}


def _on_bridge(shape: GroupShape, per_node: int) -> int:
    """Groups that cross between the sockets of a node at the same time, this one included; 0 where it does not cross.

    A node has two sockets with lanes for at least DEVICES_OF_SOCKET devices each; smaller nodes are on one socket.
    """
    if shape.per_domain == 1:
        return 0
    span = shape.stride * (shape.per_domain - 1) + 1
    return max(shape.stride, 1) if 2 * span > max(per_node, 2 * DEVICES_OF_SOCKET) else 0


def _shares(raw_cost: RawCost, values: Mapping[str, float]) -> tuple[float, float]:
    """Shares of ports and NICs that an algorithm reaches on its shape, in its full-bandwidth protocol."""
    port_name, nic_name = ALGORITHMS[raw_cost.algorithm].rates(raw_cost.op)
    shape, port = raw_cost.shape, values[port_name] * raw_cost.mesh_share
    if port_name == "port_efficiency":
        port *= 1 - values["pair_loss"] * (2 / max(shape.per_domain, 2)) ** 2
        port *= values["far_port_share"] if shape.num_domains > 1 else 1.0
        port *= values[_OWN_SHARES[raw_cost.op]] if raw_cost.op in _OWN_SHARES else 1.0
    port *= (1 - values["port_scale_loss"]) ** max(math.log2(shape.per_domain) - 1, 0.0)
    if raw_cost.on_bridge:
        port = min(port, _bridge_share(raw_cost, values))
    doublings = max(math.log2(shape.num_domains) - 1, 0.0)
    kept = 1 - values["nic_scale_loss"]
    if raw_cost.op in _OWN_SHARES:
        kept *= 1 - values["gather_scale_loss"]
    return port, values[nic_name] * kept**doublings


def _bridge_share(raw_cost: RawCost, values: Mapping[str, float]) -> float:
    """Share of a port that the crossing between the sockets of a PCIe node allows, other groups crossing as well.

    A ring crosses with one flow each way. In an all-to-all of n, every member of one half sends to every member of the
    other: n^2/4 flows, which carry n/4 of what a member sends. f flows together reach host_bridge_share x f / (f +
    host_bridge_flows) of a port.
    """
    members = raw_cost.shape.per_domain
    exchange = is_exchange(raw_cost.op)
    flows = members * members / 4 if exchange else 1.0
    crossing = flows / (members - 1) if exchange else 1.0  # bytes on the bridge for one on a port
    flows *= raw_cost.on_bridge
    reached = values["host_bridge_share"] * flows / (flows + values["host_bridge_flows"])
    return reached / (crossing * raw_cost.on_bridge)


def lines(raw_cost: RawCost, values: Mapping[str, float]) -> list[Line]:
    """One line per protocol, under given parameters (see :mod:`simpar.cost.collectives.parameters`).

    A chain of h hops takes two: of S bytes a hop forwards the first min(S, c) before the next one has any, c being one
    step on every NIC (the two rings of a NIC take turns). So S bytes take h min(S, c) at the rate of the network longer
    than their latency and transfer: a line as steep as S (1 + h), and one that starts h c later; the lower one holds.
    Which protocol is the fastest is no matter of it, as in NCCL's own choice (graph/tuning.cc).
    """
    algorithm = ALGORITHMS[raw_cost.algorithm]
    port, nic = _shares(raw_cost, values)
    slope = max(raw_cost.port_s_per_byte / port, raw_cost.network_s_per_byte / nic)
    travel_us = sum(values[key] * count for key, count in raw_cost.hops.items())
    wire_us = raw_cost.wire_s / US * sum(raw_cost.hops.get(key, 0.0) for key in NETWORK_HOPS)
    late_us = values["far_member_us" if raw_cost.shape.num_domains > 1 else "member_us"]
    late_s = raw_cost.shape.members * late_us * US
    threads = values["socket_threads"] * values["socket_gb_per_s"] * GB
    threads = threads / raw_cost.on_thread if raw_cost.on_thread else math.inf
    most = algorithm.rate_cap(raw_cost.op, raw_cost.shape, values) or math.inf
    # late members delay a collective once per gibibyte: it was measured in tests of that size
    most = min(most, GIB / late_s if late_s else math.inf)
    wait_us = values["peer_wait_us"] if raw_cost.op == "send" else 0.0
    hop_s_per_byte = raw_cost.chain * raw_cost.network_s_per_byte / nic
    result = []
    for protocol in algorithm.PROTOCOLS:
        # bandwidth and hops of the low-latency protocols are relative to those of Simple
        share, hop = values.get(f"{protocol}_efficiency", 1.0), values.get(f"{protocol}_hop_factor", 1.0)
        latency_us = values["base_us"] + wait_us + late_s / US + travel_us * hop + wire_us
        cap = min(most, threads * DATA_SHARES.get(protocol, 1.0))  # threads pass on what is sent, flags included
        per_byte, kept = max(slope / share, 1 / cap), None if math.isinf(cap) else cap
        name = raw_cost.algorithm
        result.append(Line(name, protocol, latency_us * US, per_byte, kept, port * share, nic * share))
        if raw_cost.chain:
            whole = replace(result[-1], latency_s=latency_us * US + hop_s_per_byte * raw_cost.step_bytes)
            per_byte += hop_s_per_byte
            result[-1] = replace(result[-1], seconds_per_byte=per_byte, rate_cap_bytes_per_s=1 / per_byte)
            result.append(whole)
    return result


def envelope_s(every_line: Sequence[Line], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of the best line at every size in bytes."""
    return np.asarray(np.min([line.latency_s + sizes * line.seconds_per_byte for line in every_line], axis=0))
