"""Fitted parameters of collectives: names, meanings, analytic defaults, and how a cluster overrides them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from simpar.errors import UserError
from simpar.files import suggest
from simpar.hardware.cluster import Cluster
from simpar.units import GB, US

# name: (default, what it is). Defaults follow the latency and efficiency tables of NCCL's tuner
# (graph/tuning.cc, NCCL 2.30), with latencies doubled as measured logs ask for.
PARAMETERS: dict[str, tuple[float, str]] = {
    "port_efficiency": (0.82, "share of the scale-up port that rings, trees and pairwise exchange reach"),
    "nvls_efficiency": (0.85, "share of the scale-up port that in-switch reduction (NVLS) reaches"),
    "nic_efficiency": (0.92, "share of NIC bandwidth that rings and trees reach"),
    "base_latency_s": (15 * US, "launch and rendezvous of one collective"),
    "port_hop_latency_s": (3.4 * US, "one step between devices of a scale-up domain, large messages (Simple)"),
    "nic_hop_latency_s": (14 * US, "one step between domains, large messages (Simple)"),
    "p2p_channel_bytes_per_s": (14.0 * GB, "rate of one channel of a point-to-point message between nodes"),
    "p2p_channels": (2.0, "channels of a point-to-point message between nodes"),
}


@lru_cache(maxsize=256)
def _merged(items: tuple[tuple[str, float], ...], name: str) -> Mapping[str, float]:
    values = {key: default for key, (default, _) in PARAMETERS.items()}
    for key, value in items:
        if key not in PARAMETERS:
            raise UserError(f"hardware {name}: unknown key collectives.{key}{suggest(key, PARAMETERS)}")
        if not value >= 0:
            raise UserError(f"hardware {name}: collectives.{key} = {value}: must not be negative")
        values[key] = value
    return values


def parameters(cluster: Cluster) -> Mapping[str, float]:
    """Parameters of a cluster: defaults, overridden by its profile, overridden by its measured state.

    Raises UserError for an unknown name or a negative value.
    """
    profile = cluster.profile
    return _merged((*profile.collectives.items(), *cluster.state.items()), profile.name)
