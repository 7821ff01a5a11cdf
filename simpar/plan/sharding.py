"""Tensor-parallel sharding by the names of dims, and the dims that one rank sees.

Tensor parallelism divides heads, kv_heads, ffn and vocab; hidden and head_dim stay whole [Shoeybi et al.
2019, arXiv 1909.08053]. Operators of region "tensor" see all rows of the rank's context; those of region
"sequence" see 1/tp of them under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198]. Fewer key-value
heads than tp ranks are copied. Context parallelism divides the rows of everything; "context" stays whole, because
queries meet the keys of all ranks: in "blocks" of a ring or "gathered", after "ulysses" ranks have exchanged heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.models.graph import SHARDED_DIMS, Block, Dims, ModelGraph, Operator
from simpar.models.training import Training
from simpar.plan.plan import ContextParallel, Plan
from simpar.plan.routing import fullest_load

VOCAB_MULTIPLE = 128

__all__ = [
    "SHARDED_DIMS", "VOCAB_MULTIPLE", "RankDims", "context_dims", "expert_dims", "is_rows", "rank_dims",
    "sequence_dims", "tensor_dims",
]  # fmt: skip


@dataclass(frozen=True)
class RankDims:
    """Dims of region "tensor", of region "sequence" and (for mixtures of experts) of region "expert" on one rank."""

    tensor: Dims
    sequence: Dims
    expert: Dims | None = None

    def of_block(self, block: Block) -> RankDims:
        """The dims as a block of another tower names them."""
        expert = None if self.expert is None else block.view(self.expert)
        return RankDims(block.view(self.tensor), block.view(self.sequence), expert)

    def of(self, op: Operator) -> Dims:
        """Dims that an operator's output has."""
        if op.region == "tensor":
            return self.tensor
        return self.sequence if op.region == "sequence" or self.expert is None else self.expert


def rank_dims(graph: ModelGraph, plan: Plan, training: Training, *, load: float | None = None) -> RankDims:
    """Dims of one rank under a checked plan; ``load`` is its share of routed tokens (default: the fullest rank's)."""
    tensor, sequence = tensor_dims(graph, plan, training), sequence_dims(graph, plan, training)
    if not graph.is_mixture:
        return RankDims(tensor, sequence)
    share = fullest_load(graph.dims["experts"], plan.experts, plan.mesh.ep) if load is None else load
    return RankDims(tensor, sequence, expert_dims(tensor, sequence, plan.mesh.expert_tensor_parallel, share))


def expert_dims(tensor: Dims, sequence: Dims, etp: Any, load: Any) -> dict[str, Any]:
    """Dims of operators of region "expert": the tokens of ``etp`` ranks, times the load.

    Where the rows are whole on every tensor-parallel rank, so are those of the experts.
    """
    gathered = sequence["seq"] * etp
    return {**sequence, "seq": np.minimum(gathered, tensor["seq"]), "load": load}


def tensor_dims(
    graph: ModelGraph, plan: Plan, training: Training, *, vocab_multiple: int = VOCAB_MULTIPLE
) -> dict[str, int]:
    """Dims of operators of region "tensor" on one rank: whole rows, sharded heads, ffn and vocabulary.

    Under tensor parallelism the vocabulary is padded to a multiple of ``vocab_multiple`` x tp, as Megatron
    does. Experts are the rank's own, their ffn its share.
    """
    mesh = plan.mesh
    padding = vocab_multiple if mesh.tp > 1 else 1
    copies = plan.tensor_parallel.copies
    local = graph.local_dims(
        mesh.tp // copies, ep=mesh.ep, etp=mesh.expert_tensor_parallel, vocab_multiple=padding
    )
    rows = {name: size // mesh.cp for name, size in local.items() if name.endswith(".seq")}
    shape = {
        "batch": plan.micro_batch, "seq": training.seq_len // mesh.cp // copies, "context": training.seq_len,
        "memory": training.seq_len,
    }  # fmt: skip
    return {**local, **shape, **rows, **context_dims(plan.context_parallel, mesh.cp)}


def context_dims(choice: ContextParallel, cp: Any) -> dict[str, Any]:
    """How attention reaches all keys: "blocks" of a ring or ranks "gathered" from, and "ulysses" ranks.

    ``cp`` is an int, or an array of them.
    """
    heads = choice.degree(cp)
    ring = choice.cp_method != "all_gather"
    return {"ulysses": heads, "blocks": cp // heads if ring else 1, "gathered": 1 if ring else cp // heads}


def sequence_dims(
    graph: ModelGraph, plan: Plan, training: Training, *, vocab_multiple: int = VOCAB_MULTIPLE
) -> dict[str, int]:
    """Dims of operators of region "sequence": as "tensor", rows divided by tp under sequence parallelism."""
    dims = tensor_dims(graph, plan, training, vocab_multiple=vocab_multiple)
    if plan.tensor_parallel.sequence_parallel:
        ranks = plan.mesh.tp // plan.tensor_parallel.copies
        return {name: size // ranks if is_rows(name) else size for name, size in dims.items()}
    return dims


def is_rows(name: str) -> bool:
    """Whether a dim counts the tokens of a sequence that a block works on, or that travel beside it."""
    return name.rpartition(".")[2] in ("seq", "memory")
