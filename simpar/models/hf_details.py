"""Details of a model from its Hugging Face config: the fields of every family, with the family's own defaults.

Defaults are those of the configuration classes of transformers; where a class has none, those of its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.models.config import Config
from simpar.models.details import Caps, Details, Dropout, Gating, Positions, Rope, Scales
from simpar.models.families import DECLARED
from simpar.models.graph import ModelGraph

ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function", "activation")
EPSILON_FIELDS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
TANH = "gelu_pytorch_tanh"


def _turning(theta: float = 10_000.0, **fields: Any) -> Positions:
    return Positions(Rope(theta, **fields))


_GEMMA = Details(TANH, 0.000001, norm_offset=1.0)
_MISTRAL = Details(norm_eps=0.000001)
_CHOSEN = Gating("sigmoid", bias="chooses", pairs=True)
_PLAIN = Gating(normalised=False)
_DEEPSEEK = Details(norm_eps=0.000001, positions=_turning(interleaved=True), gating=_PLAIN)
_DEEPSEEK_3 = replace(_DEEPSEEK, gating=replace(_CHOSEN, factor=2.5))
_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_MINISTRAL = {
    "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
_GLM = Details(norm_eps=1.5625e-7, positions=_turning(fraction=0.5, interleaved=True))
DEFAULTS: Mapping[str, Details] = {
    "llama": _MISTRAL, "mistral": _MISTRAL, "qwen2": _MISTRAL, "qwen3": _MISTRAL,
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, caps=Caps(attention=50.0, logits=30.0), scales=Scales(attention=256**-0.5)),
    "gemma3_text": replace(
        _GEMMA, positions=Positions(Rope(1_000_000.0), Rope()), scales=Scales(attention=256**-0.5)
    ),
    "phi3": Details(), "phi": Details("gelu_new", positions=_turning(fraction=0.5)),
    "olmo": Details(), "olmo2": Details(),
    "gpt2": Details("gelu_new", dropout=Dropout(0.1, 0.1, 0.1)),
    "gpt_neox": Details("gelu", positions=_turning(fraction=0.25)),
    "falcon": Details("gelu"), "mpt": Details("gelu", positions=Positions(alibi=True)),
    "opt": Details("relu", positions=Positions(offset=2)), "bloom": Details(TANH, positions=Positions(alibi=True)),
    "starcoder2": Details(TANH, init_std=0.018042),
    "mixtral": Details(positions=_turning(1_000_000.0)),
    "qwen2_moe": Details(norm_eps=0.000001, gating=_PLAIN), "qwen3_moe": Details(norm_eps=0.000001, gating=_PLAIN),
    "deepseek": Details(norm_eps=0.000001, gating=_PLAIN), "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_3, "kimi_k2": _DEEPSEEK_3,
    "glm4_moe": Details(positions=_turning(fraction=0.5), gating=_CHOSEN),
    "gpt_oss": Details("quick_gelu", positions=_turning(150_000.0, scaling=_YARN)),
    "llama4_text": Details(positions=_turning(500_000.0, interleaved=True), gating=Gating("sigmoid_of_input")),
    "olmoe": Details(gating=_PLAIN),
    "phimoe": Details(positions=_turning(1_000_000.0), gating=Gating("sparse_mixer")),
    "dbrx": Details(), "grok-1": Details("gelu", gating=_PLAIN),
    "nemotron_h": Details("relu2", gating=_CHOSEN, least_step=0.001),
    **dict.fromkeys(
        ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"),
        replace(_MISTRAL, scales=Scales(attention=1.0)),
    ),
    "dots1": replace(_MISTRAL, gating=replace(_CHOSEN, normalised=False)),
    "flex_olmo": replace(_MISTRAL, positions=_turning(500_000.0), gating=_PLAIN),
    "minimax_m2": replace(_MISTRAL, positions=_turning(5_000_000.0), gating=Gating("sigmoid", bias="chooses")),
    "ernie4_5_moe": Details(positions=_turning(500_000.0, interleaved=True), gating=Gating(bias="chooses")),
    "hunyuan_v1_moe": Details(), "falcon_h1": Details(), "bamba": Details(positions=_turning(fraction=0.5)),
    "mamba2": Details(init_std=0.1),
    "ministral": _MISTRAL,
    "seed_oss": replace(_MISTRAL, dropout=Dropout(0.0, 0.1, 0.1)),
    "smollm3": replace(_MISTRAL, positions=_turning(2_000_000.0)),
    "ernie4_5": Details(positions=_turning(500_000.0, interleaved=True)),
    "helium": Details(norm_eps=1e-8, positions=_turning(100_000.0, interleaved=True)),
    "cwm": Details(positions=_turning(1_000_000.0, scaling=_LLAMA3)),
    "ministral3": Details(positions=_turning(1_000_000.0, scaling=_MINISTRAL)),
    "cohere": Details(positions=_turning(500_000.0, interleaved=True), scales=Scales(logits=0.0625)),
    "cohere2": Details(positions=_turning(interleaved=True), scales=Scales(logits=0.0625)),
    "glm": _GLM, "glm4": _GLM, "olmo3": Details(positions=Positions(Rope(500_000.0), Rope(500_000.0))),
    "stablelm": Details(positions=_turning(fraction=0.25)), "arcee": Details("relu2"), "jais2": Details("relu2"),
    "nemotron": Details("relu2", norm_offset=1.0, init_std=0.0134, positions=_turning(fraction=0.5)),
    "persimmon": Details("relu2", positions=_turning(fraction=0.5)),
    "apertus": Details("xielu", positions=_turning(12_000_000.0, scaling={**_LLAMA3, "factor": 8.0})),
    "gptj": Details("gelu_new", positions=_turning(fraction=0.25, interleaved=True)),
    "gpt_neo": Details("gelu_new", scales=Scales(attention=1.0)),
    "gpt_bigcode": Details(TANH, dropout=Dropout(0.1, 0.1, 0.1)), "internlm3": Details(), "exaone4": Details(),
    "hunyuan_v1_dense": Details(),
}  # fmt: skip
ALIASES = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
LISTED_AS = {"gemma": ("gelu", TANH), "gemma2": ("gelu", TANH), "gpt_oss": ("silu", "quick_gelu")}
"""Activations that configs of a family name, and those that its code uses instead."""
BY_ROOT = {"gemma", "gemma2", "gemma3", "gemma3_text"}
"""Families whose embeddings are multiplied by the root of the hidden size."""
SILENT = {
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache", "model_type", "source",
    "name", "_name_or_path", "pretraining_tp", "tokenizer_class", "id2label", "label2id", "is_encoder_decoder",
    "max_position_embeddings", "n_ctx", "output_hidden_states", "output_attentions", "return_dict", "problem_type",
    "task_specific_params", "chunk_size_feed_forward", "is_decoder", "add_cross_attention", "n_positions",
    "gradient_checkpointing", "attn_implementation", "use_return_dict", "bos_token_id", "eos_token_id", "pad_token_id",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "cache_implementation", "output_router_logits", "classifier_dropout", "init_device", "max_window_layers",
    "original_max_position_embeddings", "vision_config",
    "qk_head_dim", "max_seq_len", "embedding_fraction", "norm_type",
    "num_logits_to_keep", "use_mamba_kernels", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank",
    "time_step_min", "time_step_max", "time_step_floor", "moe_norm_min",
    "eod_token_id", "sep_token_id", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
}  # fmt: skip
"""Fields that do not affect what a model computes in training, beside those that a reader asks for."""


def details(config: Config, graph: ModelGraph) -> Details:
    """The details of a config from which its family's reader made ``graph``. Raises UserError."""
    kind = config.text("model_type")
    usual = DEFAULTS.get(ALIASES.get(kind, kind)) or Details("silu" if _is_gated(graph) else "gelu")
    usual = DECLARED[kind].details if kind in DECLARED else usual
    positions = _positions(config, usual.positions, graph.dims["head_dim"])
    found = Details(
        activation=_activation(config, kind, usual.activation),
        norm_eps=config.number(*EPSILON_FIELDS, default=usual.norm_eps),
        norm_offset=usual.norm_offset,
        init_std=config.number("initializer_range", "init_std", default=usual.init_std),
        positions=positions,
        dropout=_dropout(config, usual.dropout) if _drops(graph) else Dropout(),
        scales=_scales(config, graph, usual, positions.rope.temperature),
        caps=Caps(
            config.optional("attn_logit_softcapping", default=usual.caps.attention),
            config.optional("final_logit_softcapping", default=usual.caps.logits),
            _clipped(config, kind),
        ),
        gating=_gating(config, usual.gating),
        least_step=config.number("time_step_min", default=usual.least_step) if usual.least_step else 0.0,
    )
    return replace(found, unread=config.unread(SILENT), unbuilt=graph.details.unbuilt)


def _activation(config: Config, kind: str, usual: str) -> str:
    named = next((text for name in ACTIVATION_FIELDS if (text := config.text(name))), usual)
    old, meant = LISTED_AS.get(kind, ("", ""))
    return meant if named == old else named


def _clipped(config: Config, kind: str) -> float | None:
    """The bound of queries, keys and values; OLMoE's, which applies behind norms, is not read."""
    if kind == "olmo":
        return config.optional("clip_qkv")
    return Config(config.mapping("attn_config") or {}, config.source).optional("clip_qkv")


def _positions(config: Config, usual: Positions, head_dim: int) -> Positions:
    """Rotary positions of layers without and with a window: fields of the config or of its ``rope_parameters``."""
    if turned := config.optional("rotary_dim"):
        share = _share(turned, head_dim)
        usual = replace(usual, rope=replace(usual.rope, fraction=share))
    said = config.mapping("rope_parameters"), config.mapping("rope_scaling")
    given = {name: value for fields in said for name, value in (fields or {}).items()}
    if not any(said):
        given = dict(usual.rope.scaling)
    if (config.mapping("attn_config") or {}).get("rope_theta") is not None:  # DBRX has it there
        inner = Config(config.mapping("attn_config") or {}, config.source)
        usual = replace(
            usual, rope=replace(usual.rope, theta=inner.number("rope_theta", default=usual.rope.theta))
        )
    theta = config.number("rope_theta", "rotary_emb_base", default=usual.rope.theta)
    fraction = config.number("partial_rotary_factor", "rotary_pct", default=usual.rope.fraction)
    beside = config.flag("rope_interleave", default=usual.rope.interleaved)
    plain = replace(usual.rope, theta=theta, fraction=fraction, interleaved=beside)
    near = replace(
        plain, theta=config.number("rope_local_base_freq", default=_near(usual, theta)), scaling={}
    )
    by_layer = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    rope = _rope(by_layer.get("full_attention", {}) if by_layer else given, plain)
    windowed = _rope(by_layer.get("sliding_attention", {}), near)
    alibi = usual.alibi and bool((config.mapping("attn_config") or {}).get("alibi", True))
    return replace(usual, rope=rope, windowed=windowed if by_layer or usual.windowed else None, alibi=alibi)


def _share(turned: float, head_dim: int) -> float:
    """The fraction of a head that ``turned`` features make up, rounded so that no feature is lost."""
    share = turned / head_dim
    return share if share * head_dim >= turned else math.nextafter(share, 1.0)


def _near(usual: Positions, theta: float) -> float:
    """The base of rotary positions in layers with a window, where the config gives none."""
    return usual.windowed.theta if usual.windowed else theta


def _rope(given: Mapping[str, Any], plain: Rope) -> Rope:
    """Rotary positions from one mapping of the config, with defaults from ``plain``."""
    fields = {name: value for name, value in given.items() if value is not None}
    theta, fraction = (
        fields.pop("rope_theta", plain.theta),
        fields.pop("partial_rotary_factor", plain.fraction),
    )
    if "type" in fields:  # the name before rope_type
        fields.setdefault("rope_type", fields.pop("type"))
    scaled = fields.get("rope_type", "default") != "default"
    return replace(plain, theta=float(theta), fraction=float(fraction), scaling=fields if scaled else {})


def _dropout(config: Config, usual: Dropout) -> Dropout:
    def rate(default: float, *names: str) -> float:
        given = any(config.data.get(name) is not None for name in names)
        return config.rate(*names) if given else default

    return Dropout(
        rate(usual.embedding, "embd_pdrop", "emb_pdrop", "embedding_dropout", "embed_dropout"),
        rate(usual.attention, "attn_pdrop", "attention_dropout"),
        rate(usual.residual, "resid_pdrop", "hidden_dropout", "residual_dropout", "resid_dropout"),
    )


def _is_gated(graph: ModelGraph) -> bool:
    return any(op.kind == "gated_activation" for block in graph.blocks.values() for op in block.operators)


def _drops(graph: ModelGraph) -> bool:
    blocks = (graph.embedding, *graph.blocks.values())
    return any(op.kind == "dropout" for block in blocks for op in block.operators)


def _scales(config: Config, graph: ModelGraph, usual: Details, temperature: float) -> Scales:
    """Factors on embeddings, residual branches, logits and scores; ``temperature`` is that of scaled positions."""
    attention = config.optional("attention_multiplier", default=usual.scales.attention)
    if scalar := config.optional("query_pre_attn_scalar"):
        attention = scalar**-0.5
    if not config.flag("scale_attn_weights", default=True):
        attention = 1.0
    if temperature != 1.0 and "qk_dim" in graph.dims:
        attention = graph.dims["qk_dim"] ** -0.5 * temperature
    kind = config.text("model_type")
    scaled = kind in BY_ROOT or (kind in DECLARED and DECLARED[kind].scaled_by_root)
    root = math.sqrt(graph.dims["hidden"]) if scaled else usual.scales.embedding
    return Scales(
        embedding=config.number("embedding_multiplier", default=root),
        residual=config.number("residual_multiplier", default=1.0),
        logits=config.number("logit_scale", "lm_head_multiplier", default=usual.scales.logits)
        / config.number("logits_scaling", default=1.0),
        attention=attention,
    )


def _gating(config: Config, usual: Gating) -> Gating:
    score = config.text("scoring_func") or usual.score
    if score not in ("softmax", "sigmoid", "sigmoid_of_input", "sparse_mixer"):
        raise UserError(f"{config.source}: scoring_func = {score}: allowed: softmax, sigmoid")
    return replace(
        usual,
        score=score,
        normalised=config.flag("norm_topk_prob", default=usual.normalised),
        factor=config.number("routed_scaling_factor", default=usual.factor),
    )
