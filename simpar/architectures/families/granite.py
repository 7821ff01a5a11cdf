"""Granite 3 and 4: Llama with factors on embeddings, branches, scores and logits; with experts, and with mixers.

Granite 4 has Mamba-2 mixers in most layers, an MLP for all tokens, beside experts if there are any, and mostly no
positions.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Scales
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    MLP_BIAS,
    experts_of,
    llama_like,
    llama_shape,
    mark_unbuilt,
    style_of,
    with_experts,
)
from simpar.architectures.state_space import kinds_of, list_missing, mixer_of, with_mixers
from simpar.architectures.transformer import Style
from simpar.architectures.weights import GATE_UP, LLAMA, Packing

DETAILS = Details(norm_eps=0.000001, scales=Scales(attention=1.0))
SPARSE = LLAMA.changed(
    layer={"router": "block_sparse_moe.router.layer", "shared_down": "shared_mlp.output_linear"},
    packed={("shared_gate", "shared_up"): ("shared_mlp.input_linear", Packing.HALVES)},
    tensors={
        "expert_up.weight": ("block_sparse_moe.input_linear.weight", Packing.EXPERT_HALVES),
        "expert_down.weight": ("block_sparse_moe.output_linear.weight", Packing.SAME),
    },
)


EXPERTS = experts_of("num_local_experts", experts=8, topk=2)


def _with_shared(config: Config) -> Mixture:
    return replace(EXPERTS(config), shared_ffn=config.optional_size("shared_intermediate_size"))


def _read_hybrid(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    shared = config.size("shared_intermediate_size", default=1024)
    config.data.get("num_experts_per_tok")  # asked for, because dense models have it, too
    if config.data.get("num_local_experts", 8):
        shape = with_experts(shape, replace(EXPERTS(config), shared_ffn=shared))
    else:
        shape = replace(shape, ffn=shared)
    usual = Style(rotary=config.text("position_embedding_type") == "rope")
    style, kinds = style_of(config, usual, ATTENTION_BIAS), kinds_of(config, shape.layers)
    graph = with_mixers(config, name, shape, style, kinds, mixer_of(config))
    return mark_unbuilt(graph, *list_missing(config))


FAMILIES = (
    ModelFamily(
        "granite",
        llama_like(biases={**ATTENTION_BIAS, **MLP_BIAS}),
        DETAILS,
        tiny={
            **TINY, "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    ModelFamily(
        "granitemoe",
        llama_like(biases=ATTENTION_BIAS, experts=EXPERTS),
        DETAILS,
        SPARSE,
        {**TINY, "num_local_experts": 4, "residual_multiplier": 0.3, "attention_multiplier": 0.2},
        classes={"granitemoe": "GraniteMoeForCausalLM"},
    ),
    ModelFamily(
        "granitemoeshared",
        llama_like(biases=ATTENTION_BIAS, experts=_with_shared),
        DETAILS,
        SPARSE,
        {**TINY, "num_local_experts": 4, "shared_intermediate_size": 24},
        classes={"granitemoeshared": "GraniteMoeSharedForCausalLM"},
    ),
    ModelFamily(
        "granitemoehybrid",
        _read_hybrid,
        DETAILS,
        SPARSE.changed(  # one class for models without experts, whose MLP is the shared one, and with them
            layer={"mlp_down": "shared_mlp.output_linear"},
            packed={GATE_UP: ("shared_mlp.input_linear", Packing.HALVES)},
        ).with_mixer("mamba"),
        {
            **TINY, "num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2,
            "mamba_chunk_size": 8, "num_local_experts": 0, "shared_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"] * 2, "residual_multiplier": 0.3,
        },
        classes={"granitemoehybrid": "GraniteMoeHybridForCausalLM"},
    ),
)  # fmt: skip
