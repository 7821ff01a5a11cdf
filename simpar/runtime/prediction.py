"""Layers that predict further tokens [DeepSeek-AI 2024, arXiv 2412.19437, section 2.2]: their inputs and targets.

Layer k reads the hidden state of the previous layer (of the model itself, for the first) and the embedding of the token
k places ahead, and predicts the token after that with the model's own embedding and output projection. These layers are
on the stage of the head, which then has a copy of the embedding.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from simpar.architectures.graph import INPUT, Block, ModelGraph
from simpar.runtime.data import IGNORED_TARGET

EMBEDDED, JOIN = "embedded", "join"
RETURNS = ("mlp_residual", "final_norm")
SHARED = ("lm_head", "loss", "pass")  # the model's own, applied by the decoder


def layers_of(graph: ModelGraph | None) -> int:
    """The number of further tokens that a model predicts."""
    return 0 if graph is None else sum(name in graph.auxiliary for name in graph.layers)


def to_executable(block: Block) -> Block:
    """A prediction layer as it runs: its second norm reads embedded tokens, and ``join`` reads both norms."""
    reads = {"embedding_norm": (EMBEDDED,), JOIN: ("state_norm", "embedding_norm")}
    kept = (op for op in block.operators if op.name not in SHARED)
    return replace(block, operators=tuple(replace(op, inputs=reads.get(op.name, op.inputs)) for op in kept))


READS = (INPUT, EMBEDDED)


def next_tokens(samples: Tensor, here: Tensor, further: int) -> Tensor:
    """Targets of the positions ``here`` of int64[batch, seq + 1]: int64[batch, here].

    If further tokens are predicted, int64[batch, 1 + further, here], with ``IGNORED`` beyond the end.
    """
    if not further:
        return samples[:, here + 1]
    padded = functional.pad(samples, (0, further), value=IGNORED_TARGET)
    return torch.stack([padded[:, here + 1 + depth] for depth in range(1 + further)], dim=1)
