"""Families with layers that no operator stands for: they are refused by name."""

UNMODELLED = {
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), "Mamba-1 state-space layers"),
    **dict.fromkeys(("rwkv", "recurrent_gemma"), "recurrent layers"),
    "zamba2": "layers that share the weights of others",
}  # fmt: skip
"""What such a model's layers are, by ``model_type``."""
UNCAPTURED = {
    **dict.fromkeys(
        ("ernie4_5_vl", "ernie4_5_vl_moe_text"), "experts of text and of images, of two widths in a layer,"
    ),
    "jetmoe": "experts that hold queries and outputs of attention",
    "nllb-moe": "experts in a loop over those that a token chose",
    "blt": "patches that data cut from bytes",
    "xlstm": "matrix memories in a loop over chunks",
    "prophetnet": "streams of attention that predict further tokens",
}
"""What neither an operator stands for nor a capture of the class finds, by ``model_type``."""
OF_OTHER_CODE = {"BailingMoeV2_5ForCausalLM": "lightning attention beside latent attention"}
"""The same by the class that a config names, where the library has a later model under its ``model_type``."""
UNSEEN = {
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), "it hears, too, and no run makes sound"),
    "llama4": "transformers' class of it fails once it has read an image (5.24)",
    **dict.fromkeys(("llava_next", "llava_onevision"), "transformers' class reads sizes of images that are cut"),
}  # fmt: skip
"""Why no run gives a model images that its class should read, by ``model_type``."""
