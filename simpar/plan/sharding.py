"""Tensor-parallel sharding by named dims, and the dims that one rank sees."""

from __future__ import annotations

from simpar.models.graph import SHARDED_DIMS, ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import Plan

VOCAB_MULTIPLE = 128

__all__ = ["SHARDED_DIMS", "VOCAB_MULTIPLE", "sequence_dims", "tensor_dims"]


def tensor_dims(graph: ModelGraph, plan: Plan, training: Training) -> dict[str, int]:
    """Dims of operators of region "tensor" on one rank: whole rows, sharded heads, ffn and vocabulary.

    The vocabulary is padded to a multiple of 128 x tp under tensor parallelism, as Megatron does.
    """
    mesh = plan.mesh
    local = graph.local_dims(mesh.tp, vocab_multiple=VOCAB_MULTIPLE) if mesh.tp > 1 else dict(graph.dims)
    seq = training.seq_len // mesh.cp
    return {**local, "batch": plan.micro_batch, "seq": seq, "context": training.seq_len}


def sequence_dims(graph: ModelGraph, plan: Plan, training: Training) -> dict[str, int]:
    """Dims of operators of region "sequence": rows divided by tp under sequence parallelism."""
    dims = tensor_dims(graph, plan, training)
    if plan.tensor_parallel.sequence_parallel and plan.mesh.tp > 1:
        dims["seq"] //= plan.mesh.tp
    return dims
