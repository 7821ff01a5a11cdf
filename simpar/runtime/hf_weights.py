"""Names and layouts of released weights: which tensors of a Hugging Face checkpoint are which parameters here.

A family gives the names of its modules and says which of them are stored as one; everything else follows from the
parameters of the model. Layouts are those of the checkpoints of transformers. torch is imported only when tensors are
read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simpar.errors import UserError
from simpar.models.families import DECLARED
from simpar.runtime.hf_layouts import (
    DEPTHWISE,
    GROUPS,
    HALVES,
    LATENT,
    LATENT_KEY,
    MIXED,
    PAIRED,
    ROW,
    ROWS,
    ROWS_OF_PAIRS,
    SAME,
    STACKED,
    STATE_ROWS,
    SWAPPED,
    TURNED,
    TURNED_PAIRED,
    TURNED_ROWS,
    TURNED_ROWS_OF_EXPERTS,
    Layout,
    Tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

QKV = tuple(f"qkv.parts.{part}" for part in range(3))
UP = ("mlp_up.parts.0", "mlp_up.parts.1")


@dataclass(frozen=True)
class Rule:
    """Parameters ``ours`` that correspond to tensors ``theirs`` in another layout."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    layout: Layout

    def read(self, tensors: Tensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """The parameters, from the tensors in their order."""
        return dict(zip(self.ours, self.layout.read(tensors, dims), strict=True))

    def write(self, parameters: Tensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors, from the parameters in their order."""
        return dict(zip(self.theirs, self.layout.write(parameters, dims), strict=True))


@dataclass(frozen=True)
class Names:
    """The names of a family's modules.

    ``layer`` maps our modules of layers to theirs, ``ends`` those outside of layers. ``fused`` are several of ours that
    are one of theirs, with its layout. ``experts`` are the modules of one expert's gate, up and down products, under
    ``experts_in``. ``turned`` are ours whose matrices are stored transposed. ``whole`` names tensors of theirs without
    a leaf name, or several that are one of ours.
    """

    layers: str
    layer: Mapping[str, str]
    ends: Mapping[str, str]
    fused: Mapping[tuple[str, ...], tuple[str, Layout]] = field(default_factory=dict)
    experts_in: str = "mlp.experts"
    experts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    turned: frozenset[str] = frozenset()
    whole: Mapping[str, tuple[str | tuple[str, ...], Layout]] = field(default_factory=dict)


def _changed(names: Names, **changes: Any) -> Names:
    """A family with some modules renamed."""
    merged: dict[str, Any] = {
        key: {**getattr(names, key), **value} if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return replace(names, **merged)


LLAMA = Names(
    layers="model.layers",
    layer={
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "qkv.parts.0": "self_attn.q_proj", "qkv.parts.1": "self_attn.k_proj", "qkv.parts.2": "self_attn.v_proj",
        "qk_norm.query": "self_attn.q_norm", "qk_norm.key": "self_attn.k_norm", "o_proj.parts.0": "self_attn.o_proj",
        "mlp_up.parts.0": "mlp.gate_proj", "mlp_up.parts.1": "mlp.up_proj", "mlp_down.parts.0": "mlp.down_proj",
        "router": "mlp.gate", "shared_up.parts.0": "mlp.shared_experts.gate_proj",
        "shared_up.parts.1": "mlp.shared_experts.up_proj", "shared_down.parts.0": "mlp.shared_experts.down_proj",
        "q_down.parts.0": "self_attn.q_a_proj", "q_norm": "self_attn.q_a_layernorm",
        "kv_norm": "self_attn.kv_a_layernorm", "state_norm": "hnorm", "embedding_norm": "enorm",
        "final_norm": "shared_head.norm",
    },
    ends={
        "embedding.token_embedding": "model.embed_tokens", "head.final_norm": "model.norm",
        "head.lm_head.parts.0": "lm_head",
    },
    fused={
        ("kv_down.parts.0", "kv_down.parts.1"): ("self_attn.kv_a_proj_with_mqa", LATENT_KEY),
        ("kv_up.parts.0", "kv_up.parts.1"): ("self_attn.kv_b_proj", LATENT), ("join.parts.0",): ("eh_proj", SWAPPED),
    },
)  # fmt: skip
SANDWICH = _changed(
    LLAMA,
    layer={
        "attention_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)  # fmt: skip


def _with_mixer(names: Names, mixer: str) -> Names:
    """A family with state-space mixers of a given name."""
    return _changed(
        names,
        layer={"mixer_norm": f"{mixer}.norm", "out_proj.parts.0": f"{mixer}.out_proj", "conv": f"{mixer}.conv1d"},
        fused={tuple(f"in_proj.parts.{part}" for part in range(5)): (f"{mixer}.in_proj", STATE_ROWS)},
        whole={
            "conv.weight": (f"{mixer}.conv1d.weight", DEPTHWISE), "scan.decay": (f"{mixer}.A_log", SAME),
            "scan.skip": (f"{mixer}.D", SAME), "scan.step_bias": (f"{mixer}.dt_bias", SAME),
        },
    )  # fmt: skip


HYBRID = _with_mixer(
    _changed(
        LLAMA,
        layer={
            "mlp_norm": "pre_ff_layernorm", "mlp_up.parts.0": "feed_forward.gate_proj",
            "mlp_up.parts.1": "feed_forward.up_proj", "mlp_down.parts.0": "feed_forward.down_proj",
        },
        ends={"head.final_norm": "model.final_layernorm"},
    ),
    "mamba",
)  # fmt: skip
LATENT_LLAMA = _changed(LLAMA, layer={"q_up.parts.0": "self_attn.q_b_proj"})
CHOOSING = {"router.bias": ("mlp.gate.e_score_correction_bias", SAME)}
FUSED = Names(
    "transformer.h",
    {
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "o_proj.parts.0": "self_attention.dense", "mlp_up.parts.0": "mlp.dense_h_to_4h",
        "mlp_down.parts.0": "mlp.dense_4h_to_h",
    },
    {
        "embedding.token_embedding": "transformer.word_embeddings", "head.final_norm": "transformer.ln_f",
        "head.lm_head.parts.0": "lm_head",
    },
    fused={QKV: ("self_attention.query_key_value", GROUPS)},
)  # fmt: skip
"""Families that store queries, keys and values of every group of heads together."""
GPT2 = Names(
    "transformer.h",
    {
        "attention_norm": "ln_1", "mlp_norm": "ln_2", "o_proj.parts.0": "attn.c_proj", "mlp_up.parts.0": "mlp.c_fc",
        "mlp_down.parts.0": "mlp.c_proj",
    },
    {
        "embedding.token_embedding": "transformer.wte", "embedding.position_embedding": "transformer.wpe",
        "head.final_norm": "transformer.ln_f", "head.lm_head.parts.0": "lm_head",
    },
)  # fmt: skip
FAMILIES: dict[str, Names] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "qwen2", "qwen3", "gemma", "olmo", "qwen3_moe", "olmoe", "granite", "ernie4_5",
            "internlm3", "seed_oss", "helium", "ministral", "ministral3", "cwm", "cohere", "cohere2", "smollm3",
            "stablelm",
        ),
        LLAMA,
    ),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "olmo2", "olmo3", "exaone4"), SANDWICH),
    **dict.fromkeys(("arcee", "nemotron", "jais2"), _changed(LLAMA, layer={"mlp_up.parts.0": "mlp.up_proj"})),
    "hunyuan_v1_dense": _changed(
        LLAMA, layer={"qk_norm.query": "self_attn.query_layernorm", "qk_norm.key": "self_attn.key_layernorm"}
    ),
    "glm": _changed(LLAMA, fused={UP: ("mlp.gate_up_proj", HALVES)}),
    "glm4": _changed(
        LLAMA, fused={UP: ("mlp.gate_up_proj", HALVES)},
        layer={"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"},
    ),
    "phi3": _changed(
        LLAMA, fused={QKV: ("self_attn.qkv_proj", ROWS), UP: ("mlp.gate_up_proj", HALVES)}
    ),
    "phi": _changed(
        LLAMA,
        layer={"o_proj.parts.0": "self_attn.dense", "mlp_up.parts.0": "mlp.fc1", "mlp_down.parts.0": "mlp.fc2"},
        ends={"head.final_norm": "model.final_layernorm"},
    ),
    "starcoder2": _changed(LLAMA, layer={"mlp_up.parts.0": "mlp.c_fc", "mlp_down.parts.0": "mlp.c_proj"}),
    "gpt2": replace(
        GPT2, fused={QKV: ("attn.c_attn", TURNED_ROWS)},
        turned=frozenset({"o_proj.parts.0", "mlp_up.parts.0", "mlp_down.parts.0"}),
    ),
    "gpt_bigcode": replace(GPT2, fused={QKV: ("attn.c_attn", ROWS)}),
    "gpt_neo": _changed(
        GPT2,
        layer={
            "qkv.parts.0": "attn.attention.q_proj", "qkv.parts.1": "attn.attention.k_proj",
            "qkv.parts.2": "attn.attention.v_proj", "o_proj.parts.0": "attn.attention.out_proj",
        },
    ),
    "gptj": _changed(
        GPT2,
        layer={
            "qkv.parts.0": "attn.q_proj", "qkv.parts.1": "attn.k_proj", "qkv.parts.2": "attn.v_proj",
            "o_proj.parts.0": "attn.out_proj", "mlp_up.parts.0": "mlp.fc_in", "mlp_down.parts.0": "mlp.fc_out",
        },
    ),
    "persimmon": _changed(
        LLAMA,
        layer={
            "o_proj.parts.0": "self_attn.dense", "mlp_up.parts.0": "mlp.dense_h_to_4h",
            "mlp_down.parts.0": "mlp.dense_4h_to_h",
        },
        ends={"head.final_norm": "model.final_layernorm"},
        fused={QKV: ("self_attn.query_key_value", GROUPS)},
    ),
    "gpt_neox": _changed(
        FUSED, layers="gpt_neox.layers", layer={"o_proj.parts.0": "attention.dense"},
        ends={
            "embedding.token_embedding": "gpt_neox.embed_in", "head.final_norm": "gpt_neox.final_layer_norm",
            "head.lm_head.parts.0": "embed_out",
        },
        fused={QKV: ("attention.query_key_value", GROUPS)},
    ),
    "falcon": _changed(FUSED, layer={"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}),
    "mpt": Names(
        "transformer.blocks",
        {
            "attention_norm": "norm_1", "mlp_norm": "norm_2", "o_proj.parts.0": "attn.out_proj",
            "mlp_up.parts.0": "ffn.up_proj", "mlp_down.parts.0": "ffn.down_proj",
        },
        {
            "embedding.token_embedding": "transformer.wte", "head.final_norm": "transformer.norm_f",
            "head.lm_head.parts.0": "lm_head",
        },
        fused={QKV: ("attn.Wqkv", ROWS)},
    ),
    "opt": Names(
        "model.decoder.layers",
        {
            "attention_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm",
            "qkv.parts.0": "self_attn.q_proj", "qkv.parts.1": "self_attn.k_proj", "qkv.parts.2": "self_attn.v_proj",
            "o_proj.parts.0": "self_attn.out_proj", "mlp_up.parts.0": "fc1", "mlp_down.parts.0": "fc2",
        },
        {
            "embedding.token_embedding": "model.decoder.embed_tokens",
            "embedding.position_embedding": "model.decoder.embed_positions",
            "head.final_norm": "model.decoder.final_layer_norm", "head.lm_head.parts.0": "lm_head",
        },
    ),
    "bloom": _changed(FUSED, ends={"embedding.embedding_norm": "transformer.word_embeddings_layernorm"}),
    **dict.fromkeys(
        ("mixtral", "phimoe"),
        _changed(
            LLAMA, layer={"router": "block_sparse_moe.gate"}, experts_in="block_sparse_moe.experts",
            experts=("w1", "w3", "w2"),
        ),
    ),
    "llama4_text": _changed(
        LLAMA,
        layer={
            "router": "feed_forward.router", "mlp_up.parts.0": "feed_forward.gate_proj",
            "mlp_up.parts.1": "feed_forward.up_proj", "mlp_down.parts.0": "feed_forward.down_proj",
            "shared_up.parts.0": "feed_forward.shared_expert.gate_proj",
            "shared_up.parts.1": "feed_forward.shared_expert.up_proj",
            "shared_down.parts.0": "feed_forward.shared_expert.down_proj",
        },
        whole={
            "expert_up.weight": ("feed_forward.experts.gate_up_proj", TURNED_PAIRED),
            "expert_down.weight": ("feed_forward.experts.down_proj", TURNED),
        },
    ),
    "dbrx": Names(
        "transformer.blocks",
        {
            "attention_norm": "norm_attn_norm.norm_1", "mlp_norm": "norm_attn_norm.norm_2",
            "o_proj.parts.0": "norm_attn_norm.attn.out_proj", "router": "ffn.router.layer",
        },
        {
            "embedding.token_embedding": "transformer.wte", "head.final_norm": "transformer.norm_f",
            "head.lm_head.parts.0": "lm_head",
        },
        fused={QKV: ("norm_attn_norm.attn.Wqkv", ROWS)},
        whole={
            "expert_up.weight": (("ffn.experts.mlp.w1", "ffn.experts.mlp.v1"), ROWS_OF_PAIRS),
            "expert_down.weight": ("ffn.experts.mlp.w2", TURNED_ROWS_OF_EXPERTS),
        },
    ),
    "grok-1": _changed(
        LLAMA,
        layer={
            "attention_norm": "pre_attn_norm", "attention_post_norm": "post_attn_norm", "mlp_norm": "pre_moe_norm",
            "mlp_post_norm": "post_moe_norm", "qkv.parts.0": "attn.q_proj", "qkv.parts.1": "attn.k_proj",
            "qkv.parts.2": "attn.v_proj", "o_proj.parts.0": "attn.o_proj", "router": "moe_block.gate",
        },
        experts_in="moe_block.experts", experts=("linear", "linear_v", "linear_1"),
    ),
    "qwen2_moe": _changed(
        LLAMA,
        layer={
            "shared_up.parts.0": "mlp.shared_expert.gate_proj", "shared_up.parts.1": "mlp.shared_expert.up_proj",
            "shared_down.parts.0": "mlp.shared_expert.down_proj",
        },
        whole={"shared_up.score": ("mlp.shared_expert_gate.weight", SAME)},
    ),
    "deepseek": LLAMA, "deepseek_v2": LATENT_LLAMA,
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _changed(LATENT_LLAMA, whole=CHOOSING)),
    "glm4_moe": _changed(LLAMA, whole=CHOOSING),
    "falcon_h1": HYBRID, "bamba": HYBRID,
    "mamba2": _with_mixer(
        _changed(
            LLAMA, layers="backbone.layers", layer={"mamba_norm": "norm"},
            ends={"embedding.token_embedding": "backbone.embeddings", "head.final_norm": "backbone.norm_f"},
        ),
        "mixer",
    ),
    "nemotron_h": _with_mixer(
        _changed(
            LLAMA, layers="backbone.layers",
            layer={
                "mamba_norm": "norm", "attention_norm": "norm", "mlp_norm": "norm", "qkv.parts.0": "mixer.q_proj",
                "qkv.parts.1": "mixer.k_proj", "qkv.parts.2": "mixer.v_proj", "o_proj.parts.0": "mixer.o_proj",
                "mlp_up.parts.0": "mixer.up_proj", "mlp_down.parts.0": "mixer.down_proj",
            },
            ends={"embedding.token_embedding": "backbone.embeddings", "head.final_norm": "backbone.norm_f"},
        ),
        "mixer",
    ),
    "granitemoehybrid": _with_mixer(
        _changed(
            LLAMA, layer={"mlp_down.parts.0": "shared_mlp.output_linear"},
            fused={UP: ("shared_mlp.input_linear", HALVES)},
        ),
        "mamba",
    ),
    "dots1": _changed(LLAMA, whole=CHOOSING), "flex_olmo": SANDWICH,
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared"),
        _changed(
            LLAMA, layer={"router": "block_sparse_moe.router.layer", "shared_down.parts.0": "shared_mlp.output_linear"},
            fused={("shared_up.parts.0", "shared_up.parts.1"): ("shared_mlp.input_linear", HALVES)},
            whole={
                "expert_up.weight": ("block_sparse_moe.input_linear.weight", PAIRED),
                "expert_down.weight": ("block_sparse_moe.output_linear.weight", SAME),
            },
        ),
    ),
    "ernie4_5_moe": _changed(LLAMA, whole={"router.bias": ("mlp.moe_statics.e_score_correction_bias", ROW)}),
    "hunyuan_v1_moe": _changed(
        LLAMA,
        layer={
            "qk_norm.query": "self_attn.query_layernorm", "qk_norm.key": "self_attn.key_layernorm",
            "router": "mlp.gate.wg", "shared_up.parts.0": "mlp.shared_mlp.gate_proj",
            "shared_up.parts.1": "mlp.shared_mlp.up_proj", "shared_down.parts.0": "mlp.shared_mlp.down_proj",
        },
    ),
    "minimax_m2": _changed(
        LLAMA, layer={"router": "block_sparse_moe.gate"}, experts_in="block_sparse_moe.experts",
        experts=("w1", "w3", "w2"), whole={"router.bias": ("block_sparse_moe.e_score_correction_bias", SAME)},
    ),
    "gpt_oss": _changed(
        LLAMA, layer={"router": "mlp.router"},
        whole={
            "attention.sinks": ("self_attn.sinks", SAME),
            "expert_up.weight": ("mlp.experts.gate_up_proj", MIXED),
            "expert_up.bias": ("mlp.experts.gate_up_proj_bias", MIXED),
            "expert_down.weight": ("mlp.experts.down_proj", TURNED),
            "expert_down.bias": ("mlp.experts.down_proj_bias", SAME),
        },
    ),
}  # fmt: skip
FAMILIES |= {
    kind: _changed(FAMILIES[each.weights_like], layer={**each.layer}, ends={**each.ends})
    for kind, each in DECLARED.items()
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def rules(family: str, parameters: Sequence[str], dims: Mapping[str, int]) -> list[Rule]:
    """The rules for the named parameters of a model. Raises UserError for a family whose files are not known."""
    if family not in FAMILIES:
        raise UserError(
            f"model_type = {family or 'none'}: its weight files are not known; allowed: {', '.join(sorted(FAMILIES))}"
        )
    names = FAMILIES[family]
    if family == "falcon" and not any("mlp_norm" in name for name in parameters):
        names = _changed(names, layer={"attention_norm": "input_layernorm"})  # one norm for both branches
    if family == "gpt_bigcode" and dims["kv_heads"] > 1:
        names = replace(names, fused={QKV: ("attn.c_attn", GROUPS)})  # q, k, v of each head together
    return [*_rules(names, family, list(parameters), dims)]


def _rules(names: Names, family: str, parameters: list[str], dims: Mapping[str, int]) -> Iterator[Rule]:
    done: set[str] = set()
    plain_query = "q_rank" in dims and not dims["q_rank"]
    for name in parameters:
        if name in done:
            continue
        found = _LAYER.fullmatch(name)
        if found is None:
            module, _, leaf = name.rpartition(".")
            yield Rule((name,), (f"{names.ends[module]}.{leaf}",), SAME)
            continue
        layer, own = found.groups()
        rule = _in_layer(names, own, dims, plain_query=plain_query)
        if rule is None:
            raise UserError(f"{name}: files of {family} have no such tensor that the reader knows")
        yield Rule(
            tuple(f"layers.{layer}.{each}" for each in rule.ours),
            tuple(f"{names.layers}.{layer}.{each}" for each in rule.theirs),
            rule.layout,
        )
        done |= {f"layers.{layer}.{each}" for each in rule.ours}


def _in_layer(names: Names, own: str, dims: Mapping[str, int], *, plain_query: bool) -> Rule | None:
    """The rule of one parameter of a layer, and of those that are stored with it."""
    if own in names.whole:
        theirs, layout = names.whole[own]
        return Rule((own,), (theirs,) if isinstance(theirs, str) else theirs, layout)
    module, _, leaf = own.rpartition(".")
    if module in ("expert_up", "expert_down"):
        gate, up, down = names.experts
        kinds = (gate, up) if module == "expert_up" else (down,)
        each = [f"{names.experts_in}.{e}.{kind}.{leaf}" for kind in kinds for e in range(dims["num_experts"])]
        return Rule((own,), tuple(each), STACKED)
    for ours, (theirs, layout) in names.fused.items():
        if module in ours:
            return Rule(tuple(f"{part}.{leaf}" for part in ours), (f"{theirs}.{leaf}",), layout)
    if module == "q_up.parts.0" and plain_query:
        return Rule((own,), (f"self_attn.q_proj.{leaf}",), SAME)
    if own in names.layer:  # this parameter is a module of theirs
        return Rule((own,), (f"{names.layer[own]}.weight",), SAME)
    if module not in names.layer:
        return None
    return Rule((own,), (f"{names.layer[module]}.{leaf}",), TURNED if module in names.turned else SAME)
