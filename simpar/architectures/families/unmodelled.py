"""Families with layers that no operator stands for: they are refused by name."""

UNMODELLED = {
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), "Mamba-1 state-space layers"),
    **dict.fromkeys(
        ("rwkv", "recurrent_gemma", "xlstm"), "recurrent layers",
    ),
    "zamba2": "layers that share the weights of others",
}  # fmt: skip
"""What such a model's layers are, by ``model_type``."""
UNCAPTURED = dict.fromkeys(
    ("ernie4_5_vl", "ernie4_5_moe_vl", "ernie4_5_vl_moe_text"),
    "experts of text and of images, of two widths in a layer,",
)
"""What neither an operator stands for nor a capture of the class finds, by ``model_type``."""
