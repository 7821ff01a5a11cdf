"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers of one kind each, Mamba-2, attention, MLPs or experts.

[arXiv 2504.03624; arXiv 2508.14444; arXiv 2512.20848]
"""

from dataclasses import replace
from functools import partial

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hybrid import LETTERS, PREDICTION, add_prediction, hybrid
from simpar.architectures.mamba import Mamba, mamba
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_shape, mark_unbuilt, style_of
from simpar.architectures.state_space import BARE_CONVOLUTION
from simpar.architectures.transformer import Style
from simpar.architectures.weights import LLAMA, Packing
from simpar.errors import UserError

NEWER = {"linear_attention": "M", "full_attention": "*"}
"""Kinds of layers as newer versions of transformers write them, by letter."""


def _read(config: Config, name: str) -> ModelGraph:
    pattern = _pattern(config)
    width = config.data.get("intermediate_size") or 1
    head_dim = config.size("attention_head_dim", default=128)
    sizes = config.having({"num_hidden_layers": len(pattern), "intermediate_size": width})
    shape = llama_shape(sizes, head_dim=head_dim)
    if "-" in pattern:
        config.size("intermediate_size")
    experts = _experts(config) if "E" in pattern else None
    shape = replace(shape, ffn=shape.ffn if "-" in pattern else 0, mixture=experts)
    state = Mamba(
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        state=config.size("ssm_state_size"),
        groups=config.size("n_groups", default=8),
        conv=config.size("conv_kernel", default=4),
        chunk=config.size("chunk_size", default=128),
    )
    if state.heads % state.groups:
        raise UserError(f"{config.source}: n_groups = {state.groups}: allowed: a divisor of the {state.heads} heads")
    style = style_of(config, Style(gated=False, rotary=False), {**ATTENTION_BIAS, **MLP_BIAS})
    wide = config.optional_size("num_layers_at_end_in_bf16")
    if wide > len(pattern):
        raise UserError(
            f"{config.source}: num_layers_at_end_in_bf16 = {wide}: allowed: at most the {len(pattern)} layers"
        )
    bias, conv_bias = config.flag("use_bias", default=False), config.flag("use_conv_bias", default=True)
    mixer = partial(mamba, bias=bias, conv_bias=conv_bias)
    graph = hybrid(name, pattern, shape, state, style, wide=wide, mixer=mixer)
    if not conv_bias:
        graph = mark_unbuilt(graph, BARE_CONVOLUTION)
    if not config.data.get("num_nextn_predict_layers"):
        return graph
    if config.text("mtp_hybrid_override_pattern", PREDICTION) != PREDICTION or experts is None:
        raise UserError(
            f"{config.source}: mtp_hybrid_override_pattern = {config.text('mtp_hybrid_override_pattern')!r}: allowed: "
            f"{PREDICTION!r}, in models with experts"
        )
    distinct = config.size("num_nextn_predict_layers")
    return add_prediction(graph, shape, style, config.size("mtp_num_layers", default=distinct), distinct)


def _pattern(config: Config) -> str:
    """The layers as letters. Raises UserError for unknown letters, or where their number is not the config's."""
    kinds = config.data.get("layers_block_type")
    if isinstance(kinds, list):
        names = {**{kind: letter for letter, kind in LETTERS.items()}, **NEWER}
        pattern = "".join(names.get(str(kind), "?") for kind in kinds)
    else:
        pattern = config.text("hybrid_override_pattern")
    strange = sorted(set(pattern) - set(LETTERS))
    if strange or not pattern:
        raise UserError(
            f"{config.source}: hybrid_override_pattern = {pattern!r}: allowed: one of {', '.join(LETTERS)} a layer"
        )
    count = config.size("num_hidden_layers", default=len(pattern))
    if count != len(pattern):
        raise UserError(
            f"{config.source}: num_hidden_layers = {count}: allowed: the {len(pattern)} of hybrid_override_pattern"
        )
    return pattern


def _experts(config: Config) -> Mixture:
    width = config.size("moe_intermediate_size")
    shared = config.size("moe_shared_expert_intermediate_size") if config.data.get("n_shared_experts", 1) else 0
    mixture = Mixture(
        config.size("n_routed_experts"), config.size("num_experts_per_tok"), width, shared_ffn=shared, router_bias=True,
        gated=False, latent=config.optional_size("moe_latent_size"),
    )  # fmt: skip
    if mixture.topk > mixture.experts:
        raise UserError(
            f"{config.source}: num_experts_per_tok = {mixture.topk}: allowed: at most the {mixture.experts} experts"
        )
    return mixture


FAMILIES = (
    ModelFamily(
        "nemotron_h",
        _read,
        Details("relu2", gating=Gating("sigmoid", bias="chooses", pairs=True), steps=(0.001, None)),
        LLAMA.changed(
            layers="backbone.layers",
            layer={
                "mamba_norm": "norm", "attention_norm": "norm", "mlp_norm": "norm", "query": "mixer.q_proj",
                "key": "mixer.k_proj", "value": "mixer.v_proj", "o_proj": "mixer.o_proj", "up": "mixer.up_proj",
                "mlp_down": "mixer.down_proj", "router": "mixer.gate", "shared_up": "mixer.shared_experts.up_proj",
                "shared_down": "mixer.shared_experts.down_proj", "latent_down": "mixer.fc1_latent_proj",
                "latent_up": "mixer.fc2_latent_proj",
            },
            tensors={"router.bias": ("mixer.gate.e_score_correction_bias", Packing.SAME)},
            experts_in="mixer.experts",
            experts=("", "up_proj", "down_proj"),
            ends={"token_embedding": "backbone.embeddings", "final_norm": "backbone.norm_f"},
        ).with_mixer("mixer"),
        {
            **{key: value for key, value in TINY.items() if key != "num_hidden_layers"}, "head_dim": 8,
            "mamba_num_heads": 8, "n_groups": 2, "mamba_head_dim": 8, "ssm_state_size": 16, "chunk_size": 8,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
        },
    ),
)  # fmt: skip
