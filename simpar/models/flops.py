"""Model FLOP: what a step must compute whatever the layout, by convention."""

from __future__ import annotations

from simpar.models.graph import ModelGraph, evaluate


def attention_flop_per_token(graph: ModelGraph, seq_len: int, convention: str = "full") -> float:
    """Forward FLOP of core attention per token: 2 a (d_k + d_v) s a layer, half of it under "causal".

    Windows bound s.
    """
    total = 0.0
    for name in graph.layers:
        for op in graph.blocks[name].operators:
            if op.attention is not None:
                width = evaluate(op.attention.key_dim, graph.dims) + evaluate(
                    op.attention.value_dim, graph.dims
                )
                window = min(op.attention.window or seq_len, seq_len)
                seen = window if convention == "full" else op.attention.mean_keys(seq_len)
                total += 2.0 * graph.dims["heads"] * width * seen
    return total


def model_flop_per_token(graph: ModelGraph, seq_len: int, convention: str = "full") -> float:
    """Forward and backward FLOP per token: 6 N_matmul plus three times the forward of attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B; "causal" counts only unmasked scores.
    """
    return 6.0 * graph.num_matmul_parameters() + 3.0 * attention_flop_per_token(graph, seq_len, convention)


def hardware_flop_per_token(
    graph: ModelGraph, seq_len: int, recompute: str, convention: str = "full"
) -> float:
    """Model FLOP plus what is recomputed: another forward of the layers (full), of attention (selective).

    ``every:C`` recomputes one layer in C.
    """
    attention = attention_flop_per_token(graph, seq_len, convention)
    extra = 0.0
    if recompute == "selective":
        extra = attention
    elif recompute != "none":
        head = graph.dims["hidden"] * graph.dims["vocab"]
        period = int(recompute.removeprefix("every:")) if recompute.startswith("every:") else 1
        recomputed = -(-len(graph.layers) // period) / len(graph.layers)
        extra = recomputed * (2.0 * (graph.num_matmul_parameters() - head) + attention)
    return model_flop_per_token(graph, seq_len, convention) + extra
