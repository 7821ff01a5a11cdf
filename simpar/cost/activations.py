"""What a block keeps between forward and backward: the distinct tensors its operators save, in bytes.

With flash attention and fused kernels a Llama layer keeps 8h + 2(q + 2kv) + 2q + 6f + 4a bytes a token; a GPT
layer with dropout and unfused attention s b h (34 + 5 a s / h) [Korthikanti et al. 2022, arXiv 2205.05198].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simpar.cost.stack import Stack
from simpar.models.graph import Block, Dims, Operator, evaluate, saved_tensors
from simpar.plan.plan import Numerics
from simpar.units import DTYPE_BYTES

Array = Any
_FLOAT = DTYPE_BYTES["fp32"]


@dataclass(frozen=True)
class BlockActivations:
    """Bytes of one block and microbatch on one rank.

    ``saved`` live until backward; ``recomputed`` only while this block's backward runs; workspaces are the
    largest temporaries of the passes.
    """

    saved_bytes: Array
    recomputed_bytes: Array
    forward_workspace_bytes: Array
    backward_workspace_bytes: Array


@dataclass(frozen=True)
class RankDims:
    """Dims of region "tensor" and of region "sequence" on one rank."""

    tensor: Dims
    sequence: Dims

    def of(self, op: Operator) -> Dims:
        """Dims that an operator's output has."""
        return self.tensor if op.region == "tensor" else self.sequence


def block_activations(
    block: Block, dims: RankDims, stack: Stack, numerics: Numerics, recompute: str = "none"
) -> BlockActivations:
    """Saved and transient bytes of one block under a recompute choice (none, selective, full)."""
    width = DTYPE_BYTES["bf16" if numerics.precision == "fp8" else numerics.precision]
    kept = {key: _tensor_bytes(op, what, dims, width, stack) for key, op, what in saved_tensors(block)}
    scores = (
        sum(_score_bytes(op, dims, width) for op in block.operators)
        if stack.fusion.attention == "unfused"
        else 0.0
    )
    total = sum(kept.values()) + scores + _habits(block, dims, stack, width)
    logits = sum(_loss_bytes(op, dims, stack) for op in block.operators)
    whole_logits = sum(
        kept[key] for key, op, what in saved_tensors(block) if op is not None and op.name == "lm_head"
    )
    boundary = _boundary_bytes(dims, width)
    widest = max((_output_bytes(op, dims, width) for op in block.operators if op.kind != "loss"), default=0.0)
    if recompute == "full":
        return BlockActivations(boundary, total - boundary, total - boundary, widest)
    if recompute == "selective" and stack.memory.selective == "operators":
        chosen = boundary + _matmuls_and_attention(block, dims, width)
        return BlockActivations(chosen, total - chosen, max(total - chosen, widest), widest)
    if recompute == "selective":
        lse = sum(value for key, value in kept.items() if key.endswith(".lse"))
        dropped = scores if scores else lse
        return BlockActivations(total - dropped, dropped, scores, widest)
    extra = max(logits - whole_logits, 0.0)
    return BlockActivations(total, 0.0, max(widest, extra), max(widest, extra))


def _matmuls_and_attention(block: Block, dims: RankDims, width: float) -> Array:
    """Outputs of attention, and of every other matmul (half of them in bytes)."""
    share = {"attention": 1.0, "matmul": 0.5}
    return sum(share[op.kind] * _output_bytes(op, dims, width) for op in block.operators if op.kind in share)


def _tensor_bytes(op: Operator | None, what: str, dims: RankDims, width: float, stack: Stack) -> Array:
    if op is None:
        return _boundary_bytes(dims, width)
    local = dims.of(op)
    rows = evaluate(op.rows, local)
    if what == "stats":
        return 0.0 if stack.fusion.norm else rows * _FLOAT
    if what == "lse":
        return 0.0 if stack.fusion.attention == "unfused" else rows * local["heads"] * _FLOAT
    elements = rows * evaluate(op.columns, local)
    if what == "mask":
        return elements * 1.0
    return elements * width


def _output_bytes(op: Operator, dims: RankDims, width: float) -> Array:
    local = dims.of(op)
    return evaluate(op.rows, local) * evaluate(op.columns, local) * width


def _boundary_bytes(dims: RankDims, width: float) -> Array:
    """The residual stream between two blocks."""
    return dims.sequence["batch"] * dims.sequence["seq"] * dims.sequence["hidden"] * width


def _score_bytes(op: Operator, dims: RankDims, width: float) -> Array:
    """Scores kept by unfused attention: softmax output, dropout mask (1 byte) and dropout output: 5 a s^2 b."""
    if op.attention is None:
        return 0.0
    local = dims.tensor
    scores = local["batch"] * local["heads"] * local["seq"] * local["context"]
    return scores * (2 * width + 1.0 if op.attention.dropout else width)


def _habits(block: Block, dims: RankDims, stack: Stack, width: float) -> Array:
    """Bytes that a stack keeps beyond the mathematics of a transformer layer."""
    if not any(op.kind == "attention" for op in block.operators):
        return 0.0
    tensor, sequence = dims.tensor, dims.sequence
    total: Array = stack.memory.extra_saved * sequence["batch"] * sequence["seq"] * sequence["hidden"]
    tokens = tensor["batch"] * tensor["seq"]
    if stack.memory.pins_packed_qkv:
        total = total + tokens * (tensor["heads"] + tensor["kv_heads"]) * tensor["head_dim"] * width
    if stack.memory.eager_copies:
        norms = sum(1 for op in block.operators if op.kind == "norm" and op.region == "sequence")
        rows = sequence["batch"] * sequence["seq"]
        total = total + norms * rows * sequence["hidden"] * _FLOAT + tokens * tensor["ffn"] * width
    return total


def _loss_bytes(op: Operator, dims: RankDims, stack: Stack) -> Array:
    """Peak bytes of logits and loss together: ``logit_bytes`` per logit of the stack's loss."""
    if op.kind != "loss":
        return 0.0
    return evaluate(op.rows, dims.tensor) * evaluate(op.columns, dims.tensor) * stack.memory.logit_bytes
