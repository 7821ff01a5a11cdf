"""What do we train? Models as graphs of operators with named dimensions."""

OPEN = (
    "catalogue", "details", "documents", "dropout", "encoders", "families", "flops", "graph", "hf_config",
    "hybrid", "indexer", "linear_attention", "mamba", "reading", "recompute", "training", "transformer", "tuning",
    "weights",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
