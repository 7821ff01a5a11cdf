"""Star: the root talks to every other member directly, so its port or NIC serialises (parameter server).

The first member of a group is its root. NCCL has no scatter or gather; programs send from the root like this.
"""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Edges, Loads, by_kind

NAME = "star"
OPS = ("broadcast", "reduce", "scatter", "gather", "all_reduce")
NUM_SMS = dict.fromkeys(OPS, 8)
PROTOCOLS = ("simple",)
RATES = dict.fromkeys(OPS, ("send_efficiency", "nic_efficiency"))


def refuses(op: str, _placement: Placement) -> str | None:
    """Why a group cannot use the algorithm, or None."""
    return None if op in OPS else f"{op} has no root"


def automatic(op: str, shape: Shape) -> bool:
    """Whether the library considers it by itself: for scatter and gather, which have no other form."""
    return op in ("scatter", "gather") and shape.members > 1


def hops(op: str, shape: Shape) -> dict[str, float]:
    """A message out, and one back for all-reduce."""
    rounds = 2.0 if op == "all_reduce" else 1.0
    near = shape.num_domains == 1
    return {"port_hop_us": rounds if near else 0.0, "tree_hop_us": 0.0 if near else rounds}


def loads(op: str, placement: Placement) -> Loads:
    """N-1 messages over the routes from (or to) the root: S/N each for scatter and gather, else S."""
    groups, members = placement.ranks.shape
    root = np.repeat(placement.ranks[:, 0], members - 1)
    others = placement.ranks[:, 1:].ravel()
    group = np.repeat(np.arange(groups), members - 1)
    each = 1.0 / members if op in ("scatter", "gather") else 1.0
    pieces = []
    if op in ("broadcast", "scatter", "all_reduce"):
        pieces.append(placement.cluster.route(root, others))
    if op in ("reduce", "gather", "all_reduce"):
        pieces.append(placement.cluster.route(others, root))
    message = np.concatenate([index for index, _ in pieces])
    link = np.concatenate([links for _, links in pieces])
    return by_kind(Edges(group[message], link, np.full(len(link), each)), placement.cluster)
