"""A cluster whose collectives run at bandwidths that a job measured on it, not at those of its profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import regular
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.units import GIB

REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")
MEASURES = (*REDUCTIONS, *(f"intra_{op}" for op in REDUCTIONS))
_PORTS = ("port_efficiency", "nvls_efficiency", "exchange_efficiency", "send_efficiency")
_NICS = ("nic_efficiency", "exchange_nic_efficiency")
_LEAST = 1e-4


def calibrated(cluster: Cluster, measured: Mapping[str, float], *, size_bytes: float = float(GIB)) -> Cluster:
    """The cluster in the state that a job found it in.

    ``measured`` holds bus bandwidths in bytes/s of all_reduce, reduce_scatter or all_gather over all devices
    ("all_reduce") or within a node ("intra_all_reduce"), for ``size_bytes``. One factor on the shares of
    ports reproduces the node, one on the shares of NICs the whole; all_reduce decides where several are
    given, since tests of the others often copy as well. A bandwidth beyond what latency and links allow gives
    the fastest state. Raises UserError for an unknown name or a value that is not positive.
    """
    for name, value in measured.items():
        choose(name, MEASURES, "measured bandwidth")
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"measured bandwidth {name} = {value}: must be greater than 0")
    domains = -(-cluster.world_size // cluster.domain_size)
    inside = {op: measured[f"intra_{op}"] for op in REDUCTIONS if f"intra_{op}" in measured}
    whole = {op: measured[op] for op in REDUCTIONS if op in measured}
    if domains == 1:
        return _matched(cluster, {**inside, **whole}, 1, _PORTS, size_bytes)
    node = _matched(cluster, inside, 1, _PORTS, size_bytes)
    # what was measured over all devices already contains what is lost at that scale
    at_scale = replace(node, state={**node.state, "nic_scale_loss": 0.0}) if whole else node
    return _matched(at_scale, whole, domains, _NICS, size_bytes)


def _matched(
    cluster: Cluster, measured: Mapping[str, float], domains: int, names: tuple[str, ...], size_bytes: float
) -> Cluster:
    """The cluster with one factor on some parameters, so that the first measurement is met."""
    if not measured:
        return cluster
    op, bus_bytes_per_s = next(iter(measured.items()))
    members = min(cluster.world_size, domains * cluster.domain_size)
    factor = (2.0 if op == "all_reduce" else 1.0) * (members - 1) / members
    target_s = size_bytes * factor / bus_bytes_per_s
    values = parameters(cluster)

    def state(share: float) -> Cluster:
        changed = {name: min(values[name] * share, 1.0) for name in names}
        return replace(cluster, state={**cluster.state, **changed})

    def time_s(share: float) -> float:
        return float(collective_time_s(op, size_bytes, regular(domains, members // domains), state(share)))

    return state(_solve(time_s, target_s, high=1 / min(values[name] for name in names)))


def _solve(time_s: Callable[[float], float], target_s: float, *, high: float) -> float:
    """The factor at which a falling time meets its target, by bisection of the logarithm."""
    low = _LEAST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if time_s(middle) > target_s else (low, middle)
    return high
