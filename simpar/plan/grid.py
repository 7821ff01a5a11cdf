"""Grids of tensor-parallel ranks for 2-D, 2.5-D and 3-D products: their sides, and which sequences fit them."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.errors import UserError
from simpar.plan.plan import Plan


@dataclass(frozen=True)
class Grid:
    """``side`` x ``side`` x ``depth`` ranks; in 3-D the depth is a side."""

    method: str
    side: int
    depth: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes of depth, columns and rows, slowest first."""
        return (self.depth, self.side, self.side)

    @property
    def sequences(self) -> int:
        """The number of which the sequences of a microbatch must be a multiple, because attention needs whole ones."""
        return self.side**2 if self.method == "3d" else self.side * self.depth


def grid_of(plan: Plan) -> Grid | None:
    """The grid of a plan, None for 1-D tensor parallelism. Raises UserError where tp makes none."""
    tensor, tp = plan.tensor_parallel, plan.mesh.tp
    if tensor.tp_method == "1d" or tp == 1:
        return None
    depth = tensor.tp_depth
    side = round(tp ** (1 / 3)) if tensor.tp_method == "3d" else round((tp / depth) ** 0.5)
    if tensor.tp_method == "3d":
        depth = side
    if side**2 * depth != tp or side == 1:
        rule = {"2d": "squares", "2.5d": f"squares times tp_depth = {depth}", "3d": "cubes"}[tensor.tp_method]
        raise UserError(f"plan.tp = {tp}: tp_method {tensor.tp_method} has {rule} of ranks; allowed: {rule}")
    return Grid(tensor.tp_method, side, depth)
