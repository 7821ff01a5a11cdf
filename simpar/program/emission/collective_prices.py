"""Prices of collectives: their time on a process group, for one size or arrays, in the integers of the Program.

A price has, for one process group, all lines among which the automatic choice of an algorithm takes the lowest. In a
Program, groups of a class that share a link slow each other down. A price leaves that out: it is a lower bound, and
equals the Program where a group has its links to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from simpar.cost.collectives.choice import occupied_s_per_byte, offers_and_loads
from simpar.cost.collectives.traffic import is_port
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.program.blocks.phases import TENSOR, CollectiveUse
from simpar.program.fold.group_routes import in_first_domain
from simpar.program.ir.flow import BYTES_PER_S_PER_RATE, NO_CAP, drained_ns, quantise, solo_rates, to_cap
from simpar.program.job import TrainingJob
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from simpar.stacks.stack import Stack
from simpar.units import Floats, Ints, Numbers, to_ns


def is_tensor_parallel(kind: str) -> bool:
    """Whether a kind of groups is tensor-parallel: "tp", or "tp_..." on grids and on meshes of single stages."""
    return kind.split("_")[0] == TENSOR


@dataclass(frozen=True)
class Added:
    """What a stack adds to the lines of a library: seconds per call and per byte.

    ``message_s`` per pipeline message, to agree on its shapes; ``dispatch_s`` per tensor-parallel collective, to
    prepare it; ``quantise_s_per_byte``, by operation, to narrow parameters or gradients and widen them again.
    """

    message_s: float = 0.0
    dispatch_s: float = 0.0
    quantise_s_per_byte: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(stack: Stack, quantise_s_per_byte: Mapping[str, float] | None = None) -> Added:
        """What a stack adds."""
        return Added(stack.launch.message_s, stack.launch.dispatch_s, quantise_s_per_byte or {})

    def of_call(self, op: str, kind: str) -> tuple[float, float]:
        """(Seconds per call, seconds per byte) of an operation on a group of a kind."""
        call_s = self.message_s if op == "send" else self.dispatch_s * is_tensor_parallel(kind)
        copies = kind.split("_")[0] in (DENSE, EXPERTS) and not kind.endswith("_replicate")
        return call_s, self.quantise_s_per_byte.get(op, 0.0) if copies else 0.0


def calls_ns(latency_s: Numbers, added: tuple[float, float], size_bytes: Numbers, count: Numbers) -> int | Ints:
    """Nanoseconds of ``count`` calls without draining their bytes: latencies, and what is ``added`` to them."""
    per_call, per_byte = added
    took_ns: int | Ints = to_ns(count * (latency_s + per_call + per_byte * size_bytes))
    return took_ns


def occupied_ns(took_ns: ArrayLike, size_bytes: Numbers, count: Numbers, s_per_byte: float) -> Ints:
    """Nanoseconds for which calls slow the kernels beside them: at most their duration, less if they wait for a NIC."""
    return np.asarray(np.minimum(took_ns, to_ns(count * size_bytes * s_per_byte)))


def on_time(cluster: Cluster, kind: str) -> Cluster:
    """The cluster on which collectives of a kind are priced: without late members if the kind is tensor-parallel.

    There they hold up the host that launches the collective, and not the device.
    """
    return cluster.punctual if is_tensor_parallel(kind) else cluster


@dataclass(frozen=True)
class Price:
    """Lines of one operation on one group: the lowest one is taken, and drains at its ``rate``.

    ``slope_s`` are the seconds per byte for which the operation uses each of its ``links`` under any line (the least of
    all); ``added_s`` comes on top of every call, ``added_s_per_byte`` (quantising) of every byte; ``occupied`` are the
    seconds per byte for which kernels beside it are slowed. ``private``: all links that can bind belong to its members
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
        """Seconds per byte for which the operation uses each of ``links``; zero for links that it does not use."""
        if not len(self.links):
            return np.zeros(len(links))
        at = np.minimum(np.searchsorted(self.links, links), len(self.links) - 1)
        return np.where(self.links[at] == links, self.slope_s[at], 0.0)

    def stretched(self, size_bytes: Floats, links: Ints, taken_s: Floats) -> tuple[Floats, Floats]:
        """Seconds that a byte takes longer beside a flow that gets no lower rate, and their ratio to those alone.

        A byte of the flow takes ``taken_s`` seconds of each of ``links``, all of which the operation has to cross. Both
        results are float64[...] for calls of ``size_bytes`` [...]; the ratio is that of the whole time to that alone.
        """
        own_s, shared = self.slopes_s(links), taken_s > 0
        if not len(self.rate) or not (own_s[shared] > 0).all():
            return np.zeros(np.shape(size_bytes)), np.ones(np.shape(size_bytes))
        alone_s = 1.0 / (BYTES_PER_S_PER_RATE * self.rate[self._line(size_bytes)])
        more_s = np.maximum((own_s + taken_s)[shared].max(initial=0.0) - alone_s, 0.0)
        return more_s, 1.0 + more_s / alone_s

    def _line(self, size_bytes: Floats) -> Ints | int:
        """The line that calls take, int64[...]."""
        if len(self.rate) == 1:
            return 0
        return np.asarray(np.argmin(self.latency_s + size_bytes[..., None] * self.seconds_per_byte, axis=-1))

    def time_ns(self, size_bytes: Numbers, count: Numbers = 1) -> Ints:
        """Nanoseconds of ``count`` calls in a row of ``size_bytes`` each; arrays broadcast."""
        sizes, calls = np.asarray(size_bytes, dtype=np.float64), np.asarray(count)
        if not len(self.rate):
            return np.zeros(np.broadcast_shapes(sizes.shape, calls.shape), dtype=np.int64)
        line = self._line(sizes)
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
    """Prices on a cluster inside a training step, by operation and group; each is made once.

    ``added`` is what the stack adds to calls.
    """

    cluster: Cluster
    added: Added = field(default_factory=lambda: Added())
    _known: dict[tuple[str, bool, tuple[float, float], bytes], Price] = field(default_factory=dict)

    @staticmethod
    def of_job(job: TrainingJob, cluster: Cluster) -> Prices:
        """Prices of the collectives of a job inside blocks, and of its messages; degraded links count as whole."""
        return Prices(cluster.whole, Added.of(job.stack))

    @cached_property
    def own(self) -> Ints:
        """Links that belong to rank 0 alone: out of and into its port, out of and into its NIC."""
        return self.ends(0, 0)

    @cached_property
    def _punctual(self) -> Cluster:
        return on_time(self.cluster, TENSOR)

    def ends(self, source: int, target: int) -> Ints:
        """Links that belong to two ranks alone: out of the port of the one, into that of the other; then NICs."""
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
    result, loads = offers_and_loads(op, ranks, cluster)
    each = [edges.link_id for edges in loads.values()]
    links, index = np.unique(np.concatenate(each), return_inverse=True)
    places = dict(zip(loads, np.split(index, np.cumsum([len(one) for one in each])), strict=False))
    rates, slopes = [], np.full(len(links), np.inf)
    for line in result:
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
        latency_s=np.array([line.latency_s for line in result]),
        seconds_per_byte=np.array([line.seconds_per_byte for line in result]),
        rate=np.array(rates, dtype=np.int64),
        links=links[used],
        slope_s=slopes[used],
        occupied=occupied_s_per_byte(op, cluster),
        private=_are_own(links, ranks, cluster),
    )


def _are_own(links: Ints, ranks: Ints, cluster: Cluster) -> bool:
    """Whether all of ``links`` that can bind belong to ``ranks`` alone."""
    links = links[cluster.can_bind(links)]
    of_devices = cluster.is_of_device[cluster.block_of(links)].all()
    return bool(of_devices and np.isin(cluster.owner_of(links), ranks).all())
