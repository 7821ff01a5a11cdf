"""Prices of collectives in bulk: what a process group takes for arrays of sizes, in the integers of the Program.

A wire is one process group with every line that the automatic choice of an algorithm is the lowest of. Groups of a
class that share a link slow each other down in a Program; a wire leaves that out, so its times are lower bounds,
and equal to those of the Program where a group has its links to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import link_loads, occupied_s_per_byte, offers
from simpar.hardware.cluster import Cluster
from simpar.program.flow import NO_CAP, quantise, solo_rates, to_cap, to_work
from simpar.program.traffic import LATE, is_tensor_parallel
from simpar.search.problem import Problem
from simpar.units import to_ns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Wire:
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

    @property
    def least_slope_s(self) -> float:
        """Seconds a byte that the group's busiest link is taken, whichever line is chosen."""
        return float(self.slope_s.max(initial=0.0))

    def slopes_s(self, links: Ints) -> Floats:
        """Seconds a byte that the operation takes of some links, zero of those that it does not use."""
        if not len(self.links):
            return np.zeros(len(links))
        at = np.minimum(np.searchsorted(self.links, links), len(self.links) - 1)
        return np.where(self.links[at] == links, self.slope_s[at], 0.0)

    def time_ns(self, size_bytes: Any, count: Any = 1) -> Ints:
        """Nanoseconds of ``count`` calls in a row of ``size_bytes`` each; arrays broadcast."""
        sizes, calls = np.asarray(size_bytes, dtype=np.float64), np.asarray(count)
        if not len(self.rate):
            return np.zeros(np.broadcast_shapes(sizes.shape, calls.shape), dtype=np.int64)
        single = len(self.rate) == 1
        line = 0 if single else np.argmin(self.latency_s + sizes[..., None] * self.seconds_per_byte, axis=-1)
        work = to_work(np.rint(calls * sizes).astype(np.int64))
        once_s = self.latency_s[line] + self.added_s + self.added_s_per_byte * sizes
        return np.asarray(to_ns(calls * once_s) - (-work // self.rate[line]))

    def occupied_ns(self, size_bytes: Any, count: Any = 1) -> Ints:
        """Nanoseconds for which it slows the kernels beside it."""
        at_full_rate_ns = to_ns(count * size_bytes * self.occupied)
        return np.asarray(np.minimum(self.time_ns(size_bytes, count), at_full_rate_ns))


_NONE = np.zeros(0, dtype=np.int64)
FREE = Wire(np.zeros(0), np.zeros(0), _NONE, _NONE, np.zeros(0))


def shared_slopes_s(one: Wire, other: Wire) -> tuple[float, float]:
    """Seconds a byte that two operations take of a link that both use, the one that they load most; else zeros."""
    links, mine, others = np.intersect1d(one.links, other.links, return_indices=True)
    if not len(links):
        return 0.0, 0.0
    both = np.stack([one.slope_s[mine], other.slope_s[others]])
    busiest = int(np.argmax(both.sum(axis=0)))
    return float(both[0, busiest]), float(both[1, busiest])


@dataclass
class Wires:
    """Wires of a healthy cluster inside a training step, by operation and group, each made once.

    ``message_s`` is what a stack adds to every message.
    """

    cluster: Cluster
    message_s: float = 0.0
    _known: dict[tuple[str, bool, bytes], Wire] = field(default_factory=dict)

    @staticmethod
    def of_problem(problem: Problem) -> Wires:
        """Wires that leave out what is degraded, which only makes things slower."""
        return Wires(replace(problem.cluster.in_training, scaling={}), problem.stack.launch.message_s)

    @cached_property
    def own(self) -> Ints:
        """The links of rank 0 alone: out of its port and into it, out of its NIC and into it."""
        return self.ends(0, 0)

    def ends(self, source: int, target: int) -> Ints:
        """The links of two ranks alone: out of the port of one and into that of the other, and so of their NICs."""
        cluster, ranks = self.cluster, np.array([source, target])
        ports, nics = (cluster.port_tx, cluster.port_rx), (cluster.nic_tx, cluster.nic_rx)
        return np.array([end(ranks)[at] for ends in (ports, nics) for at, end in enumerate(ends)])

    def of(self, op: str, ranks: Ints, kind: str = "") -> Wire:
        """The wire of an operation on the group int64[N] of a kind."""
        if len(ranks) < 2:
            return FREE
        ranks = self._moved(np.ascontiguousarray(ranks, dtype=np.int64))
        punctual = is_tensor_parallel(kind)
        key = op, punctual, ranks.tobytes()
        if key not in self._known:
            cluster = self.cluster.without_state(*LATE) if punctual else self.cluster
            wire = _wire(op, ranks, cluster)
            added = self.message_s if op == "send" else 0.0
            self._known[key] = replace(wire, added_s=added)
        return self._known[key]

    def _moved(self, ranks: Ints) -> Ints:
        """The same group in the first domain, where domains are alike: links of leaves bind nowhere."""
        if self.cluster.leaves_bind:
            return ranks
        size = self.cluster.domain_size
        return ranks - int(ranks.min()) // size * size


def _wire(op: str, ranks: Ints, cluster: Cluster) -> Wire:
    found, loads = offers(op, ranks, cluster), link_loads(op, ranks[None, :], cluster)
    first_nic = int(cluster.nic_tx(np.zeros(1, dtype=np.int64))[0])
    rates, slopes = [], np.full(cluster.num_links, np.inf)
    for offer in found:
        edges = loads[offer.line.algorithm]
        share = np.where(edges.link_id < first_nic, offer.port_share, offer.nic_share)
        coefficient = quantise(edges.coefficient / share)
        capacity = np.floor(cluster.link_capacity_bytes_per_s[edges.link_id])
        slowest = solo_rates(coefficient, capacity.astype(np.int64)).min(initial=NO_CAP)
        rates.append(max(1, min(int(slowest), int(to_cap(int(offer.line.rate_cap_bytes_per_s or 0))))))
        mine = np.zeros(cluster.num_links)
        mine[edges.link_id] = coefficient / capacity
        slopes = np.minimum(slopes, mine)
    used = np.flatnonzero(slopes)
    return Wire(
        latency_s=np.array([offer.line.latency_s for offer in found]),
        seconds_per_byte=np.array([offer.line.seconds_per_byte for offer in found]),
        rate=np.array(rates, dtype=np.int64),
        links=used,
        slope_s=slopes[used],
        occupied=occupied_s_per_byte(op, cluster),
        private=_are_own(
            np.unique(np.concatenate([edges.link_id for edges in loads.values()])), ranks, cluster
        ),
    )


def _are_own(links: Ints, ranks: Ints, cluster: Cluster) -> bool:
    """Whether links belong to some ranks and to nobody else, but for those that cannot bind."""
    links = links[cluster.can_bind(links)]
    node = np.arange(cluster.profile.devices_per_node)
    alone = np.array([len(np.unique(cluster.link_of(block, node))) == len(node) for block in cluster.blocks])
    return bool(alone[cluster.block_of(links)].all() and np.isin(cluster.owner_of(links), ranks).all())
