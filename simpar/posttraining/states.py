"""States of recurrent layers while a replica serves: bytes of a sequence, updates of a token, prompts in chunks.

A layer with a Mamba-2 mixer, linear attention or a short convolution keeps no keys but a state, whose size no length
changes: heads x head_dim x state elements of a scan [Dao and Gu 2024, arXiv 2405.21060], heads x key_dim x value_dim of
linear attention [Yang et al. 2024, arXiv 2412.06464], and the k - 1 last inputs of a convolution over k tokens [shapes
in vLLM 0.11, model_executor/layers/mamba/mamba_utils.py]. Tensor parallelism divides its heads.

Decoding reads and writes all of it for every token, in one kernel beside that of the convolution [mamba-ssm,
selective_state_update; flash-linear-attention, fused_recurrent_gated_delta_rule]; the few FLOP an element of state
(:data:`simpar.architectures.flops.RECURRENCES`) take less time. Prompts run through the chunked kernels of training,
piece by piece in whole chunks; every piece begins with a state and leaves one.
"""

from collections.abc import Sequence

from simpar.architectures.flops import RECURRENCES
from simpar.architectures.graph import Block, Dims, Operator, evaluate
from simpar.cost.kernels import KernelModel
from simpar.cost.linear_attention import DIRECTIONS, linear_attention_time_s
from simpar.cost.state_space import FORWARD, scan_time_s
from simpar.dataclass import dataclass
from simpar.plan.post_training import RecurrentStates
from simpar.posttraining.iterations import Piece
from simpar.units import DTYPE_BYTES

CONVOLUTION = "convolution"
STATE_DTYPES = {"channel_delta": "fp32"}
"""Dtypes of states where nothing is said, by kind of operator; others have bf16 [vLLM 0.11, mamba_utils.py]."""


def recurrences(block: Block) -> list[Operator]:
    """The operators of a block that carry a state along the sequence; convolutions are rows like all others."""
    return [op for op in block.operators if op.kind in RECURRENCES]


def has_state(block: Block) -> bool:
    """Whether a block keeps something of a sequence that no length changes."""
    return any(op.kind in RECURRENCES or op.kind == CONVOLUTION for op in block.operators)


@dataclass(frozen=True)
class LayerState:
    """One layer of one device: ``kept_bytes`` of a sequence, and what a token's update moves and computes.

    ``update_bytes`` are the state read and written, and what its kernel reads and writes beside it.
    """

    kept_bytes: float
    update_bytes: float
    update_flop: float
    kernels: int


def layer_state(block: Block, own: Dims, states: RecurrentStates, activation_bytes: float) -> LayerState:
    """The state of a block under the dims of a rank."""
    kept = moved = flop = 0.0
    for op in recurrences(block):
        elements, width = _elements(op, own), DTYPE_BYTES[states.dtype or STATE_DTYPES.get(op.kind, "bf16")]
        kept += elements * width
        moved += 2.0 * elements * width + _beside(op, own) * activation_bytes
        flop += RECURRENCES[op.kind][0] * elements
    for op in block.operators:
        if op.kind == CONVOLUTION:
            size = _inputs_kept(op, own) * activation_bytes
            kept, moved = kept + size, moved + 2.0 * size
    return LayerState(kept, moved, flop, len(recurrences(block)))


def _elements(op: Operator, own: Dims) -> float:
    """Elements of a recurrence's state: its output's, for each feature of a key."""
    return float(evaluate(op.columns, own)) * float(own[RECURRENCES[op.kind][1]])


def _beside(op: Operator, own: Dims) -> float:
    """Elements that an update reads and writes beside the state: values and output, keys and queries."""
    shared = (
        own["mamba_groups"] * own["state"] if op.kind == "scan" else own["linear_key_heads"] * own["linear_key_dim"]
    )
    return 2.0 * (float(evaluate(op.columns, own)) + float(shared))


def _inputs_kept(op: Operator, own: Dims) -> float:
    """Elements of the k - 1 last inputs of a convolution over k tokens."""
    channels = float(evaluate(op.columns, own))
    filters = next(float(evaluate(weight.size, own)) for weight in op.weights if weight.is_matrix)
    return filters - channels


def update_s(layer: LayerState, kernels: KernelModel) -> float:
    """Seconds that one sequence's token adds to the kernels of a layer's states: its bytes, or its FLOP in fp32."""
    rate = kernels.device.peak_flop_per_s.get("fp32", kernels.peak(kernels.activation_dtype))
    return max(layer.update_bytes / kernels.bandwidth, layer.update_flop / rate)


def prompt_s(block: Block, own: Dims, kernels: KernelModel, pieces: Sequence[Piece], parts: int) -> float:
    """Seconds of a block's recurrences over pieces of prompts, of which a device has one in ``parts`` at a time."""
    total = 0.0
    for op in recurrences(block):
        size = int(own["chunk"])
        count = sum(-(-piece.tokens // size) for piece in pieces)
        dims = {**own, "batch": max(1.0, count / parts), "seq": float(size)}
        if op.kind == "scan":
            total += float(scan_time_s(dims, kernels, FORWARD))
        else:
            total += float(linear_attention_time_s(dims, kernels, DIRECTIONS[op.kind][0]))
    return total
