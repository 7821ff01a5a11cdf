"""A cluster whose collectives run at bandwidths that a job measured on it, not at those of its profile."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.collectives.lines import lines, raw_costs
from simpar.cost.collectives.parameters import parameters
from simpar.cost.collectives.placement import regular_shape, representative
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.units import GIB

REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")
MEASURES = (*REDUCTIONS, *(f"intra_{op}" for op in REDUCTIONS))
_PORTS = ("port_efficiency", "nvls_efficiency", "exchange_efficiency", "send_efficiency")
_NICS = ("nic_efficiency", "exchange_nic_efficiency")
_SCALE, _GATHERS = ("nic_scale_loss",), ("gather_scale_loss",)
_LEAST = 1e-4
_TESTED_BYTES = float(GIB)
"""Size of the collectives with which jobs measure their bandwidths."""


def calibrate_cluster(cluster: Cluster, measured: Mapping[str, float]) -> Cluster:
    """The cluster in the state that a job found it in.

    ``measured`` holds bus bandwidths in bytes/s of all_reduce, reduce_scatter or all_gather over all devices
    ("all_reduce") or within a node ("intra_all_reduce"), for a gibibyte. One factor on the shares of ports reproduces
    the test within a node. Another one, on the shares of NICs (two nodes) or on the loss at scale (more nodes),
    reproduces the test over all devices. Where several collectives are given, all_reduce decides, because tests of the
    others often include copies; beyond two nodes gathers get a loss of their own, from which the copying that the test
    inside a node shows is excluded. A bandwidth beyond what latency and links allow gives the fastest state. Raises
    UserError for an unknown name or a value that is not positive.
    """
    for name, value in measured.items():
        choose(name, MEASURES, "measured bandwidth")
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"measured bandwidth {name} = {value}: must be greater than 0")
    domains = -(-cluster.world_size // cluster.domain_size)
    inside = {op: measured[f"intra_{op}"] for op in REDUCTIONS if f"intra_{op}" in measured}
    whole = {op: measured[op] for op in REDUCTIONS if op in measured}
    if domains == 1:
        inside, whole = {**inside, **whole}, {}
    node = _matched(_disturbed(cluster, inside), inside, 1, _PORTS)
    if not whole or node.state.get("member_us"):
        return node  # the test over all devices shows how late members are, and not the bandwidth of links
    if domains == 2:
        return _matched(node, whole, domains, _NICS)
    return _at_scale(node, inside, whole, domains)


def _at_scale(node: Cluster, inside: Mapping[str, float], whole: Mapping[str, float], domains: int) -> Cluster:
    """The cluster whose lack of bandwidth is a loss at scale; two nodes reach each other as the profile says."""
    result = _matched(node, whole, domains, _SCALE)
    if result.state["nic_scale_loss"] == 0.0:
        result = _matched(result, whole, domains, _NICS)
    gather = {op: value for op, value in whole.items() if op == "all_gather"}
    if "all_reduce" not in whole or not gather:
        return result
    copying_s = 0.0
    if "all_gather" in inside:
        alone_s = float(collective_time_s("all_gather", _TESTED_BYTES, (1, node.domain_size), node))
        took_s = _seconds("all_gather", inside["all_gather"], node.domain_size)
        copying_s = max(took_s - alone_s, 0.0)
    return _matched(result, gather, domains, _GATHERS, beside_s=copying_s)


def _seconds(op: str, bus_bytes_per_s: float, members: int) -> float:
    """Seconds of a collective from its bus bandwidth, as nccl-tests define it."""
    return _TESTED_BYTES * (2.0 if op == "all_reduce" else 1.0) * (members - 1) / members / bus_bytes_per_s


def _disturbed(cluster: Cluster, inside: Mapping[str, float]) -> Cluster:
    """The cluster in its profile's broken or disturbed state, if an all-reduce inside a node was that slow."""
    measured = inside.get("all_reduce")
    for known in (cluster.profile.jobs.broken, cluster.profile.jobs.disturbed):
        if known is not None and measured is not None and measured < known.below:
            return replace(cluster, state={**cluster.state, **known.collectives})
    return cluster


def _matched(
    cluster: Cluster, measured: Mapping[str, float], domains: int, names: tuple[str, ...], *, beside_s: float = 0.0
) -> Cluster:
    """The cluster with one factor on the parameters ``names`` that meets the first measurement less ``beside_s``."""
    if not measured:
        return cluster
    op, bus_bytes_per_s = next(iter(measured.items()))
    members = min(cluster.world_size, domains * cluster.domain_size)
    target_s = _seconds(op, bus_bytes_per_s, members) - beside_s
    values, lost = parameters(cluster), names in (_SCALE, _GATHERS)
    able = raw_costs(op, representative(regular_shape(domains, members // domains), cluster), "auto")

    def changed(share: float) -> dict[str, float]:
        if lost:
            return dict.fromkeys(names, max(1.0 - share, 0.0))
        return {name: min(values[name] * share, 1.0) for name in names}

    def time_s(share: float) -> float:
        state = {**values, **changed(share)}
        return min(line.time_s(_TESTED_BYTES) for each in able for line in lines(each, state))

    high = 1.0 if lost else 1 / min(values[name] for name in names)
    solution = _solve(time_s, target_s, high=high)
    return replace(cluster, state={**cluster.state, **changed(solution)})


def _solve(time_s: Callable[[float], float], target_s: float, *, high: float) -> float:
    """The factor at which a time that falls with it meets its target, by bisection of the logarithm."""
    low = _LEAST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if time_s(middle) > target_s else (low, middle)
    return high
