"""Optimizers: the states they keep, the memory they move, and the products that matrix optimizers compute.

What each of them keeps and computes, and its source, stands where it is declared (:mod:`simpar.plan.optimizers`).
Matrix optimizers leave embeddings, the output projection and vectors to AdamW. Sharded, every rank updates whole
matrices, as many as its share of them; the shard of a column- or row-parallel matrix counts as a matrix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from simpar.architectures.graph import Block, Dims, ModelGraph, Operator, Weight, evaluate
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.optimizers.optimizer import ByMatrix
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Numbers

_WIDE = DTYPE_BYTES["fp32"]
UNFUSED_ACCESSES = 20 - 7
"""Reads and writes of a value by Adam's kernels one after the other, beyond those of a fused one."""
DECOMPOSITION_SHARE = 0.05
"""Share of the fp32 peak that eigendecompositions reach, an assumption."""


@dataclass(frozen=True)
class Matrix:
    """``count`` equal matrices of ``rows`` x ``columns`` (ints or arrays); those of experts are held by fewer ranks.

    ``ranks`` work on each of them together.
    """

    rows: Numbers
    columns: Numbers
    count: Numbers = 1
    expert: bool = False
    ranks: int = 1


def moment_bytes(numerics: DecidedNumerics, *, other: bool = False) -> float:
    """Bytes of states per parameter of matrices inside layers, or of ``other`` parameters; factors are left out."""
    rule = OPTIMIZERS[numerics.optimizer]
    width = rule.width_bytes or DTYPE_BYTES[numerics.moment_dtype or "fp32"]
    return (rule.others if other else rule.moments) * width


def state_bytes(block: Block, dims: Dims, numerics: DecidedNumerics) -> tuple[Numbers, Numbers]:
    """Bytes of a block's optimizer states without master weights: (outside experts, of experts)."""
    own = block.view(dims)
    totals: list[Numbers] = [0.0, 0.0]
    for op in block.operators:
        for weight in (weight for weight in op.weights if weight.trainable):
            totals[weight.kind == "expert"] += _weight_bytes(op, weight, own, numerics)
    return totals[0], totals[1]


def _weight_bytes(op: Operator, weight: Weight, dims: Dims, numerics: DecidedNumerics) -> Numbers:
    rule, size = OPTIMIZERS[numerics.optimizer], evaluate(weight.size, dims)
    inner = _is_inner(op, weight)
    kept = size * moment_bytes(numerics, other=not inner)
    if rule.factored:
        return _factor_bytes(op, weight, dims)
    beside = rule.by_matrix.fp32_values if rule.by_matrix else None
    if inner and beside is not None:
        matrices = _matrices_of(op, weight, dims)
        kept = kept + sum(_WIDE * beside(each.rows, each.columns) * each.count for each in matrices)
    return kept


def _is_inner(op: Operator, weight: Weight) -> bool:
    """Whether a matrix optimizer updates a weight: it does for products inside layers, routers excepted."""
    return weight.trainable and _is_product(op, weight) and op.name != "lm_head" and op.kind != "router"


def _is_product(op: Operator, weight: Weight) -> bool:
    """Whether a weight is a product's matrix: biases of experts are none, filters of a convolution have three sides."""
    return weight.is_matrix and bool(op.contraction)


def _factor_bytes(op: Operator, weight: Weight, dims: Dims) -> Numbers:
    """A row and a column of second moments for every matrix, all of them for what is none."""
    size = evaluate(weight.size, dims)
    if weight.kind == "embedding":
        return _WIDE * (size / dims["hidden"] + dims["hidden"])
    if not _is_product(op, weight):
        return _WIDE * size
    return _WIDE * sum((m.rows + m.columns) * m.count for m in _matrices_of(op, weight, dims))


def _matrices_of(op: Operator, weight: Weight, dims: Dims) -> list[Matrix]:
    """The matrices that a packed weight stands for: query, key and value, gate and up, one an expert."""
    inside = evaluate(op.contraction, dims)
    experts = dims["experts"] if weight.kind == "expert" else 1
    sizes = ((evaluate(((1, names),), dims), times) if names else (times, 1) for times, names in op.columns)
    return [Matrix(rows, inside, times * experts, weight.kind == "expert") for rows, times in sizes]


def inner_matrices(blocks: Iterable[Block], dims: Dims) -> list[Matrix]:
    """Matrices of a rank that a matrix optimizer updates; equal ones are counted together."""
    counts: dict[tuple[float, float, bool], float] = {}
    for block in blocks:
        own = block.view(dims)
        for op in block.operators:
            for weight in op.weights:
                for m in _matrices_of(op, weight, own) if _is_inner(op, weight) else ():
                    key = (float(m.rows), float(m.columns), m.expert)
                    counts[key] = counts.get(key, 0.0) + float(m.count)
    return [Matrix(rows, columns, count, expert) for (rows, columns, expert), count in counts.items()]


def lay_out_matrices(blocks: Iterable[Block], local: Dims, whole: Dims, layout: str | None) -> list[Matrix]:
    """The matrices that a rank works on, from its dims and those before tensor parallelism divided them.

    Each shard counts as a matrix ("blockwise", None); or every tensor-parallel rank works on whole matrices
    ("duplicated"), on its part of each with the others ("distributed"), or on its share of whole ones ("layer_sharded")
    [NVIDIA Megatron-LM, core/optimizer/muon.py and layer_sharded_muon.py].
    """
    if layout in (None, "blockwise"):
        return inner_matrices(blocks, local)
    result = []
    blocks = list(blocks)
    for ranks, each in _by_ranks(blocks, local, whole):
        if ranks == 1 or layout == "duplicated":
            result.append(each)
        elif layout == "distributed":
            result.append(replace(each, ranks=ranks))
        else:
            result.append(replace(each, count=each.count / ranks))
    return result


def _by_ranks(blocks: Sequence[Block], local: Dims, whole: Dims) -> Iterable[tuple[int, Matrix]]:
    """(Ranks that hold a part of it, whole matrix) of every weight that a matrix optimizer updates."""
    for block in blocks:
        own, full = block.view(local), block.view(whole)
        for op in block.operators:
            for weight in (weight for weight in op.weights if _is_inner(op, weight)):
                for part, each in zip(_matrices_of(op, weight, own), _matrices_of(op, weight, full), strict=True):
                    ranks = each.rows * each.columns / (part.rows * part.columns)
                    yield round(float(ranks)), replace(each, rows=float(each.rows), columns=float(each.columns))


def matrix_exchange(
    blocks: Iterable[Block], local: Dims, whole: Dims, layout: str | None, numerics: DecidedNumerics
) -> tuple[str, dict[bool, tuple[float, float]]]:
    """(Collective, (bytes, calls) outside experts and of experts) by which ranks come to the matrices that they update.

    Bytes are those of whole tensors in fp32, in one step.
    """
    rule = OPTIMIZERS[numerics.optimizer].by_matrix
    if rule is None or layout in (None, "blockwise"):
        return "", {}
    op = {"duplicated": "all_gather", "distributed": "all_reduce", "layer_sharded": "all_to_all"}[str(layout)]
    sums: dict[bool, tuple[float, float]] = {}
    for ranks, each in _by_ranks(list(blocks), local, whole):
        if ranks == 1:
            continue
        rows, columns, count = float(each.rows), float(each.columns), float(each.count)
        values = rows * columns
        if layout == "distributed":
            values = rule.summed_values(rows, columns) if rule.summed_values else 0.0
        elif layout == "layer_sharded":
            values /= ranks  # what a rank sends of it
        size, calls = sums.get(each.expert, (0.0, 0.0))
        sums[each.expert] = (size + values * count * _WIDE, calls + count)
    return op, sums


def optimizer_time_s(num_parameters: Numbers, numerics: DecidedNumerics, kernels: KernelModel, stack: Stack) -> Numbers:
    """Seconds of the update of ``num_parameters`` (this rank's share), products of matrix optimizers left out.

    Per parameter, the gradient is read, normed and zeroed (3 x 4 bytes), the master weight read and written (8), the
    low-precision copy written (2): 22 bytes; where the master weight is that copy and 16 bits more, both are read and
    written (8). Every state is read and written: 38 bytes with AdamW. The stack's
    ``optimizer_passes`` multiplies all of it. Operation by operation, Adam reads or writes parameters, gradients,
    states and its temporaries 20 times instead of 7 [torch/optim/adam.py, ``_multi_tensor_adam``].
    """
    rule = OPTIMIZERS[numerics.optimizer]
    moved = _WIDE * (3 + rule.gradient_passes) + 2 * master_bytes(numerics) + kernels.activation_bytes
    moved += kernels.activation_bytes * (numerics.master_dtype == "remainder")
    moved += 2.0 * moment_bytes(numerics)
    if divides_apart(numerics, stack):
        moved += UNFUSED_ACCESSES * DTYPE_BYTES[numerics.moment_dtype or "fp32"]
    return kernels.memory_time_s(num_parameters * moved * stack.launch.optimizer_passes, kernels=4)


def master_bytes(numerics: DecidedNumerics) -> float:
    """Bytes of a master weight: 4, or 2 as fp16 or as the bits that a parameter in bf16 lacks."""
    return DTYPE_BYTES["fp16"] if numerics.has_narrow_masters else _WIDE


def divides_apart(numerics: DecidedNumerics, stack: Stack) -> bool:
    """Whether an update makes arrays that a fused kernel keeps in registers: the root that Adam divides by."""
    rule = OPTIMIZERS[numerics.optimizer].in_torch
    return stack.numerics.update.kernels != "fused" and rule is not None and rule.denominator


def arrays_host_s(graph: ModelGraph, layout: Layout, stack: Stack) -> float:
    """Seconds of the host to clip, update and zero the arrays of parameters that a rank has, one after the other.

    Pipeline ranks share the model's arrays equally; experts in a loop have arrays of their own.
    """
    experts = graph.num_expert_tensors
    if stack.experts.loop:
        experts *= graph.dims.get("experts", 1) // int(layout.ep)
    return layout.per_pipeline_rank(len(graph.tensor_sizes) + experts) * stack.launch.host_time_per_array_s


def products_time_s(
    matrices: Sequence[Matrix], shards: tuple[int, int], numerics: DecidedNumerics, kernels: KernelModel
) -> float:
    """Seconds of the products of a matrix optimizer on a rank that holds ``matrices``; 0 for others.

    ``shards`` are the ranks that share the update (outside experts, of experts). Each of them takes whole matrices, so
    the time is never less than that of the most expensive matrix.
    """
    total = 0.0
    for expert, ranks in enumerate(shards):
        mine = [m for m in matrices if m.expert == bool(expert)]
        total += float(share_products_s(*matrices_time_s(mine, numerics, kernels), ranks))
    return total


def matrices_time_s(matrices: Sequence[Matrix], numerics: DecidedNumerics, kernels: KernelModel) -> tuple[float, float]:
    """Seconds of the products (of all matrices, of the most expensive one); zeros for other optimizers."""
    by_matrix = OPTIMIZERS[numerics.optimizer].by_matrix
    if by_matrix is None:
        return 0.0, 0.0
    each = [(_work_time_s(m, by_matrix, kernels), m.count) for m in matrices]
    return float(sum(one * count for one, count in each)), max((one for one, _ in each), default=0.0)


def share_products_s(whole_s: Numbers, dearest_s: Numbers, ranks: Numbers) -> Numbers:
    """Seconds of products that ``ranks`` share, where each rank takes whole matrices; numbers or arrays."""
    return np.maximum(whole_s / ranks, dearest_s)


def _work_time_s(matrix: Matrix, by_matrix: ByMatrix, kernels: KernelModel) -> float:
    """Seconds that one optimizer step takes for one matrix."""
    total = 0.0
    shape = (float(matrix.rows), float(matrix.columns))
    shared = by_matrix.shared_work if matrix.ranks > 1 else None
    for work in shared(*shape, matrix.ranks) if shared else by_matrix.work(*shape):
        known = work.precision in ("fp32", *kernels.device.peak_flop_per_s)
        model = replace(kernels, precision=work.precision if known else kernels.precision)
        spent = sum(float(model.gemm_time_s(*shape, batch=work.pieces)) for shape in work.products)
        if work.kernels:
            passed = work.passed_values * model.activation_bytes
            spent += float(model.memory_time_s(passed, kernels=work.kernels))
        spent += work.decomposition_flop / (model.peak("fp32") * DECOMPOSITION_SHARE)
        total += work.repeated * spent
    return total
