"""Tables of measured collectives: time or bandwidth by operation, size, devices and fabric.

Columns: ``op, gpu_type, fabric, n_gpus, n_nodes, message_bytes`` and ``time_us``, ``busbw_GBps`` or ``algbw_GBps``.
``hardware`` names a profile in place of device and fabric, ``algorithm`` (auto, ring, nvls, sharp) how it ran. Bus
bandwidth is that of nccl-tests: size over time, times 2 (n - 1) / n for all-reduce and (n - 1) / n for others.
"""

from collections.abc import Sequence
from functools import lru_cache

from simpar.cost.collectives.algorithm import bus_factor
from simpar.cost.collectives.choice import collective_time_s
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.units import GB, US
from simpar.validation.cells import Row, Unmodelled, measurement, read_count, read_word, text
from simpar.validation.devices import hardware_of

COLUMNS = ("op", "gpu_type", "n_gpus", "message_bytes")
LARGE_BYTES = 2.0**33  # the size of "peak, large message"
OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all", "sendrecv": "send", "collective_permute": "send",
}  # fmt: skip
_ALGORITHMS = {name: name for name in ("auto", "ring", "nvls", "sharp")}


@dataclass(frozen=True)
class MeasuredCall:
    """One measured call: ``per_domain`` ranks in each of ``domains`` scale-up domains."""

    profile: str
    op: str
    algorithm: str
    domains: int
    per_domain: int
    size_bytes: float
    time_s: float


def call(row: Row) -> MeasuredCall:
    """The collective of a row. Raises Unmodelled with the reason."""
    if reason := text(row, "not_modelled"):
        raise Unmodelled(reason)
    if text(row, "op") not in OPS:
        raise Unmodelled(f"{text(row, 'op')}: no collective of this library")
    profile = hardware_of({**row, "interconnect": text(row, "fabric")})
    ranks, size = read_count(row, "n_gpus", 8), measurement(row, "message_bytes") or LARGE_BYTES
    time = read_measured_s(row, ranks, size)
    if time is None:
        raise Unmodelled("nothing measured (no time, no bandwidth)")
    domain = load_cluster(profile, 1).domain_size
    domains = -(-ranks // domain) if domain > 8 else read_count(row, "n_nodes", -(-ranks // domain))
    if ranks % domains:
        raise Unmodelled("domains of different sizes")
    op, per_domain = OPS[text(row, "op")], ranks // domains
    if op == "send":
        domains, per_domain = (2, 1) if domains > 1 else (1, 2)
    return MeasuredCall(profile, op, read_word(row, "algorithm", _ALGORITHMS, "auto"), domains, per_domain, size, time)


def read_measured_s(row: Row, ranks: int, size_bytes: float) -> float | None:
    """The measured time in seconds, or the time that the bus (or algorithm) bandwidth implies."""
    time_us, bus = measurement(row, "time_us"), measurement(row, "busbw_GBps")
    if time_us:
        return time_us * US
    if bus:
        return size_bytes * bus_factor(text(row, "op"), ranks) / (bus * GB)
    rate = measurement(row, "algbw_GBps")
    return size_bytes / (rate * GB) if rate else None


def predict(calls: Sequence[MeasuredCall]) -> list[float | str]:
    """Predicted seconds of calls in order, or the reason why one cannot be predicted."""
    return [_seconds(each) for each in calls]


def _seconds(each: MeasuredCall) -> float | str:
    try:
        cluster = cluster_for(each.profile, each.domains, sharp=each.algorithm == "sharp")
        result = collective_time_s(
            each.op, each.size_bytes, (each.domains, each.per_domain), cluster, algorithm=each.algorithm
        )
    except UserError as error:
        return str(error)
    return float(result)


@lru_cache(maxsize=256)
def cluster_for(profile: str, domains: int, *, sharp: bool) -> Cluster:
    """A cluster that just holds ``domains`` scale-up domains; ``sharp``: switches reduce."""
    domain = load_cluster(profile, 1)
    nodes = max(domains * domain.domain_size // domain.profile.devices_per_node, 1)
    cluster = load_cluster(profile, nodes)
    if not sharp or cluster.profile.scale_out is None:
        return cluster
    out = cluster.profile.scale_out.model_copy(update={"sharp": True})
    return Cluster(cluster.profile.model_copy(update={"scale_out": out}), cluster.nodes)
