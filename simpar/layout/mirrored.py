"""DualPipe on half as many pipeline ranks: a rank and its mirror image are replicas of one another.

In DualPipe microbatches enter at both ends of p ranks, and rank r holds the stages r and p - 1 - r. So does its mirror
image, which runs the same passes of the other half of the microbatches at the same time. The two are replicas of one
rank under DualPipeV on p / 2 ranks, with two chunks, twice the data parallelism and half the microbatches ("cut in
half" of github.com/deepseek-ai/DualPipe). Two things differ: where the ranks are, and a message between the two ranks
in the middle of the pipeline, where a V turns on one rank. Costs, memory and Programs are made for the folded form of
every schedule that declares a ``half_schedule``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simpar.plan.mesh import Mesh
from simpar.plan.schedules import HALF_SCHEDULES
from simpar.units import Ints


class MirroredMesh(Mesh):
    """A mesh whose pipeline ranks r and 2 pp - 1 - r count as replicas of one rank, the far end's behind the others.

    ``pp`` and ``dp`` are those of the folded mesh, ranks are those of the mesh with 2 pp pipeline ranks.
    """

    @property
    def whole(self) -> Mesh:
        """The mesh of the plan, before folding."""
        ends = {"dp": int(self.dp or 2) // 2, "pp": 2 * self.pp}
        return Mesh(tp=self.tp, cp=self.cp, ep=self.ep, etp=self.etp, order=self.order, **ends)

    @property
    def grid(self) -> Ints:
        """The rank at every coordinate, int64 of ``shape``."""
        pp, dp = self.order.index("pp"), self.order.index("dp")
        near, far = np.split(self.whole.grid, 2, axis=pp)
        return np.concatenate([near, np.flip(far, axis=pp)], axis=dp)

    def at(self, coordinates: Mapping[str, Any]) -> Ints:
        """Ranks at coordinates along every axis: ints, or arrays that broadcast."""
        result: Ints = self.grid[tuple(coordinates[axis] for axis in self.order)]
        return result

    def coordinates(self, ranks: Any) -> dict[str, Ints]:
        """Coordinate of every rank along every axis: axis -> int64[n] for ``ranks`` int64[n]."""
        coordinates, whole = self.whole.coordinates(ranks), self.whole
        far = coordinates["pp"] >= self.pp
        return coordinates | {
            "pp": np.where(far, whole.pp - 1 - coordinates["pp"], coordinates["pp"]),
            "dp": coordinates["dp"] + far * whole.replicas,
        }

    def opposite(self, ranks: Any) -> Ints:
        """The mirror image of every rank, int64[n]."""
        coordinates, whole = self.whole.coordinates(ranks), self.whole
        return whole.at({**coordinates, "pp": whole.pp - 1 - coordinates["pp"]})


def whole_schedule_of(half: str) -> str:
    """The schedule with two ends that runs as a given one on half of its ranks."""
    return next(name for name, half_is in HALF_SCHEDULES.items() if half_is == half)
