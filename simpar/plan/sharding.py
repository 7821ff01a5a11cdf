"""Tensor-parallel sharding by the names of dims, and the dims that one rank sees.

Tensor parallelism divides heads, kv_heads, ffn and vocab; hidden and head_dim stay whole [Shoeybi et al.
2019, arXiv 1909.08053]. Operators of region "tensor" see whole sequences; those of region "sequence" see 1/tp
of the rows under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198]. Fewer key-value heads than
tp ranks are copied.
"""

from __future__ import annotations

from simpar.models.graph import SHARDED_DIMS, ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import Plan

VOCAB_MULTIPLE = 128

__all__ = ["SHARDED_DIMS", "VOCAB_MULTIPLE", "sequence_dims", "tensor_dims"]


def tensor_dims(
    graph: ModelGraph, plan: Plan, training: Training, *, vocab_multiple: int = VOCAB_MULTIPLE
) -> dict[str, int]:
    """Dims of operators of region "tensor" on one rank: whole rows, sharded heads, ffn and vocabulary.

    Under tensor parallelism the vocabulary is padded to a multiple of ``vocab_multiple`` x tp, as Megatron
    does.
    """
    mesh = plan.mesh
    local = graph.local_dims(mesh.tp, vocab_multiple=vocab_multiple) if mesh.tp > 1 else dict(graph.dims)
    shape = {"batch": plan.micro_batch, "seq": training.seq_len // mesh.cp, "context": training.seq_len}
    return {**local, **shape}


def sequence_dims(
    graph: ModelGraph, plan: Plan, training: Training, *, vocab_multiple: int = VOCAB_MULTIPLE
) -> dict[str, int]:
    """Dims of operators of region "sequence": as "tensor", rows divided by tp under sequence parallelism."""
    dims = tensor_dims(graph, plan, training, vocab_multiple=vocab_multiple)
    if plan.tensor_parallel.sequence_parallel:
        dims["seq"] //= plan.mesh.tp
    return dims
