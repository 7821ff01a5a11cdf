"""Tensor-parallel sharding by the names of dims, and the dims that one rank sees.

Tensor parallelism divides heads, kv_heads, ffn and vocab; hidden and head_dim stay whole [Shoeybi et al.
2019, arXiv 1909.08053]. Operators of region "tensor" see all rows of the rank's context; those of region
"sequence" see 1/tp of them under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198]. Fewer key-value
heads than tp ranks are copied. Context parallelism divides the rows of everything, those of another tower's output
("memory") too; "context" stays whole, because queries meet the keys of all ranks: in "blocks" of a ring or "gathered",
after "ulysses" ranks have exchanged heads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.flops import shape_dims
from simpar.architectures.graph import SHARDED_DIMS, Block, Dims, ModelGraph, Operator
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.plan.routing import Routing, max_rank_load
from simpar.units import Numbers

VOCAB_MULTIPLE = 128

__all__ = [
    "SHARDED_DIMS",
    "VOCAB_MULTIPLE",
    "RankDims",
    "before_tensor_parallelism",
    "context_dims",
    "dims_of",
    "is_rows",
    "rank_dims",
]


@dataclass(frozen=True)
class RankDims:
    """Dims of region "tensor", of region "sequence" and (for mixtures of experts) of region "expert" on one rank.

    ``whole`` are scopes of towers that every tensor-parallel rank computes whole; ``is_whole``: these are one's dims.
    """

    tensor: Dims
    sequence: Dims
    expert: Dims | None = None
    whole: tuple[str, ...] = ()
    is_whole: bool = False

    def of_block(self, block: Block) -> RankDims:
        """The dims as a block of another tower names them."""
        expert = None if self.expert is None else block.view(self.expert)
        is_whole = block.scope in self.whole
        return RankDims(block.view(self.tensor), block.view(self.sequence), expert, self.whole, is_whole)

    @cached_property
    def known(self) -> dict[tuple[Any, ...], Any]:
        """What was worked out with these dims and is kept with them (:mod:`simpar.cost.activations`)."""
        return {}

    @cached_property
    def with_more_load(self) -> RankDims:
        """The dims with one more unit of load on the rank's experts: what is linear in the load grows by its slope."""
        assert self.expert is not None, "only mixtures route tokens"
        return replace(self, expert={**self.expert, "load": self.expert["load"] + 1.0})

    def of(self, op: Operator) -> Dims:
        """The dims in which the sizes of an operator's output are evaluated."""
        if op.region == "tensor":
            return self.tensor
        return self.sequence if op.region == "sequence" or self.expert is None else self.expert


def rank_dims(graph: ModelGraph, layout: Layout, training: Training, *, load: float | None = None) -> RankDims:
    """Dims of one rank; ``load`` is its routed tokens over the mean (default: the fullest rank's).

    Columns give arrays.
    """
    dims = dims_of(graph, layout, training, load=load)
    expert = None if dims.expert is None else _numbers(dims.expert)
    return RankDims(_numbers(dims.tensor), _numbers(dims.sequence), expert, dims.whole)


def _ends(name: str, kind: str) -> bool:
    """Whether a dim is of a kind, in the model or in a scope."""
    return name.rpartition(".")[2] == kind


def _inside(name: str, scopes: tuple[str, ...]) -> bool:
    """Whether a dim is one of some towers."""
    return name.rpartition(".")[0] in scopes


def _numbers(dims: Dims) -> Dims:
    """Dims with 0-dimensional arrays turned into numbers."""
    return {name: size if np.ndim(size) else np.asarray(size).item() for name, size in dims.items()}


def dims_of(graph: ModelGraph, layout: Layout, training: Training, *, load: float | None = None) -> RankDims:
    """Dims of all regions for a layout, or for many as columns.

    Rows of region "tensor" are whole; those of region "sequence" are divided under sequence parallelism. Under tensor
    parallelism the vocabulary is padded to a multiple of VOCAB_MULTIPLE x tp, as Megatron does; "whole_vocab" is that
    of all ranks. "experts" are the rank's own and "expert_ffn" is its share; in region "expert", rows are those of all
    ranks that share an expert, and "load" multiplies them.
    """
    tp, cp = np.asarray(layout.tp), np.asarray(layout.cp)
    whole = {**shape_dims(graph, training.seq_len), "batch": layout.micro_batch, "seq": training.seq_len}
    towers = graph.whole_scopes
    tensor = {name: _local_size(name, size, 1 if _inside(name, towers) else tp, cp) for name, size in whole.items()}
    tensor |= context_dims(layout)
    tensor["whole_vocab"] = graph.dims.get("vocab", 0)
    etp = layout.expert_tensor_parallel
    if graph.is_mixture:
        tensor |= {name: size // np.asarray(layout.ep) for name, size in graph.dims.items() if _ends(name, "experts")}
        tensor |= {name: size // etp for name, size in graph.dims.items() if _ends(name, "expert_ffn")}
    ranks = np.where(np.asarray(layout.sequence_parallel, bool), tp, 1)
    sequence = {
        name: size // ranks if is_rows(name) and not _inside(name, towers) else size for name, size in tensor.items()
    }
    if not graph.is_mixture:
        return RankDims(tensor, sequence, whole=towers)
    share = max_rank_load(Routing.of_dims(graph.dims), layout, layout.ep) if load is None else load
    rows = np.minimum(sequence["seq"] * etp, tensor["seq"])  # whole where they are on every tensor-parallel rank
    return RankDims(tensor, sequence, {**sequence, "seq": rows, "load": share}, towers)


def before_tensor_parallelism(graph: ModelGraph, local: Dims) -> Dims:
    """The dims of a rank as if tensor parallelism had divided nothing; experts stay the rank's own."""
    divided = (*SHARDED_DIMS, "expert_ffn")
    return {name: graph.dims[name] if name.rpartition(".")[2] in divided else size for name, size in local.items()}


def _local_size(name: str, size: Numbers, tp: NDArray[np.int64] | int, cp: NDArray[np.int64]) -> Numbers:
    """A dim on one rank: heads, ffn and vocabulary divided by ``tp``, rows by ``cp``."""
    kind = name.rpartition(".")[2]
    if kind == "vocab":
        return np.where(np.asarray(tp) > 1, -(-size // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE, size)
    if kind == "kv_heads":
        heads: Numbers = np.maximum(size // tp, 1)
        return heads
    if kind in SHARDED_DIMS:
        return size // tp
    return size // cp if is_rows(name) else size


def context_dims(layout: Layout) -> dict[str, Numbers]:
    """How attention reaches all keys: "blocks" in a ring, ranks "gathered" from, and "ulysses" ranks."""
    heads, ring = layout.ulysses_ranks, layout.cp_method != "all_gather"
    others = layout.cp // heads
    return {"ulysses": heads, "blocks": others if ring else 1, "gathered": 1 if ring else others}


def is_rows(name: str) -> bool:
    """Whether a dim counts the tokens of a sequence that a block works on, or that travel beside it."""
    return name.rpartition(".")[2] in ("seq", "memory")
