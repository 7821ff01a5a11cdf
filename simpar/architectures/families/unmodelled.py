"""Families with layers that no operator stands for: they are refused by name."""

UNMODELLED = {
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), "Mamba-1 state-space layers"),
    **dict.fromkeys(
        ("rwkv", "recurrent_gemma", "xlstm"), "recurrent layers",
    ),
    "zamba2": "layers that share the weights of others",
}  # fmt: skip
"""What such a model's layers are, by ``model_type``."""
