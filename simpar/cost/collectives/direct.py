"""Direct messages: point-to-point sends, each from its source straight to its destination.

Source: NCCL's point-to-point connections use a few channels a peer, each bound to a fixed rate between nodes
(nccl issues 1197; measured 27 GB/s with two channels on 400 Gb/s NICs, NCCL 2.29).
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Edges, Loads

NAME = "direct"
OPS = ("send",)


def refuses(op: str, placement: Placement) -> str | None:
    """Why the algorithm cannot serve a group, or None."""
    if op not in OPS:
        return f"{op} is no set of direct messages"
    return None if placement.members == 2 else "a send has one source and one destination"


def steps(op: str, shape: Shape) -> tuple[float, float]:
    """Sequential hops (inside domains, between domains): one."""
    return (1.0, 0.0) if shape.num_domains == 1 else (0.0, 1.0)


def loads(op: str, placement: Placement) -> Loads:
    """The links of the route, one byte each."""
    cluster = placement.cluster
    message, link = cluster.route(placement.ranks[:, 0], placement.ranks[:, 1])
    edges = Edges(message, link, np.ones(len(link)))
    is_port = link < int(cluster.nic_tx(np.zeros(1, dtype=np.int64))[0])
    return Loads(edges.take(is_port), edges.take(~is_port))
