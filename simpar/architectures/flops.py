"""Model FLOP: the work of a step under any layout, by convention."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add

from simpar.architectures.graph import PRODUCTS, Block, ModelGraph, Operator, Size, evaluate
from simpar.architectures.linear_attention import FLOP_PER_STATE
from simpar.architectures.recompute import by_share, count_modes, is_full, operators
from simpar.architectures.tuning import TUNED

SCAN_FLOP = 7.0
"""FLOP of a recurrence per token and element of state, whatever a chunked scan computes: Megatron-Core's convention
(megatron/training/training.py, ``mamba_layer_flops``)."""
RECURRENCES = {
    "scan": (SCAN_FLOP, "state"),
    **{kind: (flop, "linear_key_dim") for kind, flop in FLOP_PER_STATE.items()},
}
"""By kind of operator: FLOP per token and element of state, and the dim that a state has beside the output's."""

_Shares = Callable[[Operator, Mapping[str, int]], Iterable[float]]
"""FLOP per token of an operator under global dims."""


def shape_dims(graph: ModelGraph, seq_len: int, *, batch: int = 1) -> dict[str, int]:
    """Global dims of the model for ``batch`` sequences, with experts in balance.

    Towers with a fixed length keep it.
    """
    lengths = dict.fromkeys(("seq", "context", "memory", "text.seq"), seq_len)
    return {"batch": batch, **lengths, "load": 1, **graph.dims}


def _summed(graph: ModelGraph, seq_len: int, blocks: tuple[Block, ...], shares: _Shares) -> float:
    """The sum over the operators of blocks, in their order; those of one block in many layers are counted once."""
    shape, known = shape_dims(graph, seq_len), dict[int, list[float]]()
    for block in blocks:
        if id(block) not in known:
            dims = block.view(shape)
            known[id(block)] = [each for op in block.operators for each in shares(op, dims)]
    # one after the other: Python's sum rounds otherwise from 3.12 on
    return reduce(add, chain.from_iterable(known[id(block)] for block in blocks), 0.0)


def _cut(blocks: Iterable[Block], kept: Callable[[Operator], bool]) -> tuple[Block, ...]:
    """The blocks with some of their operators; a block in many layers stays one."""
    listed = list(blocks)
    cut = {id(b): replace(b, operators=tuple(op for op in b.operators if kept(op))) for b in listed}
    return tuple(cut[id(block)] for block in listed)


def _count(size: Size, dims: Mapping[str, int]) -> int:
    """A size under global dims, which are integers."""
    return int(evaluate(size, dims))


def _layers(graph: ModelGraph) -> tuple[Block, ...]:
    return tuple(graph.blocks[name] for name in graph.layers)


def matmul_flop_per_token(graph: ModelGraph, seq_len: int) -> float:
    """Forward FLOP per token of products with weights: 2 per parameter and row, with rows per token.

    State-space scans and linear attention are included, with those of :data:`RECURRENCES` per element of state.
    """
    return _matmul_flop(graph, seq_len, (graph.embedding, *_layers(graph), graph.head))


def _matmul_flop(graph: ModelGraph, seq_len: int, blocks: tuple[Block, ...]) -> float:
    def shares(op: Operator, dims: Mapping[str, int]) -> Iterator[float]:
        if op.kind in PRODUCTS:
            each = 2.0 * _count(op.contraction, dims) * _count(op.columns, dims)
            yield each * (_count(op.rows, dims) / seq_len)
        elif op.kind in RECURRENCES:
            flop, state = RECURRENCES[op.kind]
            each = flop * _count(op.columns, dims) * dims[state]
            yield each * (_count(op.rows, dims) / seq_len)

    return _summed(graph, seq_len, blocks, shares)


def attention_flop_per_token(graph: ModelGraph, seq_len: int, convention: str = "full") -> float:
    """Forward FLOP of core attention per token: 2 a (d_k + d_v) s per layer, half of it under "causal".

    Windows, and selections of keys, bound s. "causal" halves masked attention only: towers that see all of their
    input count in full. An indexer adds 2 FLOP per key that it scores and feature of its heads.
    """
    return _attention_flop(graph, seq_len, _layers(graph), convention)


def _attention_flop(graph: ModelGraph, seq_len: int, blocks: tuple[Block, ...], convention: str) -> float:
    def shares(op: Operator, dims: Mapping[str, int]) -> Iterator[float]:
        if op.kind == "indexer":
            keys = dims["context"] / dims["index_ratio"] / (1 if convention == "full" else 2)
            yield 2.0 * dims["index_heads"] * dims["index_dim"] * keys * (_count(op.rows, dims) / seq_len)
        if op.attention is None:
            return
        context, mask = dims[op.attention.context], op.attention
        width = _count(mask.key_dim, dims) + _count(mask.value_dim, dims)
        counted = mask.most_keys if convention == "full" or not mask.causal else mask.mean_keys
        seen = float(counted(context))
        yield 2.0 * dims["heads"] * width * seen * (_count(op.rows, dims) / seq_len)

    return _summed(graph, seq_len, blocks, shares)


def model_flop_per_token(graph: ModelGraph, seq_len: int, convention: str = "full") -> float:
    """Forward and backward FLOP per token: 6 N_matmul plus three times the forward of attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B; "causal" counts only unmasked scores.
    """
    matmuls = matmul_flop_per_token(graph, seq_len)
    if graph.embedding.has_no_backward or graph.facts.get(TUNED):
        return _tuning_flop(graph, seq_len, matmuls, convention)
    return 3.0 * (matmuls + attention_flop_per_token(graph, seq_len, convention))


def _tuning_flop(graph: ModelGraph, seq_len: int, matmuls: float, convention: str) -> float:
    """Forward and backward FLOP per token where weights are frozen.

    Input gradients count above the first trained layer, weight gradients for trained weights.
    """
    above = tuple(block for block in (*_layers(graph), graph.head) if not block.has_no_backward)
    trained = _cut(above, lambda op: op.is_trained)
    attention = attention_flop_per_token(graph, seq_len, convention)
    attention += 2.0 * _attention_flop(graph, seq_len, above, convention)
    return matmuls + _matmul_flop(graph, seq_len, above) + _matmul_flop(graph, seq_len, trained) + attention


def hardware_flop_per_token(graph: ModelGraph, seq_len: int, recompute: str, convention: str = "full") -> float:
    """Model FLOP per token plus recomputation: another forward of the layers (full) or of attention (selective).

    ``modules:A+B`` recomputes the operators of some modules; choices by layer, ``every:C`` among them, count by their
    share of the layers.
    """
    if by_share(recompute):
        every = count_modes(recompute, len(graph.layers))
        kinds = {"full" if is_full(mode) else mode for mode in every}
        each = {kind: hardware_flop_per_token(graph, seq_len, kind, convention) for kind in kinds}
        total = sum(count * each["full" if is_full(mode) else mode] for mode, count in every.items())
        return total / len(graph.layers)
    attention = attention_flop_per_token(graph, seq_len, convention)
    extra = 0.0
    if recompute == "selective":
        extra = attention
    elif chosen := operators(recompute):
        again = _cut(_layers(graph), lambda op: op.name in chosen)
        extra = _matmul_flop(graph, seq_len, again) + ("attention" in chosen) * attention
    elif recompute != "none":
        extra = _matmul_flop(graph, seq_len, _layers(graph)) + attention
    return model_flop_per_token(graph, seq_len, convention) + extra
