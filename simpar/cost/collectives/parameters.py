"""Fitted parameters of collectives: names, meanings, analytic defaults, and how a cluster overrides them.

Latencies are microseconds and rates GB/s here, because people read them in cluster files.
"""

from collections.abc import Mapping
from functools import lru_cache

from simpar.errors import UserError
from simpar.files import suggest
from simpar.hardware.cluster import Cluster
from simpar.units import GB, US

# name: (default, what it is). Defaults: the latency and efficiency tables of NCCL 2.30's tuner
# (graph/tuning.cc), with latencies about doubled, as measured logs ask for.
PARAMETERS: dict[str, tuple[float, str]] = {
    "base_us": (20.0, "launch and rendezvous of one collective"),
    "member_us": (0.0, "one more member that every collective and message waits for"),
    "far_member_us": (0.0, "the same where the members are on several nodes"),
    "peer_wait_us": (0.0, "waiting for the peer before a point-to-point message goes"),
    "port_hop_us": (3.4, "one ring or tree step between devices of a domain, Simple protocol"),
    "far_hop_us": (6.0, "one ring step inside a fully used node, where the ring spans several domains"),
    "nic_hop_us": (14.0, "one ring step between domains, Simple protocol"),
    "tree_hop_us": (28.0, "one tree step between domains, Simple protocol"),
    "nvls_us": (25.0, "one reduction in the scale-up switch"),
    "sharp_us": (31.0, "one reduction in the network switches"),
    "send_us": (10.0, "one point-to-point message, beyond the launch"),
    "near_peer_us": (0.5, "one more peer of an all-to-all in the same domain"),
    "peer_us": (3.0, "one more peer of an all-to-all in another domain"),
    "ll_hop_factor": (0.3, "hop latency of the LL protocol over that of Simple"),
    "ll_efficiency": (0.25, "bandwidth of the LL protocol over that of Simple"),
    "ll128_hop_factor": (0.55, "hop latency of the LL128 protocol over that of Simple"),
    "ll128_efficiency": (0.92, "bandwidth of the LL128 protocol over that of Simple"),
    "port_efficiency": (0.81, "share of the scale-up port that rings and trees reach"),
    "pair_loss": (0.2, "fraction of port_efficiency lost by a ring of 2 ranks; a ring of N loses (2/N)^2 of it"),
    "port_scale_loss": (0.0, "share of a port lost per doubling of a group inside a domain beyond two"),
    "gather_share": (1.0, "part of port_efficiency left to all-gathers"),
    "scatter_share": (1.0, "part of port_efficiency left to reduce-scatters"),
    "far_port_share": (0.95, "part of port_efficiency left to rings and trees that span domains"),
    "host_bridge_share": (
        0.75,
        "bandwidth between the two sockets of a PCIe node, all flows together, over that of a port",
    ),
    "host_bridge_flows": (0.5, "flows at which it reaches half of that: f share f / (f + this)"),
    "nvls_efficiency": (0.68, "share of the scale-up port that in-switch reduction reaches"),
    "exchange_efficiency": (0.77, "share of the scale-up port that an all-to-all reaches"),
    "nic_efficiency": (0.94, "share of the NICs that rings and trees reach"),
    "exchange_nic_efficiency": (0.92, "share of the NICs that an all-to-all reaches"),
    "dispatch_gb_per_s": (371.0, "copies by rank that the kernels of a multi-domain dispatch move when run alone"),
    "dispatch_far_gb_per_s": (
        180.0,
        "copies by domain that they move when run alone (both: benchmarks/fit_dispatch.py)",
    ),
    "nic_scale_loss": (0.0, "share of NIC bandwidth lost per doubling of the domains beyond two"),
    "gather_scale_loss": (0.0, "the same of gathers and scatters alone, beside nic_scale_loss"),
    "send_efficiency": (0.81, "share of the scale-up port that a point-to-point message reaches"),
    "p2p_channel_gb_per_s": (14.0, "rate of one channel of a point-to-point message between domains"),
    "socket_gb_per_s": (5.25, "what a thread moves through TCP sockets, in or out: 42 Gb/s [Cai et al. 2021, SIGCOMM]"),
    "socket_threads": (
        0.5,
        "threads that send for one card over sockets: of NCCL's proxy, which receives too, half of one",
    ),
    "p2p_channels": (
        2.0,
        "channels of a point-to-point message between domains; one for every NIC of a device where those are more",
    ),
}


@lru_cache(maxsize=256)
def _merged(items: tuple[tuple[str, float], ...], name: str) -> Mapping[str, float]:
    values = {key: default for key, (default, _) in PARAMETERS.items()}
    for key, value in items:
        if key not in PARAMETERS:
            raise UserError(f"hardware {name}: unknown key collectives.{key}{suggest(key, PARAMETERS)}")
        positive = not key.endswith("_us") and not key.endswith("_loss")
        if value < 0 or (positive and value == 0):
            rule = "must be greater than 0" if positive else "must not be negative"
            raise UserError(f"hardware {name}: collectives.{key} = {value}: {rule}")
        values[key] = value
    return values


def parameters(cluster: Cluster) -> Mapping[str, float]:
    """Parameters of a cluster: defaults, overridden by its profile, overridden by its measured state.

    Groups that span the parts of a mixed cluster have the worst value of these. Raises UserError for an unknown name
    or a value out of range.
    """
    if cluster.is_mixed:
        return _worst(cluster)
    profile = cluster.profile
    said = {**_channels(cluster), **profile.collectives, **cluster.state}
    return _merged(tuple(said.items()), profile.name)


def reached_share(cluster: Cluster) -> float:
    """The largest share of cards of nodes that collectives reach; over TCP, at most what threads of sockets move."""
    values, out = parameters(cluster), cluster.profile.scale_out
    share = max(values["nic_efficiency"], values["exchange_nic_efficiency"])
    if out is None or out.kind != "ethernet":
        return share
    return min(share, values["socket_threads"] * values["socket_gb_per_s"] * GB / out.nic_bandwidth)


def _channels(cluster: Cluster) -> dict[str, float]:
    """Channels of a message where a device has more NICs than the default: NCCL opens one for every NIC.

    Source: NCCL 2.28, ncclTopoGetNchannels (graph/paths.cc), the larger of the NICs that a device's bandwidth needs
    and of 2, which large communicators halve (not modelled: a pipeline's has two ranks).
    """
    out = cluster.profile.scale_out
    nics = out.nics_per_node / cluster.rails if out else 1.0
    return {"p2p_channels": max(PARAMETERS["p2p_channels"][0], nics)}


def _worst(cluster: Cluster) -> Mapping[str, float]:
    """The longest times and smallest shares of all parts; network steps take the latency between parts on top."""
    every = [parameters(part) for part in cluster.parts]
    longer = ("_us", "_loss", "_hop_factor")
    result = {key: (max if key.endswith(longer) else min)(each[key] for each in every) for key in PARAMETERS}
    for key in ("nic_hop_us", "tree_hop_us"):
        result[key] += cluster.latency_between_s / US
    return result
