"""What models that are no decoders are trained on: masked tokens, or a text from what is left of it. No torch here.

An encoder predicts tokens that are masked among those that it sees [BERT; Devlin et al. 2018, arXiv 1810.04805, section
3.1]. An encoder with a decoder beside it reads the text with masked tokens, and its decoder says the whole text [token
masking; BART; Lewis et al. 2019, arXiv 1910.13461, section 2.2]. Which tokens follows from the sample's number, or from
its tokens, so that every layout trains on the same.
"""

from __future__ import annotations

from typing import Literal

from simpar.architectures.graph import ModelGraph

ENCODER = "layers that see the whole sequence (masked tokens are predicted)"
PAIR = "an encoder beside its decoder (which says what masked tokens were)"
"""Models that are no decoders, as a run says them."""
CHOSEN = 0.15
"""The share of tokens that are masked or predicted."""
Objective = Literal["next", "masked", "pair"]


def objective_of(graph: ModelGraph) -> Objective:
    """What a model of tokens is trained on: next tokens, masked ones, or a text from its rest."""
    blocks = [graph.blocks[name] for name in set(graph.layers)]
    starts = any(op.looks_up_vocabulary for op in graph.embedding.operators)
    patterns = [op.attention for block in blocks for op in block.operators if op.attention is not None]
    if any(op.kind == "embedding" for block in blocks for op in block.operators):
        return "pair" if starts else "next"
    scoped = any(block.scope or block.passes for block in (*blocks, graph.embedding, graph.head))
    return "masked" if starts and patterns and not scoped and not any(each.causal for each in patterns) else "next"
