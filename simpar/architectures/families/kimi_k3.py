"""Kimi K3: MoonViT-V2 before a language model of Kimi Linear's type with attention residuals and latent experts.

The tower has plain MLPs, RMS norms and no biases, and its heads are wider together than its stream; 2 x 2 patches side
by side pass an MLP and a norm [Kimi team 2026, arXiv 2607.24653, sections 2 and 2.4; moonshotai/Kimi-K3 config.json].
"""

from simpar.architectures.config import Config
from simpar.architectures.families.deepseek import TINY_LATENT
from simpar.architectures.families.kimi import moonvit_fields, moonvit_patches
from simpar.architectures.families.kimi_linear import TINY_LINEAR
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.transformer import Style
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import vit_shape

SILENT = (
    "norm_type", "mlp_type", "attn_bias", "linear_bias", "patch_embed_proj_bias", "activation_func", "pos_emb_type",
    "pos_emb_interpolation_mode", "merge_type", "video_attn_type", "mm_projector_type", "mm_hidden_size",
    "text_hidden_size", "projector_hidden_act", "projector_ln_eps",
)  # fmt: skip
"""Fields with one value in the released config, which is what is modelled."""


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    vision = moonvit_fields(vision)
    heads = vision.size("num_attention_heads", default=12)
    wide = vision.size("qkv_hidden_size", default=1536)
    vision = vision.having({"head_dim": wide // heads})
    patches = moonvit_patches(vision, around, bias=False)
    for field in SILENT:
        vision.data.get(field)
    shape = vit_shape(vision, hidden=1024, layers=27, heads=12, ffn=4096)
    steps = (
        ProjectorStep("mlp", hidden, inner=shape.hidden * patches.merged, bias=False),
        ProjectorStep("norm", hidden, norm="rms"),
    )
    return Vision(patches, shape, Style(gated=False), steps, end_norm="rms")


FAMILIES = (
    vision_family(
        "kimi_k3",
        _tower,
        "kimi_linear",
        {
            "text_config": {
                **TINY_LINEAR, "q_lora_rank": TINY_LATENT["q_lora_rank"], "attn_res_block_size": 3,
                "routed_expert_hidden_size": 16, "latent_moe_use_norm": True, "mla_use_output_gate": True,
                "linear_attn_config": {**TINY_LINEAR["linear_attn_config"], "use_full_rank_gate": True},
            },
            "vision_config": {
                "vt_hidden_size": 32, "vt_intermediate_size": 48, "vt_num_hidden_layers": 2,
                "vt_num_attention_heads": 3, "qkv_hidden_size": 48, "init_pos_emb_height": 4, "init_pos_emb_width": 4,
            },
        },
    ),
)  # fmt: skip
