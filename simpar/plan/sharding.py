"""Tensor-parallel sharding by the names of dims, and the dims that one rank sees.

Tensor parallelism divides heads, kv_heads, ffn and vocab; hidden and head_dim stay whole [Shoeybi et al.
2019, arXiv 1909.08053]. Operators of region "tensor" see all rows of the rank's context; those of region
"sequence" see 1/tp of them under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198]. Fewer key-value
heads than tp ranks are copied. Context parallelism divides the rows of everything; "context" stays whole, because
queries meet the keys of all ranks: in "blocks" of a ring or "gathered", after "ulysses" ranks have exchanged heads.
"""

from __future__ import annotations

from typing import Any

from simpar.models.graph import SHARDED_DIMS, ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import ContextParallel, Plan

VOCAB_MULTIPLE = 128

__all__ = ["SHARDED_DIMS", "VOCAB_MULTIPLE", "context_dims", "is_rows", "sequence_dims", "tensor_dims"]


def tensor_dims(
    graph: ModelGraph, plan: Plan, training: Training, *, vocab_multiple: int = VOCAB_MULTIPLE
) -> dict[str, int]:
    """Dims of operators of region "tensor" on one rank: whole rows, sharded heads, ffn and vocabulary.

    Under tensor parallelism the vocabulary is padded to a multiple of ``vocab_multiple`` x tp, as Megatron
    does.
    """
    mesh = plan.mesh
    local = graph.local_dims(mesh.tp, vocab_multiple=vocab_multiple) if mesh.tp > 1 else dict(graph.dims)
    rows = {name: size // mesh.cp for name, size in local.items() if name.endswith(".seq")}
    shape = {
        "batch": plan.micro_batch, "seq": training.seq_len // mesh.cp, "context": training.seq_len,
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
        return {name: size // plan.mesh.tp if is_rows(name) else size for name, size in dims.items()}
    return dims


def is_rows(name: str) -> bool:
    """Whether a dim counts the tokens of a sequence that a block works on, or that travel beside it."""
    return name.rpartition(".")[2] in ("seq", "memory")
