"""Prices of collectives: what they take on a process group, for one size or arrays, in integers of the Program.

A price is one process group with every line that the automatic choice of an algorithm is the lowest of. Groups of a
class that share a link slow each other down in a Program; a price leaves that out, so it is a lower bound, and what
the Program has where a group has its links to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from simpar.cost.collectives.choice import occupied_s_per_byte, offers_and_loads
from simpar.cost.collectives.traffic import is_port
from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.program.blocks.phases import TENSOR, CollectiveUse
from simpar.program.blocks.rank_view import Job
from simpar.program.ir.flow import NO_CAP, drained_ns, quantise, solo_rates, to_cap
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from simpar.units import Floats, Ints, Numbers, to_ns


def is_tensor_parallel(kind: str) -> bool:
    """Whether groups of a kind serve the collectives inside blocks: "tp", or "tp_..." of a stage's own mesh."""
    return kind.split("_")[0] == TENSOR


@dataclass(frozen=True)
class Added:
    """What comes on top of the lines of a library: seconds by call and by byte.

    ``message_s`` agrees on every message, ``dispatch_s`` prepares every tensor-parallel collective;
    ``quantise_s_per_byte``, by operation, makes parameters or gradients narrower than they are.
    """

    message_s: float = 0.0
    dispatch_s: float = 0.0
    quantise_s_per_byte: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(stack: Stack, quantise_s_per_byte: Mapping[str, float] | None = None) -> Added:
        """What a stack adds."""
        return Added(stack.launch.message_s, stack.launch.dispatch_s, quantise_s_per_byte or {})

    def of_call(self, op: str, kind: str) -> tuple[float, float]:
        """Seconds a call, and seconds a byte, of an operation on a group of a kind."""
        call_s = self.message_s if op == "send" else self.dispatch_s * is_tensor_parallel(kind)
        copies = kind.split("_")[0] in (DENSE, EXPERTS) and not kind.endswith("_replicate")
        return call_s, self.quantise_s_per_byte.get(op, 0.0) if copies else 0.0


def calls_ns(
    latency_s: Numbers, added: tuple[float, float], size_bytes: Numbers, count: Numbers
) -> int | Ints:
    """Nanoseconds of ``count`` calls before their bytes drain: latency of the line and what is added to it."""
    per_call, per_byte = added
    took_ns: int | Ints = to_ns(count * (latency_s + per_call + per_byte * size_bytes))
    return took_ns


def occupied_ns(took_ns: ArrayLike, size_bytes: Numbers, count: Numbers, s_per_byte: float) -> Ints:
    """How long calls that take so long slow the kernels beside them: less than that where they wait for a NIC."""
    return np.asarray(np.minimum(took_ns, to_ns(count * size_bytes * s_per_byte)))


def on_time(cluster: Cluster, kind: str) -> Cluster:
    """The cluster as the price of a kind sees it.

    Who is late to a tensor-parallel collective holds up the host that launches it, not the device.
    """
    return cluster.punctual if is_tensor_parallel(kind) else cluster


def in_first_domain(ranks: Ints, cluster: Cluster) -> Ints:
    """The same group int64[N] in the first domain, where domains are alike: it does not meet leaves that bind."""
    size = cluster.domain_size
    first, last = int(ranks.min()) // size, int(ranks.max()) // size
    if cluster.is_mixed or (cluster.leaves_bind and first != last):
        return ranks
    return ranks - first * size


@dataclass(frozen=True)
class Price:
    """Lines of one operation on one group: the lowest is taken, and drains at its ``rate``.

    ``slope_s`` are seconds a byte that the operation takes of each of its ``links`` whichever line is taken;
    ``added_s`` comes on top of every call, ``added_s_per_byte`` of every byte (quantising it); ``occupied`` are seconds
    a byte that kernels beside it are slowed. ``private`` says that all links that can bind are those of its members
    alone.
    """

    latency_s: Floats
    seconds_per_byte: Floats
    rate: Ints
    links: Ints
    slope_s: Floats
    added_s: float = 0.0
    added_s_per_byte: float = 0.0
    occupied: float = 0.0
    private: bool = True

    def slopes_s(self, links: Ints) -> Floats:
        """Seconds a byte that the operation takes of some links, zero of those that it does not use."""
        if not len(self.links):
            return np.zeros(len(links))
        at = np.minimum(np.searchsorted(self.links, links), len(self.links) - 1)
        return np.where(self.links[at] == links, self.slope_s[at], 0.0)

    def time_ns(self, size_bytes: Numbers, count: Numbers = 1) -> Ints:
        """Nanoseconds of ``count`` calls in a row of ``size_bytes`` each; arrays broadcast."""
        sizes, calls = np.asarray(size_bytes, dtype=np.float64), np.asarray(count)
        if not len(self.rate):
            return np.zeros(np.broadcast_shapes(sizes.shape, calls.shape), dtype=np.int64)
        single = len(self.rate) == 1
        line = 0 if single else np.argmin(self.latency_s + sizes[..., None] * self.seconds_per_byte, axis=-1)
        latency_ns = calls_ns(self.latency_s[line], (self.added_s, self.added_s_per_byte), sizes, calls)
        return np.asarray(drained_ns(latency_ns, np.rint(calls * sizes).astype(np.int64), self.rate[line]))

    def use_ns(self, use: CollectiveUse) -> int:
        """Nanoseconds of a collective."""
        return int(self.time_ns(use.size_bytes, use.count))

    def occupied_ns(self, size_bytes: Numbers, count: Numbers = 1) -> Ints:
        """Nanoseconds for which it slows the kernels beside it."""
        return occupied_ns(self.time_ns(size_bytes, count), size_bytes, count, self.occupied)


_NONE = np.zeros(0, dtype=np.int64)
FREE = Price(np.zeros(0), np.zeros(0), _NONE, _NONE, np.zeros(0))


@dataclass
class Prices:
    """Prices on a cluster inside a training step, by operation and group, each made once.

    ``added`` is what a stack adds to calls.
    """

    cluster: Cluster
    added: Added = field(default_factory=lambda: Added())
    _known: dict[tuple[str, bool, tuple[float, float], bytes], Price] = field(default_factory=dict)

    @staticmethod
    def of_job(job: Job, cluster: Cluster) -> Prices:
        """Prices of the collectives of a job inside blocks, and of its messages; degraded links count as whole."""
        return Prices(cluster.whole, Added.of(job.stack))

    @cached_property
    def own(self) -> Ints:
        """The links of rank 0 alone: out of its port and into it, out of its NIC and into it."""
        return self.ends(0, 0)

    @cached_property
    def _punctual(self) -> Cluster:
        return on_time(self.cluster, TENSOR)

    def ends(self, source: int, target: int) -> Ints:
        """The links of two ranks alone: out of the port of one and into that of the other, and so of their NICs."""
        cluster, ranks = self.cluster, np.array([source, target])
        ports, nics = (cluster.port_tx, cluster.port_rx), (cluster.nic_tx, cluster.nic_rx)
        return np.array([end(ranks)[at] for ends in (ports, nics) for at, end in enumerate(ends)])

    def of(self, op: str, ranks: Ints, kind: str = "") -> Price:
        """The price of an operation on the group int64[N] of a kind."""
        if len(ranks) < 2:
            return FREE
        ranks = in_first_domain(np.ascontiguousarray(ranks, dtype=np.int64), self.cluster)
        punctual = is_tensor_parallel(kind)
        added = self.added.of_call(op, kind)
        key = op, punctual, added, ranks.tobytes()
        if key not in self._known:
            price = _price(op, ranks, self._punctual if punctual else self.cluster)
            self._known[key] = replace(price, added_s=added[0], added_s_per_byte=added[1])
        return self._known[key]


def _price(op: str, ranks: Ints, cluster: Cluster) -> Price:
    found, loads = offers_and_loads(op, ranks, cluster)
    each = [edges.link_id for edges in loads.values()]
    links, index = np.unique(np.concatenate(each), return_inverse=True)
    places = dict(zip(loads, np.split(index, np.cumsum([len(one) for one in each])), strict=False))
    rates, slopes = [], np.full(len(links), np.inf)
    for line in found:
        edges = loads[line.algorithm]
        coefficient = quantise(edges.coefficient / line.share(is_port(edges.link_id, cluster)))
        capacity = np.floor(cluster.link_capacity_bytes_per_s[edges.link_id])
        slowest = solo_rates(coefficient, capacity.astype(np.int64)).min(initial=NO_CAP)
        rates.append(max(1, min(int(slowest), int(to_cap(int(line.rate_cap_bytes_per_s or 0))))))
        mine = np.zeros(len(links))
        mine[places[line.algorithm]] = coefficient / capacity
        slopes = np.minimum(slopes, mine)
    used = np.flatnonzero(slopes)
    return Price(
        latency_s=np.array([line.latency_s for line in found]),
        seconds_per_byte=np.array([line.seconds_per_byte for line in found]),
        rate=np.array(rates, dtype=np.int64),
        links=links[used],
        slope_s=slopes[used],
        occupied=occupied_s_per_byte(op, cluster),
        private=_are_own(links, ranks, cluster),
    )


def _are_own(links: Ints, ranks: Ints, cluster: Cluster) -> bool:
    """Whether links belong to some ranks and to nobody else, but for those that cannot bind."""
    links = links[cluster.can_bind(links)]
    of_devices = cluster.is_of_device[cluster.block_of(links)].all()
    return bool(of_devices and np.isin(cluster.owner_of(links), ranks).all())
