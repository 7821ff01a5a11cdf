"""GLM-4, and GLM-4.5 with experts.

Half of a head's features rotate; dense versions of 2025 (glm4) have norms before and after both branches.
"""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import dense_first, llama_like, llama_shape, routed_in_groups, style_of, with_experts
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import GATE_UP, LLAMA, ROUTER_BIAS, Packing

BIAS = {"attention_bias": ("qkv_bias",)}
DENSE = Details(norm_eps=1.5625e-7, positions=Positions(Rope(fraction=0.5, interleaved=True)))
PACKED = LLAMA.changed(packed={GATE_UP: ("mlp.gate_up_proj", Packing.HALVES)})


def _read_sparse(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, ffn="moe_intermediate_size")
    shared = config.size("n_shared_experts", default=1)
    mixture = routed_in_groups(config, shared=shared, router_bias=True)
    ffn, layers = dense_first(config, shape.layers)
    style = Style(qk_norm="head" if config.flag("use_qk_norm", default=False) else "")
    full = with_experts(shape, mixture, ffn=ffn)
    return build(name, full, style_of(config, style, BIAS), layers=layers)


FAMILIES = (
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
        PACKED.changed(
            layer={"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"}
        ),
        {**TINY, "head_dim": 8},
    ),
    ModelFamily(
        "glm4_moe",
        _read_sparse,
        Details(
            positions=Positions(Rope(fraction=0.5)), gating=Gating("sigmoid", bias="chooses", pairs=True)
        ),
        LLAMA.changed(tensors=ROUTER_BIAS),
        {
            **TINY, "head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 8, "moe_intermediate_size": 16,
            "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
            "use_qk_norm": True, "attention_bias": True,
        },
    ),
)  # fmt: skip
