"""Optimizers: the states they keep, the memory they move, and the products that matrix optimizers compute.

| optimizer | states of a matrix r x c, values | of other parameters | beyond one pass over states | source |
|---|---|---|---|---|
| adamw | 2 r c | 2 | - | arXiv 1711.05101 |
| adamw_8bit | 2 r c bytes + 4 in every 256 | the same | - | arXiv 2110.02861 (block-wise) |
| lion, sgd_momentum | r c | 1 | - | arXiv 2302.06675 |
| sgd | - | - | - | |
| adafactor | r + c | 1 for vectors | gradients twice more (factors, clipping) | arXiv 1804.04235 |
| muon | r c | 2, AdamW's | 5 Newton-Schulz steps | kellerjordan.github.io/posts/muon, arXiv 2502.16982 |
| shampoo | 2 (r^2 + c^2) in blocks, + 2 r c | 2, AdamW's | 4 products a step, roots every 100 | arXiv 2309.06497 |

Matrix optimizers leave embeddings, the output projection and vectors to AdamW. Sharded, every rank updates whole
matrices, as many as its share of them; the shard of a column- or row-parallel matrix counts as a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simpar.cost.kernels import KernelModel
from simpar.cost.stack import Stack
from simpar.models.graph import Block, Dims, Operator, Weight, evaluate
from simpar.plan.plan import Numerics
from simpar.units import DTYPE_BYTES, Numbers

_WIDE = DTYPE_BYTES["fp32"]
NEWTON_SCHULZ_STEPS = 5
SHAMPOO_BLOCK, ROOT_EVERY = 1024, 100
ROOT_FLOP = 25.0
"""FLOP of an eigendecomposition of an n x n matrix over n^3."""
ROOT_SHARE = 0.05
"""Share of the fp32 peak that it reaches, an assumption."""
SCALE_BLOCK = 256
"""Values of 8-bit states that share a scale in fp32."""


@dataclass(frozen=True)
class Rule:
    """What an optimizer keeps for a parameter and does with it.

    ``moments`` are values a parameter of matrices inside layers, ``others`` of everything else; ``width`` their bytes
    where it is not the plan's ``moment_dtype``; ``gradient_passes`` more reads of the gradient than one.
    """

    moments: float
    others: float
    width: float | None = None
    gradient_passes: float = 0.0
    factored: bool = False
    products: str = ""


RULES: dict[str, Rule] = {
    "adamw": Rule(2, 2),
    "sgd_momentum": Rule(1, 1),
    "sgd": Rule(0, 0),
    "lion": Rule(1, 1),
    "adamw_8bit": Rule(2, 2, width=1.0 + _WIDE / SCALE_BLOCK),
    "adafactor": Rule(0, 0, gradient_passes=2.0, factored=True),
    "muon": Rule(1, 2, products="newton_schulz"),
    "shampoo": Rule(2, 2, products="shampoo"),
}
MOMENTS = {name: rule.moments for name, rule in RULES.items()}


@dataclass(frozen=True)
class Matrix:
    """``count`` equal matrices of ``rows`` x ``columns`` (ints or arrays); ``expert`` ones are held by fewer ranks."""

    rows: Numbers
    columns: Numbers
    count: Numbers = 1
    expert: bool = False


def moment_bytes(numerics: Numerics, *, other: bool = False) -> float:
    """Bytes a parameter of the states of matrices inside layers, or of ``other`` parameters, factors left out."""
    rule = RULES[numerics.optimizer]
    width = rule.width or DTYPE_BYTES[numerics.moment_dtype or "fp32"]
    return (rule.others if other else rule.moments) * width


def state_bytes(block: Block, dims: Dims, numerics: Numerics) -> tuple[Numbers, Numbers]:
    """Bytes of optimizer states of a block without master weights: (of what is no expert, of experts)."""
    own = block.view(dims)
    totals: list[Numbers] = [0.0, 0.0]
    for op in block.operators:
        for weight in (weight for weight in op.weights if weight.trainable):
            totals[weight.kind == "expert"] += _weight_bytes(op, weight, own, numerics)
    return totals[0], totals[1]


def _weight_bytes(op: Operator, weight: Weight, dims: Dims, numerics: Numerics) -> Numbers:
    rule, size = RULES[numerics.optimizer], evaluate(weight.size, dims)
    inner = _is_inner(op, weight)
    kept = size * moment_bytes(numerics, other=not inner)
    if rule.factored:
        return _factor_bytes(op, weight, dims)
    if inner and rule.products == "shampoo":
        kept = kept + sum(_preconditioner_bytes(matrix) for matrix in _matrices_of(op, weight, dims))
    return kept


def _is_inner(op: Operator, weight: Weight) -> bool:
    """Whether a matrix optimizer takes a weight: those of products inside layers."""
    return (
        weight.trainable
        and weight.kind in ("matrix", "expert")
        and op.name != "lm_head"
        and op.kind != "router"
    )


def _factor_bytes(op: Operator, weight: Weight, dims: Dims) -> Numbers:
    """A row and a column of second moments for every matrix, all of them for a vector."""
    size = evaluate(weight.size, dims)
    if weight.kind == "vector":
        return _WIDE * size
    if weight.kind == "embedding":
        return _WIDE * (size / dims["hidden"] + dims["hidden"])
    return _WIDE * sum((m.rows + m.columns) * m.count for m in _matrices_of(op, weight, dims))


def _matrices_of(op: Operator, weight: Weight, dims: Dims) -> list[Matrix]:
    """The matrices that a packed weight stands for: query, key and value, gate and up, one an expert."""
    inside = evaluate(op.contraction, dims)
    experts = dims["experts"] if weight.kind == "expert" else 1
    sizes = ((evaluate(((1, names),), dims), times) if names else (times, 1) for times, names in op.columns)
    return [Matrix(rows, inside, times * experts, weight.kind == "expert") for rows, times in sizes]


def _preconditioner_bytes(matrix: Matrix) -> Numbers:
    """Two factors and their inverse roots in fp32 for every block of at most 1,024 x 1,024."""
    row_sides, column_sides = (_sides(size) for size in (matrix.rows, matrix.columns))
    both = sum(r * r * n for r, n in row_sides) * sum(n for _, n in column_sides)
    both += sum(c * c * n for c, n in column_sides) * sum(n for _, n in row_sides)
    return 2.0 * _WIDE * both * matrix.count


def _sides(size: Numbers) -> list[tuple[Numbers, Numbers]]:
    """(side, how many) of the blocks along one dim: whole ones and the rest."""
    whole, rest = np.asarray(size) // SHAMPOO_BLOCK, np.asarray(size) % SHAMPOO_BLOCK
    return [(float(SHAMPOO_BLOCK), whole), (rest, np.where(rest > 0, 1, 0))]


def inner_matrices(blocks: Iterable[Block], dims: Dims) -> list[Matrix]:
    """Matrices of a rank that a matrix optimizer takes; equal ones counted together."""
    found: dict[tuple[float, float, bool], float] = {}
    for block in blocks:
        own = block.view(dims)
        for op in block.operators:
            for weight in op.weights:
                for m in _matrices_of(op, weight, own) if _is_inner(op, weight) else ():
                    key = (float(m.rows), float(m.columns), m.expert)
                    found[key] = found.get(key, 0.0) + float(m.count)
    return [Matrix(rows, columns, count, expert) for (rows, columns, expert), count in found.items()]


def optimizer_time_s(
    num_parameters: Numbers, numerics: Numerics, kernels: KernelModel, stack: Stack
) -> Numbers:
    """Seconds of the update of ``num_parameters`` (this rank's share), products of matrix optimizers left out.

    The stack passes over them and their states so often. Reads gradient and master weight, writes the latter and the
    low-precision copy, with the norm pass and the zeroing of gradients 22 bytes a parameter; every state is read and
    written: 38 with AdamW.
    """
    rule = RULES[numerics.optimizer]
    moved = _WIDE * (3 + rule.gradient_passes) + 2 * _WIDE + kernels.activation_bytes
    moved += 2.0 * moment_bytes(numerics)
    return kernels.memory_time_s(num_parameters * moved * stack.launch.optimizer_passes, kernels=4)


def products_time_s(
    matrices: Sequence[Matrix], shards: tuple[int, int], numerics: Numerics, kernels: KernelModel
) -> float:
    """Seconds of the products of a matrix optimizer on a rank that holds ``matrices``; 0 for others.

    ``shards`` are the ranks that share the update of what is no expert, and of experts: each takes whole
    matrices, so never less than the dearest of them.
    """
    total = 0.0
    for expert, ranks in enumerate(shards):
        mine = [m for m in matrices if m.expert == bool(expert)]
        total += float(shared_out_s(*matrices_time_s(mine, numerics, kernels), ranks))
    return total


def matrices_time_s(
    matrices: Sequence[Matrix], numerics: Numerics, kernels: KernelModel
) -> tuple[float, float]:
    """Seconds of the products of all matrices, and of the dearest of them; zeros for other optimizers."""
    kind = RULES[numerics.optimizer].products
    if not kind:
        return 0.0, 0.0
    cost = {"newton_schulz": newton_schulz_time_s, "shampoo": shampoo_time_s}[kind]
    each = [(cost(m, kernels), m.count) for m in matrices]
    return float(sum(one * count for one, count in each)), max((one for one, _ in each), default=0.0)


def shared_out_s(whole_s: Numbers, dearest_s: Numbers, ranks: Numbers) -> Numbers:
    """Seconds of products that ``ranks`` share, each of which takes whole matrices; numbers or arrays."""
    return np.maximum(whole_s / ranks, dearest_s)


def newton_schulz_time_s(matrix: Matrix, kernels: KernelModel) -> float:
    """Seconds to orthogonalise one matrix in bf16: with n <= m five times n m n, n n n and n n m products.

    Each step also passes over the matrix (3 m n) and its Gram matrix (4 n n).
    """
    model = replace(
        kernels, precision="bf16" if "bf16" in kernels.device.peak_flop_per_s else kernels.precision
    )
    n, m = sorted((float(matrix.rows), float(matrix.columns)))
    products = model.gemm_time_s(n, n, m) + model.gemm_time_s(n, n, n) + model.gemm_time_s(n, m, n)
    passes = model.memory_time_s((3 * m * n + 4 * n * n) * model.activation_bytes, kernels=3)
    return float(NEWTON_SCHULZ_STEPS * (products + passes))


def shampoo_time_s(matrix: Matrix, kernels: KernelModel) -> float:
    """Seconds of one matrix in fp32: both factors updated, both roots applied, and a hundredth of a root."""
    model = replace(kernels, precision="fp32")
    total = 0.0
    for r, rows in _sides(matrix.rows):
        for c, columns in _sides(matrix.columns):
            number = float(rows * columns)
            if not number:
                continue
            shapes = ((r, r, c), (c, c, r), (r, c, r), (r, c, c))
            products = sum(float(model.gemm_time_s(*shape, batch=number)) for shape in shapes)
            roots = ROOT_FLOP * (float(r) ** 3 + float(c) ** 3) * number / ROOT_EVERY
            total += products + roots / (model.peak("fp32") * ROOT_SHARE)
    return total
