"""Operators under roles on a logical mesh: which rank does how much of what, in closed form.

All sizes broadcast: divisors may be arrays over many choices of roles, and times come back as arrays.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simpar.architectures.graph import Block, Dims, Operator, Size, Weight, evaluate, term
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.cost.products import OperatorTime
from simpar.dataclass import dataclass
from simpar.layout.sharding import VOCAB_MULTIPLE, RankDims
from simpar.plan.slices import names_divided_by_slices
from simpar.stacks.stack import Stack
from simpar.units import Numbers


def slice_size(name: str, size: Numbers, number: Numbers) -> Numbers:
    """One rank's share of a dim cut into ``number`` parts, at least 1 (heads are copied); the vocabulary is padded."""
    if name == "vocab":
        return np.where(number > 1, -(-size // (VOCAB_MULTIPLE * number)) * VOCAB_MULTIPLE, size)
    return np.maximum(size // number, 1)


def _local(size: Size, dims: Dims, number: Numbers) -> Numbers:
    names = names_divided_by_slices(size)
    own = {name: slice_size(name, dims[name], number) for name in names if name}
    return evaluate(size, {**dims, **own})


@dataclass(frozen=True)
class LocalOperator:
    """One rank's share of an operator: a copy whose sizes are named dims of its own, and the dims with their values."""

    op: Operator
    dims: Dims

    @property
    def rows(self) -> Numbers:
        """Rows of the rank's output."""
        return evaluate(self.op.rows, self.dims)

    @property
    def columns(self) -> Numbers:
        """Columns of the rank's output."""
        return evaluate(self.op.columns, self.dims)


def local_operator(op: Operator, dims: Dims, by: Mapping[str, Numbers]) -> LocalOperator:
    """One rank's share of an operator; ``dims`` are global, with batch and seq, ``by`` is from :func:`divisors`."""
    own: dict[str, Numbers] = {
        "own_rows": evaluate(op.rows, dims) / (by["batch"] * by["seq"]),
        "own_contraction": _local(op.contraction, dims, by["contraction"]),
        "batch": dims["batch"] // by["batch"],
        "seq": dims["seq"] // by["seq"],
        "heads": slice_size("heads", dims["heads"], by["columns"]),
        "kv_heads": slice_size("kv_heads", dims["kv_heads"], by["columns"]),
    }
    columns: list[tuple[int, tuple[str, ...]]] = []  # of every projection, as the stack may keep them apart
    for i, (times, names) in enumerate(op.columns):
        own[f"own_columns_{i}"] = _local((((1 if names else times), names),), dims, by["columns"])
        columns.append((times if names else 1, (f"own_columns_{i}",)))
    parts = {f"own_weight_{i}": local_weight(op, weight, dims, by) for i, weight in enumerate(op.weights)}
    named = replace(
        op,
        rows=term("own_rows"),
        columns=tuple(columns),
        contraction=term("own_contraction") if op.contraction else (),
        weights=tuple(replace(weight, size=term(name)) for weight, name in zip(op.weights, parts, strict=True)),
    )
    return LocalOperator(named, {**dims, **own, **parts})


def local_time(local: LocalOperator, kernels: KernelModel, stack: Stack) -> OperatorTime:
    """Kernel seconds of one rank's share."""
    return operator_times([local.op], RankDims(local.dims, local.dims), kernels, stack)[0]


def local_weights(op: Operator, dims: Dims, by: Mapping[str, Numbers]) -> tuple[Numbers, Numbers]:
    """(elements of matrices and token tables, elements of vectors and position tables) on one rank."""
    matrices: Numbers = np.zeros(np.shape(by["batch"]))
    vectors: Numbers = np.zeros(np.shape(by["batch"]))
    for weight in op.weights:
        elements = local_weight(op, weight, dims, by)
        if weight.kind == "matrix" or (weight.kind != "vector" and op.looks_up_vocabulary):
            matrices = matrices + elements
        else:
            vectors = vectors + elements
    return matrices, vectors


def local_weight(op: Operator, weight: Weight, dims: Dims, by: Mapping[str, Numbers]) -> Numbers:
    """Elements of one of an operator's weights on one rank."""
    if weight.kind == "matrix":
        return _local(op.contraction, dims, by["contraction"]) * _local(op.columns, dims, by["columns"])
    if weight.kind == "vector":
        return _local(weight.size, dims, by["columns"] if op.kind == "matmul" else 1)
    if op.looks_up_vocabulary:
        return _local(weight.size, dims, by["contraction"]) / by["columns"]
    return evaluate(weight.size, dims) / by["columns"]


def tensor_elements(block: Block, name: str, reader: Operator | None, dims: Dims) -> float:
    """Elements of the whole tensor of a name: an operator's output, or what ``reader`` takes from outside the block."""
    op = next((op for op in block.operators if op.name == name), reader)
    assert op is not None, "what comes from outside has a reader"
    columns = op.columns if op is not reader else op.contraction or op.columns
    return float(evaluate(op.rows, dims)) * float(evaluate(columns, dims))


def shared_keys_elements(op: Operator, dims: Dims) -> float:
    """Elements of keys and values of a whole microbatch: what sequence-sharded attention gathers."""
    assert op.attention is not None, "only attention has keys"
    mask = op.attention
    width = evaluate(mask.key_dim, dims) + evaluate(mask.value_dim, dims)
    return float(dims["batch"] * dims[mask.context] * evaluate(mask.kv_heads, dims) * width)
