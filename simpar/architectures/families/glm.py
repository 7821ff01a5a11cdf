"""GLM-4, and GLM-4.5 with experts; with vision, GLM-4.1V and 4.5V.

Half of a head's features rotate; dense versions of 2025 (glm4) have norms before and after both branches.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import dense_first, llama_like, llama_shape, routed_in_groups, style_of, with_experts
from simpar.architectures.transformer import Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import check_width, patches_of, square, vit_shape
from simpar.architectures.weights import GATE_UP, LLAMA, ROUTER_BIAS, Packing

BIAS = {"attention_bias": ("qkv_bias",)}
DENSE = Details(norm_eps=1.5625e-7, positions=Positions(Rope(fraction=0.5, interleaved=True)))
PACKED = LLAMA.changed(packed={GATE_UP: ("mlp.gate_up_proj", Packing.HALVES)})
POST_NORMED = PACKED.changed(
    layer={"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"}
)


def _read_sparse(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, ffn="moe_intermediate_size")
    shared = config.size("n_shared_experts", default=1)
    mixture = routed_in_groups(config, shared=shared, router_bias=True)
    ffn, layers = dense_first(config, shape.layers)
    style = Style(qk_norm="head" if config.flag("use_qk_norm", default=False) else "")
    full = with_experts(shape, mixture, ffn=ffn)
    return build(name, full, style_of(config, style, BIAS), layers=layers)


def _read_solar(config: Config, name: str) -> ModelGraph:
    """Solar Open's: experts in all layers, and heads without norms."""
    config.data.get("first_k_dense_replace")
    config.data.get("use_qk_norm")
    given = {"first_k_dense_replace": 0, "use_qk_norm": False, "num_nextn_predict_layers": 0}
    usual = {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "head_dim": 128}
    return _read_sparse(config.having(given).having(usual, unless_given=True), name)


def _read_seeing(config: Config, name: str) -> ModelGraph:
    """GLM-4.1V's: queries, keys and values have biases, and heads share the hidden size, whatever a config says."""
    return SEEING(config.having({"head_dim": None, "attention_bias": True}), name)


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """A gated ViT; 2 x 2 patches convolved into one, then a product, a norm and a gated MLP."""
    side = square(vision, "image_size", default=336) // square(vision, "patch_size", default=14)
    merge = vision.size("spatial_merge_size", default=2)
    patches = patches_of(
        vision, around, side=14, frames=vision.size("temporal_patch_size", default=2), merge=merge,
        positions=side * side, norm="rms",
    )  # fmt: skip
    check_width(vision, "out_hidden_size", hidden)
    wide, inner = vision.size("out_hidden_size", default=4096), vision.size("intermediate_size", default=13696)
    shape = replace(vit_shape(vision, hidden=1536, layers=24, heads=12), ffn=wide)
    bias = vision.flag("attention_bias", default=False)
    steps = (
        ProjectorStep("linear", wide), ProjectorStep("linear", wide, bias=False), ProjectorStep("norm", wide),
        ProjectorStep("gated", hidden, inner=inner, bias=False),
    )  # fmt: skip
    return Vision(patches, shape, Style(qkv_bias=bias), steps, end_norm="rms")


TINY_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "depth": 2, "num_heads": 4, "image_size": 56,
}  # fmt: skip
TINY_SPARSE = {
    **TINY, "head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 8, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True,
}  # fmt: skip
SEEING = llama_like(Style(qkv_bias=True, norms=4), kv_heads=2, biases=BIAS)
FAMILIES = (
    vision_family(
        "glm4v",
        _tower,
        "glm4v_text",
        tiny={"text_config": TINY, "vision_config": TINY_VISION},
        either=True,
    ),
    vision_family("glm46v", _tower, "glm4v_text", tiny={"text_config": TINY, "vision_config": TINY_VISION}),
    vision_family(
        "glm4v_moe",
        _tower,
        "glm4_moe",
        tiny={"text_config": TINY_SPARSE, "vision_config": TINY_VISION},
        either=True,
    ),
    ModelFamily(
        "glm",
        llama_like(Style(qkv_bias=True), head_dim=128, kv_heads=2, biases=BIAS),
        DENSE,
        PACKED,
        {**TINY, "head_dim": 8},
    ),
    ModelFamily(
        "glm4",
        llama_like(Style(qkv_bias=True, norms=4), head_dim=128, kv_heads=2, biases=BIAS),
        DENSE,
        POST_NORMED,
        {**TINY, "head_dim": 8},
    ),
    ModelFamily(
        "glm4v_text",
        _read_seeing,
        replace(DENSE, norm_eps=0.00001),
        POST_NORMED,
        TINY,
        classes={"glm4v_text": ""},
    ),
    ModelFamily(
        "glm4_moe",
        _read_sparse,
        Details(
            positions=Positions(Rope(fraction=0.5)), gating=Gating("sigmoid", bias="chooses", pairs=True)
        ),
        LLAMA.changed(tensors=ROUTER_BIAS),
        {**TINY_SPARSE, "num_nextn_predict_layers": 0, "use_qk_norm": True},
        aliases=("glm4v_moe_text",),
        classes={"glm4v_moe_text": ""},
    ),
    ModelFamily(
        "solar_open",
        _read_solar,
        Details(norm_eps=1e-5, positions=Positions(Rope(theta=1_000_000.0)),
                gating=Gating("sigmoid", bias="chooses", pairs=True)),
        LLAMA.changed(tensors=ROUTER_BIAS),
        {
            **TINY, "head_dim": 8, "n_routed_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "attention_bias": True,
        },
    ),
)  # fmt: skip
