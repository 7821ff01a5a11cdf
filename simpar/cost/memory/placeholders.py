"""Empty weight gradients that fused accumulation leaves behind.

Products that add their weight gradient into an fp32 buffer still owe autograd a tensor of the weight's shape.
Transformer Engine makes one of each shape at the first backward and keeps it for the run, so a layer's projections
cost their own size in bf16 once, however many layers there are [``get_dummy_wgrad`` of its linear modules].
"""

from __future__ import annotations

from typing import Any

from simpar.cost.stack import Stack
from simpar.models.graph import Dims, ModelGraph, evaluate
from simpar.units import DTYPE_BYTES


def placeholder_bytes(graph: ModelGraph, dims: Dims, stack: Stack) -> Any:
    """Bytes of one placeholder of each shape among the layers' products, under a rank's dims (numbers or arrays)."""
    if not (stack.memory.transformer_engine and stack.numerics.gradient_accumulation_fusion):
        return 0.0
    shapes: dict[object, Any] = {}
    for block in {name: graph.blocks[name] for name in graph.layers}.values():
        own = block.view(dims)
        for op in block.operators:
            if op.kind not in ("matmul", "grouped_matmul"):
                continue
            experts = own["experts"] if op.kind == "grouped_matmul" else 1
            kinds = ("matrix", "expert")
            matrices = [weight.size for weight in op.weights if weight.kind in kinds and weight.trainable]
            shapes[block.scope, op.kind, tuple(matrices)] = sum(evaluate(m, own) for m in matrices) / experts
    return DTYPE_BYTES["bf16"] * sum(shapes.values())
