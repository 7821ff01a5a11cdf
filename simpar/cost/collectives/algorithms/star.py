"""Star: the root talks to every other member directly, so its port or NIC serialises (parameter server).

The first member of a group is its root. NCCL has no scatter or gather; programs send from the root like this.
"""

import numpy as np

from simpar.cost.collectives.algorithm import Algorithm, rounds
from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges, messages


class Star(Algorithm):
    """Messages between the root and everybody else."""

    NAME = "star"
    RANK = 6
    OPS = ("broadcast", "reduce", "scatter", "gather", "all_reduce")
    PROTOCOLS = ("simple",)
    RATES = ("send_efficiency", "nic_efficiency")

    def automatic(self, op: str, _shape: GroupShape) -> bool:
        """Scatter and gather, which have no other form."""
        return op in ("scatter", "gather")

    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """A message out, and one back for all-reduce."""
        near = shape.num_domains == 1
        return {"port_hop_us": rounds(op) * near, "tree_hop_us": rounds(op) * (not near)}

    def loads(self, op: str, placement: Placement) -> Edges:
        """N-1 messages over the routes from (or to) the root: S/N each for scatter and gather, else S."""
        others = placement.ranks[:, 1:]
        root = np.broadcast_to(placement.ranks[:, :1], others.shape)
        ways = [(root, others)] if op in ("broadcast", "scatter", "all_reduce") else []
        ways += [(others, root)] if op in ("reduce", "gather", "all_reduce") else []
        sources, targets = (np.concatenate(ends, axis=1) for ends in zip(*ways, strict=True))
        each = 1.0 / placement.members if op in ("scatter", "gather") else 1.0
        return messages(placement.cluster, sources, targets, each)


ALGORITHMS = (Star(),)
