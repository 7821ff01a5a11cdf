"""Ring: every member sends to the next; bandwidth-optimal, latency linear in the members.

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"; NCCL's ring channels enter and leave
a node once per channel, rotated over its NICs.
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import NO_DOMAINS, Floats, Ints, Loads, Traffic, spread

NAME = "ring"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def refuses(op: str, placement: Placement) -> str | None:
    """Why the algorithm cannot serve a group, or None."""
    return None if op in OPS else f"{op} has no ring form"


def volume(op: str, members: int) -> float:
    """Bytes a member sends per byte of the whole tensor: 2(N-1)/N, (N-1)/N, or 1 for a pipelined chain."""
    if op in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (members - 1) / members


def steps(op: str, shape: Shape) -> tuple[float, float]:
    """Sequential hops (inside domains, between domains): N-1 in all, twice that for all-reduce."""
    rounds = 2.0 if op == "all_reduce" else 1.0
    across = shape.num_domains - 1
    return rounds * (shape.members - 1 - across), rounds * across


def loads(op: str, placement: Placement) -> Loads:
    """A member sends over its port, except in the one channel in which it is its domain's exit."""
    sent = volume(op, placement.members)
    if placement.num_domains == 1:
        return spread(Traffic(sent, sent, *NO_DOMAINS), placement)
    inside = sent * (placement.beside - 1) / placement.beside
    return spread(Traffic(inside, inside, *neighbours(placement.num_domains, sent)), placement)


def neighbours(count: int, each: float) -> tuple[Ints, Ints, Floats]:
    """Every domain sends ``each`` bytes to the next one."""
    order = np.arange(count)
    return order, (order + 1) % count, np.full(count, each)
