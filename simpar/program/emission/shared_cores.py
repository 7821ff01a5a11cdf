"""Devices that share the cores of a node: compute drains like a flow, over a link whose capacity is the cores.

Ranks of a machine without accelerators are processes beside each other. A kernel then has work, the time that it
takes alone, and drains at one second a second while there are cores for everybody, else at its max-min fair share of
them: a stage that waits leaves its cores to the others. Collectives over shared memory are the ranks' own copying and
adding, so they take cores as well.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from simpar.hardware.cluster import Cluster
from simpar.program.blocks.phases import COMPUTE
from simpar.program.emission.emit import Slots
from simpar.program.fold.quotient import Quotient
from simpar.program.ir.program import Csr, Program, Routes, solo_durations_ns
from simpar.units import NS_PER_S, Floats, Indices


def are_shared(cluster: Cluster) -> bool:
    """Whether the devices of a node work on the same cores."""
    return cluster.profile.host.compute_capacity is not None and cluster.world_size > 1


def share_cores(program: Program, slots: Slots, op_of_slot: Indices, quotient: Quotient, cluster: Cluster) -> Program:
    """The Program with every kernel, and every collective's own work, on the cores of its node.

    Work of a fixed duration is a byte a nanosecond; the capacity of a node's cores is as many bytes a nanosecond as
    devices work at full speed beside each other.
    """
    capacity = float(cluster.profile.host.compute_capacity or 0.0)
    load = _cores_taken(program, slots, op_of_slot, quotient, cluster)
    alone, ops, old = solo_durations_ns(program), program.ops, program.routes
    known: dict[tuple[int, tuple[float, ...]], int] = {}
    columns = {name: getattr(ops, name).copy() for name in ("fixed_ns", "work_bytes", "rate_cap_bytes_per_s", "route")}
    for op in np.flatnonzero((load.sum(axis=1) > 0) & (alone > 0)).tolist():
        drained, share = int(alone[op] - ops.fixed_ns[op]), load[op]
        if ops.work_bytes[op] and drained:
            share = share * drained / ops.work_bytes[op]  # core-nanoseconds per byte that it moves
        elif not ops.work_bytes[op]:
            columns["fixed_ns"][op], columns["work_bytes"][op] = 0, alone[op]
            columns["rate_cap_bytes_per_s"][op] = NS_PER_S
        pair = (int(ops.route[op]) if ops.work_bytes[op] else -1, tuple(share.tolist()))
        columns["route"][op] = known.setdefault(pair, len(old.links) + len(known))
    routes = _over_cores(old, known, cluster.nodes, round(capacity * NS_PER_S))
    return replace(program, ops=replace(ops, **columns), routes=routes)


def _cores_taken(program: Program, slots: Slots, op_of_slot: Indices, quotient: Quotient, cluster: Cluster) -> Floats:
    """Cores that every op takes on every node, alone and at full speed: float64[num_ops, nodes].

    A kernel takes one core for each rank of its class on the node. A rank in a collective takes ``collective_load``
    cores, all ranks together at most those there are, because collectives are measured with all ranks side by side.
    """
    node = cluster.node_of(np.arange(len(quotient.class_of_rank)))
    present = np.zeros((quotient.num_classes, cluster.nodes))
    np.add.at(present, (quotient.class_of_rank, node), 1.0)
    collective = slots.group >= 0
    each = np.where(collective, cluster.profile.host.collective_load, 0.0)
    compute, kernels = (np.array([name == COMPUTE for name in program.stream_names]), np.zeros(len(program), bool))
    kernels[program.streams.item[compute[program.streams.owners()]]] = True
    each[kernels[op_of_slot] & ~collective] = 1.0
    taken = np.zeros((len(program), cluster.nodes))
    np.add.at(taken, op_of_slot, each[:, None] * present[slots.class_id])
    most = np.full(len(program), np.inf)
    most[op_of_slot[collective]] = cluster.profile.host.compute_capacity
    return np.asarray(np.minimum(taken, most[:, None]))


def _over_cores(
    old: Routes, pairs: Iterable[tuple[int, tuple[float, ...]]], nodes: int, capacity_bytes_per_s: int
) -> Routes:
    """The routes, then for each of ``pairs`` one over the links of a route (-1: none) and over the cores of nodes.

    The second of a pair are the coefficients of the nodes' cores.
    """
    links, coefficients = [old.links.item], [old.coefficient]
    lengths, first = np.diff(old.links.pointer).tolist(), len(old.link_names)
    for route, share in pairs:
        before = slice(*old.links.pointer[route : route + 2]) if route >= 0 else slice(0)
        used = np.flatnonzero(share)
        links += [old.links.item[before], first + used]
        coefficients += [old.coefficient[before], np.array(share)[used]]
        lengths.append(len(links[-2]) + len(used))
    return Routes(
        links=Csr(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), np.concatenate(links)),
        coefficient=np.concatenate(coefficients),
        capacity_bytes_per_s=np.append(old.capacity_bytes_per_s, [capacity_bytes_per_s] * nodes),
        link_names=(*old.link_names, *(f"cores[{node}]" for node in range(nodes))),
    )
