"""A model as a graph of operators with named dims.

Sizes are polynomials in named dims ("heads", "ffn", ...), so that the same operator answers for a whole model, for
one tensor-parallel shard (evaluate with local dims) and for a thousand layouts at once (evaluate with arrays).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Dims = Mapping[str, Any]
Size = tuple[tuple[int, tuple[str, ...]], ...]

SHARDED_DIMS = ("heads", "kv_heads", "ffn", "vocab")
INPUT = "input"


def evaluate(size: Size, dims: Dims) -> Any:
    """Value of a polynomial: the sum over its terms of coefficient x product of named dims.

    ``dims`` maps names to ints or numpy arrays; arrays broadcast.
    """
    total: Any = 0
    for coefficient, names in size:
        term: Any = coefficient
        for name in names:
            term = term * dims[name]
        total = total + term
    return total


def term(*names: str, times: int = 1) -> Size:
    """A polynomial of one term."""
    return ((times, names),)


HEAD_DIM, KV_HEADS = term("head_dim"), term("kv_heads")


@dataclass(frozen=True)
class Weight:
    """A parameter tensor: its number of elements and whether it is a matrix, a vector or an embedding table."""

    name: str
    size: Size
    kind: str = "matrix"


@dataclass(frozen=True)
class Attention:
    """Core attention: causal or not, over a sliding ``window`` of tokens or all of them (None).

    ``chunked`` windows do not slide: a query sees the keys of its own window only. Widths of one head: ``key_dim``
    of queries and keys, ``value_dim`` of values; ``kv_heads`` counts the key-value heads.
    """

    causal: bool = True
    window: int | None = None
    chunked: bool = False
    dropout: bool = False
    key_dim: Size = HEAD_DIM
    value_dim: Size = HEAD_DIM
    kv_heads: Size = KV_HEADS

    def mean_keys(self, context: Any) -> Any:
        """Keys that a query sees on average: half of them under a causal mask, at most a window of them."""
        if self.window is None:
            return context / 2 if self.causal else context
        keys = np.minimum(self.window, context)
        if not self.causal:
            return keys
        return keys / 2 if self.chunked else keys - keys * keys / (2 * context)


@dataclass(frozen=True)
class Operator:
    """One operator of a block.

    Output elements are rows x columns; a matmul contracts ``contraction``. ``inputs`` name the operators of the
    block that it reads ("input" is the block's input). ``saves`` names the tensors kept for backward: an operator
    (its output), "input", or the operator's own "mask" (1 byte an element), "stats" (4 bytes a row) or "lse"
    (4 bytes a row and head). ``region`` is "tensor" where rows are whole and heads, ffn or vocab may be sharded,
    "sequence" where sequence parallelism shards the rows.
    """

    name: str
    kind: str
    rows: Size
    columns: Size
    region: str
    contraction: Size = ()
    weights: tuple[Weight, ...] = ()
    inputs: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    attention: Attention | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Block:
    """Operators in execution order; the output of the last one is the block's output."""

    name: str
    operators: tuple[Operator, ...]

    def parameters(self, dims: Dims) -> Any:
        """Number of parameters under the given dims (global dims: all of them, local dims: one shard's)."""
        return sum(evaluate(weight.size, dims) for op in self.operators for weight in op.weights)

    def operator(self, name: str) -> Operator:
        """The operator of that name."""
        return next(op for op in self.operators if op.name == name)


@dataclass(frozen=True)
class ModelGraph:
    """A model: global dims, the kinds of blocks, and the block of every layer in order.

    ``embedding`` comes before the layers; ``head`` (final norm, output projection, loss) after them.
    """

    name: str
    dims: Mapping[str, int]
    blocks: Mapping[str, Block]
    layers: tuple[str, ...]
    embedding: Block
    head: Block
    tied_embeddings: bool
    facts: Mapping[str, Any] = field(default_factory=dict)

    def num_parameters(self) -> int:
        """Exact number of parameters; tied embeddings count once."""
        total = self.embedding.parameters(self.dims) + self.head.parameters(self.dims)
        total += sum(self.blocks[name].parameters(self.dims) for name in self.layers)
        return int(total - (self._output_projection() if self.tied_embeddings else 0))

    def num_matmul_parameters(self) -> int:
        """Parameters that a token is multiplied with: matrices of layers, and the output projection."""
        blocks = [self.blocks[name] for name in self.layers] + [self.head]
        matmuls = (op for block in blocks for op in block.operators if op.kind == "matmul")
        return int(
            sum(evaluate(w.size, self.dims) for op in matmuls for w in op.weights if w.kind == "matrix")
        )

    def _output_projection(self) -> int:
        return int(
            sum(
                evaluate(weight.size, self.dims)
                for op in self.head.operators
                for weight in op.weights
                if weight.kind == "matrix"
            )
        )

    def local_dims(self, tp: int, *, vocab_multiple: int = 1) -> dict[str, int]:
        """Dims of one tensor-parallel shard: heads, ffn and vocab divided, kv heads replicated below one.

        The vocabulary is padded to a multiple of ``vocab_multiple`` x tp first.
        """
        local = dict(self.dims)
        multiple = vocab_multiple * tp
        local["vocab"] = -(-self.dims["vocab"] // multiple) * multiple // tp
        local["heads"] = self.dims["heads"] // tp
        local["kv_heads"] = max(self.dims["kv_heads"] // tp, 1)
        local["ffn"] = self.dims["ffn"] // tp
        return local


def is_row_parallel(op: Operator) -> bool:
    """Whether tensor parallelism shards the contraction, so that the output is a partial sum."""
    return any(name in SHARDED_DIMS for _, names in op.contraction for name in names)


def is_column_parallel(op: Operator) -> bool:
    """Whether tensor parallelism shards the output columns of a matmul."""
    return op.kind == "matmul" and any(name in SHARDED_DIMS for _, names in op.columns for name in names)


def saved_tensors(block: Block) -> tuple[tuple[str, Operator | None, str], ...]:
    """Every distinct tensor a block keeps for backward: (key, operator that makes or owns it, what).

    ``what`` is "output", "input", "mask", "stats" or "lse"; the operator is None for the block's input.
    """
    found: dict[str, tuple[str, Operator | None, str]] = {}
    for op in block.operators:
        for name in op.saves:
            if name in ("mask", "stats", "lse"):
                found.setdefault(f"{op.name}.{name}", (f"{op.name}.{name}", op, name))
            elif name == INPUT:
                found.setdefault(INPUT, (INPUT, None, "input"))
            else:
                found.setdefault(name, (name, block.operator(name), "output"))
    return tuple(found.values())
