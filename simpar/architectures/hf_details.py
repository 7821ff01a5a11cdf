"""Details of a model from its Hugging Face config: the fields of every family, with the family's own defaults.

Defaults are those of the configuration classes of transformers; where a class has none, those of its code.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details, Dropout, Gating, Positions, Rope, Scales
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.state_space import step_limits
from simpar.architectures.vision_reading import SILENT_WRAPPER
from simpar.errors import UserError

ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function", "activation")
EPSILON_FIELDS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
SILENT = {
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache", "model_type", "source",
    "name", "_name_or_path", "pretraining_tp", "tokenizer_class", "id2label", "label2id", "is_encoder_decoder",
    "max_position_embeddings", "n_ctx", "output_hidden_states", "output_attentions", "return_dict", "problem_type",
    "task_specific_params", "chunk_size_feed_forward", "is_decoder", "add_cross_attention", "n_positions",
    "gradient_checkpointing", "attn_implementation", "use_return_dict",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "cache_implementation", "output_router_logits", "classifier_dropout", "init_device", "max_window_layers",
    "original_max_position_embeddings",
    "qk_head_dim", "max_seq_len", "embedding_fraction", "norm_type",
    "num_logits_to_keep", "use_mamba_kernels", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank",
    "time_step_min", "time_step_max", "time_step_floor", "moe_norm_min",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_image_tokens",
}  # fmt: skip
"""Fields that do not affect what a model computes in training, beside those that a reader asks for."""
TOKEN_NUMBERS = ("_token_id", "_token_index")
"""Ends of the names of fields with the number of a special token."""


def details(config: Config, graph: ModelGraph, family: ModelFamily) -> Details:
    """The details of a config from which its family's reader made ``graph``. Raises UserError.

    Those of a model with towers are its language model's.
    """
    if family.nested:
        own = graph.details
        return replace(own, unread=(*own.unread, *_unread(config, SILENT_WRAPPER)))
    usual = family.details or Details("silu" if _is_gated(graph) else "gelu")
    positions = _positions(config, usual.positions, graph.dims["head_dim"])
    activation = next((text for name in ACTIVATION_FIELDS if (text := config.text(name))), usual.activation)
    own = Details(
        activation=family.activations.get(activation, activation),
        norm_eps=config.number(*EPSILON_FIELDS, default=usual.norm_eps),
        norm_offset=usual.norm_offset,
        init_std=_initial_spread(config, usual),
        positions=positions,
        dropout=_dropout(config, usual.dropout) if _drops(graph) else Dropout(),
        scales=_scales(config, graph, usual, positions.rope.temperature, by_root=family.scaled_by_root),
        caps=Caps(
            config.optional("attn_logit_softcapping", default=usual.caps.attention),
            config.optional("final_logit_softcapping", default=usual.caps.logits),
            graph.details.caps.projections or _attention(config).optional("clip_qkv"),
        ),
        gating=_gating(config, usual.gating),
        steps=_steps(config, usual, graph),
    )
    return replace(own, unread=_unread(config), unbuilt=graph.details.unbuilt)


def _initial_spread(config: Config, usual: Details) -> float:
    """The standard deviation of weights at the start; NaN, as Python writes a missing number, states none."""
    stated = {name: config.data.get(name) for name in ("initializer_range", "init_std")}
    numbers = [name for name, value in stated.items() if value == value]
    return config.number(*numbers, default=usual.init_std)


def _unread(config: Config, silent: Collection[str] = ()) -> tuple[str, ...]:
    """Fields that were not asked for, without numbers of tokens and others that do not matter."""
    return tuple(name for name in config.unread({*SILENT, *silent}) if not name.endswith(TOKEN_NUMBERS))


def _steps(config: Config, usual: Details, graph: ModelGraph) -> tuple[float, float | None]:
    """Limits of time steps: a least one where the family has one, else the config's pair. Raises UserError."""
    if usual.steps[0]:
        return config.number("time_step_min", default=usual.steps[0]), None
    return step_limits(config) if "mamba_heads" in graph.dims else usual.steps


def _attention(config: Config) -> Config:
    """The fields of attention in configs that have these apart (MPT, DBRX); empty in others."""
    return Config(config.mapping("attn_config") or {}, config.source)


def _positions(config: Config, usual: Positions, head_dim: int) -> Positions:
    """Rotary positions of layers without and with a window: fields of the config or of its ``rope_parameters``."""
    if turned := config.optional("rotary_dim"):
        share = _share(turned, head_dim)
        usual = replace(usual, rope=replace(usual.rope, fraction=share))
    said = config.mapping("rope_parameters"), config.mapping("rope_scaling")
    given = {name: value for fields in said for name, value in (fields or {}).items()}
    if not any(said):
        given = dict(usual.rope.scaling)
    base = _attention(config).number("rope_theta", default=usual.rope.theta)
    usual = replace(usual, rope=replace(usual.rope, theta=base))
    theta = config.number("rope_theta", "rotary_emb_base", default=usual.rope.theta)
    fraction = config.number("partial_rotary_factor", "rotary_pct", default=usual.rope.fraction)
    beside = config.flag("rope_interleave", default=usual.rope.interleaved)
    plain = replace(usual.rope, theta=theta, fraction=fraction, interleaved=beside)
    near = replace(plain, theta=config.number("rope_local_base_freq", default=_near(usual, theta)), scaling={})
    by_layer = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    rope = _rope(by_layer.get("full_attention", {}) if by_layer else given, plain, config.source)
    windowed = _rope(by_layer.get("sliding_attention", {}), near, config.source)
    alibi = usual.alibi and bool(_attention(config).data.get("alibi", True))
    return replace(usual, rope=rope, windowed=windowed if by_layer or usual.windowed else None, alibi=alibi)


def _share(turned: float, head_dim: int) -> float:
    """The fraction of a head that ``turned`` features make up, rounded so that no feature is lost."""
    share = turned / head_dim
    return share if share * head_dim >= turned else math.nextafter(share, 1.0)


def _near(usual: Positions, theta: float) -> float:
    """The base of rotary positions in layers with a window, where the config gives none."""
    return usual.windowed.theta if usual.windowed else theta


def _rope(given: Mapping[str, Any], plain: Rope, source: str) -> Rope:
    """Rotary positions from one mapping of the config, with defaults from ``plain``. Raises UserError."""
    read = Config(dict(given), f"{source}: rope_parameters")
    theta = read.number("rope_theta", default=plain.theta)
    fraction = read.number("partial_rotary_factor", default=plain.fraction)
    others = ("rope_theta", "partial_rotary_factor")
    fields = {name: value for name, value in given.items() if value is not None and name not in others}
    if "type" in fields:  # the name before rope_type
        fields.setdefault("rope_type", fields.pop("type"))
    scaled = fields.get("rope_type", "default") != "default"
    return replace(plain, theta=theta, fraction=fraction, scaling=fields if scaled else {})


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


def _scales(config: Config, graph: ModelGraph, usual: Details, temperature: float, *, by_root: bool) -> Scales:
    """Factors on embeddings, residual branches, logits and scores; ``temperature`` is that of scaled positions."""
    attention = config.optional("attention_multiplier", default=usual.scales.attention)
    if scalar := config.optional("query_pre_attn_scalar"):
        attention = scalar**-0.5
    if not config.flag("scale_attn_weights", default=True):
        attention = 1.0
    if temperature != 1.0 and "qk_dim" in graph.dims:
        attention = graph.dims["qk_dim"] ** -0.5 * temperature
    root = math.sqrt(graph.dims["hidden"]) if by_root else usual.scales.embedding
    return Scales(
        embedding=config.number("embedding_multiplier", default=root),
        residual=config.number("residual_multiplier", default=1.0),
        logits=config.number("logit_scale", "lm_head_multiplier", default=usual.scales.logits)
        / config.number("logits_scaling", default=1.0),
        attention=attention,
    )


def _gating(config: Config, usual: Gating) -> Gating:
    score = config.text("scoring_func") or usual.score
    if score not in ("softmax", "sigmoid", "sigmoid_of_input", "sparse_mixer", "sqrtsoftplus"):
        raise UserError(f"{config.source}: scoring_func = {score}: allowed: softmax, sigmoid, sqrtsoftplus")
    return replace(
        usual,
        score=score,
        normalised=config.flag("norm_topk_prob", default=usual.normalised),
        factor=config.number("routed_scaling_factor", default=usual.factor),
    )
