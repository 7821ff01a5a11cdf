"""Tensor parallelism on grids of ranks: 2-D (SUMMA), 2.5-D and 3-D products.

For a product C = A B of activations A (M x K) and weights B (K x N), the sizes of the collectives of one rank:

| method | ranks | forward | input gradient | weight gradient |
|---|---|---|---|---|
| 2d | q x q | A/q, B/q go out | B/q goes out, A/q is summed | A/q goes out, B/q is summed |
| 2.5d | q x q x d | A/(qd), B/q | B/q, A/(qd) | A/(qd), B/q, and B/q^2 is summed over d |
| 3d | l x l x l | A/l^2, B/l^2 in, C/l^2 out | C/l^2, B/l^2 in, A/l^2 out | A/l^2 in, B/l^2 out |

Broadcasts and reductions of 2d and 2.5d come in q panels, each of which one product waits for; with ``overlap`` the
next panels travel beside the product. 3d gathers (in) and reduce-scatters (out) once [van de Geijn and Watts 1997
(SUMMA); Xu et al. 2021, arXiv 2104.05343 (Optimus); Wang et al. 2021, arXiv 2105.14500 (Tesseract); Bian et al. 2021,
arXiv 2105.14450 (3-D, Colossal-AI)]. Activations are shared over all ranks, rows and columns; so are weights, but for
the copies of 2.5d. Norms sum two fp32 statistics a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simpar.cost.operators import OperatorTime
from simpar.models.flops import shape_dims
from simpar.models.graph import Block, Dims, Operator, evaluate
from simpar.plan.grid import Grid
from simpar.program.blocks.block_view import LOSS_SUMS, RankBlock
from simpar.program.blocks.phases import TENSOR, CollectiveUse, Phase, Step, StepList
from simpar.program.fold.group_routes import GroupKind
from simpar.units import DTYPE_BYTES, Ints, Numbers, agreed, floats

ROW, COLUMN, DEPTH = "tp_row", "tp_column", "tp_depth"
NORM_SUMS = 2


def grid_kinds(grid: Grid, groups: Ints) -> list[GroupKind]:
    """Rows, columns and depths of all tensor-parallel groups int64[G, tp]."""
    cubes = groups.reshape(-1, *grid.shape)
    moves = ("all_gather", "reduce_scatter") if grid.method == "3d" else ("broadcast", "reduce")
    found = []
    for name, axis in ((DEPTH, 1), (COLUMN, 2), (ROW, 3)):
        if cubes.shape[axis] > 1:
            lines = np.ascontiguousarray(np.moveaxis(cubes, axis, -1)).reshape(-1, cubes.shape[axis])
            found.append(GroupKind(name, lines, (*moves, "all_reduce")))
    return found


@dataclass(frozen=True)
class Product:
    """Global sizes of C = A B: rows m, columns n, contraction k; ``width`` is bytes per element."""

    m: Numbers
    n: Numbers
    k: Numbers
    width: float


def moves(grid: Grid, product: Product, what: str) -> tuple[list[CollectiveUse], list[CollectiveUse]]:
    """(Collectives before, collectives after) one product; ``what``: forward, input_gradient or weight_gradient."""
    square = grid.side**2
    a, b, c = (
        first * second * product.width
        for first, second in ((product.m, product.k), (product.k, product.n), (product.m, product.n))
    )
    if grid.method == "3d":
        rows, columns, depths = (ROW, a / square), (COLUMN, b / square), (DEPTH, c / square)
        before, after = {
            "forward": ((rows, columns), depths),
            "input_gradient": ((depths, columns), rows),
            "weight_gradient": ((rows,), columns),
        }[what]
        gathered = [CollectiveUse(group, "all_gather", size) for group, size in before]
        return gathered, [CollectiveUse(after[0], "reduce_scatter", after[1])]
    rows, columns = (ROW, a / grid.depth / square), (COLUMN, b / square)
    panels, results = {
        "forward": ((rows, columns), ()),
        "input_gradient": ((columns,), (rows,)),
        "weight_gradient": ((rows,), (columns,)),
    }[what]
    summed = [CollectiveUse(group, "reduce", size, grid.side) for group, size in results]
    if what == "weight_gradient" and grid.depth > 1:
        summed.append(CollectiveUse(DEPTH, "all_reduce", b / square))
    return [CollectiveUse(group, "broadcast", size, grid.side) for group, size in panels], summed


@dataclass(frozen=True)
class GridSteps:
    """The phases of one block on one rank of a grid."""

    grid: Grid
    view: RankBlock
    recompute: str

    @property
    def block(self) -> Block:
        """The block."""
        return self.view.block

    @cached_property
    def dims(self) -> Dims:
        """Global dims of the block with the shape of one microbatch."""
        job = self.view.job
        return self.block.view(shape_dims(job.graph, job.training.seq_len, batch=job.plan.micro_batch))

    def product(self, op: Operator) -> Product | None:
        """Global sizes of an operator with a weight matrix, else None; an embedding communicates its table only."""
        width = self.view.view.compute_bytes
        if op.kind == "embedding":
            table = sum(floats(evaluate(weight.size, self.dims)) for weight in op.weights)
            hidden = floats(evaluate(op.columns, self.dims))
            return Product(0.0, hidden, table / hidden, width)
        if op.kind != "matmul":
            return None
        m, n, k = (floats(evaluate(size, self.dims)) for size in (op.rows, op.columns, op.contraction))
        return Product(m, n, k, width)

    def kernel_s(self, op: Operator, time: OperatorTime, what: str) -> Numbers:
        """Seconds of a rank's own products: q panels, or one in 3-D."""
        product = self.product(op) if op.kind == "matmul" else None
        if product is None:
            own = {"forward": time.forward_s, "input_gradient": time.backward_input_s}
            return floats((own | {"weight_gradient": time.backward_weight_s})[what])
        gemm_s, q, cut = self.view.job.kernels.gemm_time_s, self.grid.side, self.grid.depth
        m, n, k = product.m / q / (1 if self.grid.method == "3d" else cut), product.n / q, product.k / q
        if what == "weight_gradient":
            fused = self.view.job.stack.numerics.gradient_accumulation_fusion
            return floats(gemm_s(k, n, m, accumulate=fused)) * self._panels
        return floats(gemm_s(m, n, k) if what == "forward" else gemm_s(m, k, n)) * self._panels

    @property
    def _panels(self) -> int:
        return 1 if self.grid.method == "3d" else self.grid.side

    def run(self, steps: StepList, op: Operator, time: OperatorTime, what: str, kind: str) -> None:
        """One pass of one operator with what moves for it."""
        if op.kind == "embedding" and what == "input_gradient":
            return
        product, seconds = self.product(op), self.kernel_s(op, time, what)
        before, after = moves(self.grid, product, what) if product else ([], [])
        for use in (use for use in before if agreed(use.size_bytes > 0)):
            self._panelled(steps, op, use)
        if op.kind == "loss" and what == "forward":
            self._sums(steps, op, LOSS_SUMS)
        if agreed(seconds > 0):
            steps.add(Step.kernel(op.name, kind, seconds))
        if op.kind == "norm" and what != "weight_gradient":
            self._sums(steps, op, NORM_SUMS)
        for use in (use for use in after if agreed(use.size_bytes > 0)):
            steps.add(_step(op, use))

    def _panelled(self, steps: StepList, op: Operator, use: CollectiveUse) -> None:
        """Add a broadcast of panels; overlapped, all but the first travel beside the product."""
        if not self.view.job.plan.tensor_parallel.overlap or use.count == 1:
            steps.add(_step(op, use))
            return
        steps.add(_step(op, replace(use, count=1)))
        steps.add_beside(_step(op, replace(use, count=use.count - 1)))

    def _sums(self, steps: StepList, op: Operator, count: int) -> None:
        """Add the sum of ``count`` fp32 statistics for every row of activations on a rank."""
        rows = floats(self.dims["batch"]) * floats(self.dims["seq"]) / float(self.grid.sequences)
        steps.add(_step(op, CollectiveUse(ROW, "all_reduce", DTYPE_BYTES["fp32"] * rows, count)))

    def forward(self, kind: str) -> Phase:
        """All operators in turn."""
        steps = StepList()
        for op, time in zip(self.block.operators, self.view.times, strict=True):
            self.run(steps, op, time, "forward", kind)
        return self._phase(steps, lambda time: time.forward_kernels)

    def backward(self, *passes: str) -> Phase:
        """All operators in reverse: input gradients, weight gradients or both."""
        steps = StepList()
        for op, time in reversed(list(zip(self.block.operators, self.view.times, strict=True))):
            if op.kind == "attention" and self.recompute == "selective" and "input_gradient" in passes:
                steps.add(Step.kernel(op.name, "recompute", time.forward_s))
            for what in passes:
                self.run(steps, op, time, what, what)
        return self._phase(steps, lambda time: time.backward_kernels * len(passes) / 2)

    def _phase(self, steps: StepList, kernels: Callable[[OperatorTime], Numbers]) -> Phase:
        panels = [self._panels if op.kind == "matmul" else 1 for op in self.block.operators]
        each = (n * floats(kernels(time)) for n, time in zip(panels, self.view.times, strict=True))
        return Phase(tuple(steps.steps), self.view.issue_s(self.block, each, steps.num_collectives))


def _step(op: Operator, use: CollectiveUse) -> Step:
    return Step.moving(f"{op.name}.{use.op} {use.group.removeprefix('tp_')}", use, TENSOR)
