"""Readers of further dense decoders: what each family changes in Llama's or GPT's shape.

Fields and their defaults are those of the configuration classes of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simpar.errors import UserError
from simpar.models.config import Config, Family, gpt_shape, gpt_style, llama_shape, shape_of, windows_of
from simpar.models.graph import ModelGraph
from simpar.models.transformer import Layer, Style, build, windowed

HEAD_LAYER_NORM = "LayerNorm of queries and keys"
XIELU = "xIELU, whose shape is learnt"
LONG_SCALE = "queries scaled by their position"
PARALLEL_DROPOUT = "dropout behind branches side by side"


def unbuilt(graph: ModelGraph, *what: str) -> ModelGraph:
    """The graph with more ``unbuilt`` parts, which are simulated, but not computed by the runtime."""
    return replace(graph, details=replace(graph.details, unbuilt=(*graph.details.unbuilt, *what)))


def _kinds(config: Config, layers: int, usual: Sequence[bool]) -> tuple[bool, ...]:
    """Which layers have a window: ``layer_types`` decides, else the usual ones; none without a window."""
    listed = config.data.get("layer_types")
    if config.data.get("sliding_window", 0) is None:
        return (False,) * layers
    if listed is None:
        return tuple(usual)
    if not isinstance(listed, list) or len(listed) != layers:
        raise UserError(
            f"{config.source}: layer_types = {listed!r}: allowed: one for each of {layers} layers"
        )
    return tuple("sliding" in str(kind) for kind in listed)


def _seeing_near(near: Sequence[bool], window: int | None) -> tuple[Layer, ...]:
    """Layers with a window, and layers that see everything."""
    return windowed(tuple(window if each else None for each in near))


def _every(config: Config, layers: int, *fields: str, default: int) -> list[bool]:
    """Flags of all layers but every n-th, where n is a field of the config or the default."""
    period = config.size(*fields, default=default)
    return [(layer + 1) % period != 0 for layer in range(layers)]


def _llama_like(config: Config, name: str) -> ModelGraph:
    """Llama under another name: Granite, Arcee, ERNIE 4.5, InternLM 3, Seed-OSS and others differ in biases alone."""
    kind = config.text("model_type")
    default = {"seed_oss": True}.get(kind, False)
    qkv = config.flag("attention_bias", default=default)
    output, mlp = qkv, config.flag("mlp_bias", default=False)
    heads: dict[str, int] = {}
    if kind == "ernie4_5":
        qkv = output = mlp = config.flag("use_bias", default=False)
        heads = {"head_dim": 128, "kv_heads": 2}
    if kind == "internlm3":
        qkv = output = config.flag("qkv_bias", default=qkv)
        mlp = config.flag("bias", default=mlp)
        heads = {"head_dim": 128, "kv_heads": 2}
    if kind == "seed_oss":
        output = config.flag("attention_out_bias", default=False)
        heads = {"head_dim": 128, "kv_heads": 8}
    if kind == "helium":
        output, heads = False, {"head_dim": 128}
    style = Style(
        tied=config.tied(default=kind == "ernie4_5"), qkv_bias=qkv, output_bias=output, mlp_bias=mlp,
        gated=kind != "arcee", extra={"embedding_kept": True},
    )  # fmt: skip
    rates = config.having({"residual_dropout": 0.1, "attention_dropout": 0.1}, unless_given=True)
    drops = kind == "seed_oss" and rates.rate("residual_dropout", "attention_dropout") > 0
    return build(name, llama_shape(config, **heads), style, dropout=drops)


def _windowed_llama(config: Config, name: str) -> ModelGraph:
    """Llama with windows in some layers: Ministral (all), CWM (three of four, the first sees everything)."""
    first = config.text("model_type") == "cwm"
    shape = llama_shape(config, **({"head_dim": 128, "kv_heads": 8} if first else {"kv_heads": 8}))
    usual = [layer % 4 != 0 if first else True for layer in range(shape.layers)]
    sizes = {"sliding_window": 8192 if first else 4096}
    near = _kinds(config, shape.layers, usual)
    window = config.having(sizes, unless_given=True).size("sliding_window") if any(near) else None
    style = Style(tied=config.tied(), mlp_bias=config.flag("mlp_bias", default=False))
    return build(name, shape, style, layers=_seeing_near(near, window))


def _ministral3(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, head_dim=128, kv_heads=8)
    layers = windowed(windows_of(config, shape.layers, default=True))
    graph = build(name, shape, Style(tied=config.tied()), layers=layers)
    rope = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    return unbuilt(graph, LONG_SCALE) if rope is None or rope.get("llama_4_scaling_beta") else graph


def _cohere(config: Config, name: str) -> ModelGraph:
    """Attention and MLP side by side on one LayerNorm without bias; in Command R7B three layers of four are windowed.

    In Command R7B, layers without a window have no positions.
    """
    shape = llama_shape(config)
    bias = config.flag("attention_bias", default=False)
    style = Style(
        norm="weight",
        tied=config.tied(default=True),
        qkv_bias=bias,
        output_bias=bias,
        parallel=True,
        norms=1,
    )
    if config.text("model_type") == "cohere2":
        usual = _every(config, shape.layers, "sliding_window_pattern", "_sliding_window_pattern", default=4)
        near = _kinds(config, shape.layers, usual)
        window = config.size("sliding_window", default=4096) if any(near) else None
        return build(name, shape, style, layers=_turning_near(near, window))
    if not config.flag("use_qk_norm", default=False):
        return build(name, shape, style)
    return unbuilt(build(name, shape, replace(style, qk_norm="full")), HEAD_LAYER_NORM)


def _turning_near(near: Sequence[bool], window: int | None) -> tuple[Layer, ...]:
    """Layers with a window and rotary positions, and layers with neither."""
    return tuple(Layer(window) if each else Layer(rotary=False) for each in near)


def _glm(config: Config, name: str) -> ModelGraph:
    """GLM-4: half of a head's features rotate; versions of 2025 (glm4) have norms before and after both branches."""
    style = Style(
        tied=config.tied(), qkv_bias=config.flag("attention_bias", default=True),
        norms=4 if config.text("model_type") == "glm4" else 2,
    )  # fmt: skip
    return build(name, llama_shape(config, head_dim=128, kv_heads=2), style)


def _olmo3(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(), qk_norm="full", qkv_bias=bias, output_bias=bias,
        extra={"post_norm_only": True},
    )  # fmt: skip
    near = _kinds(config, shape.layers, _every(config, shape.layers, default=4))
    window = config.size("sliding_window", default=4096) if any(near) else None
    return build(name, shape, style, layers=_seeing_near(near, window))


def _exaone4(config: Config, name: str) -> ModelGraph:
    """Norms behind both branches, normed heads; where some layers have windows, the others have no positions."""
    shape = llama_shape(config)
    style = Style(tied=config.tied(), qk_norm="head", extra={"post_norm_only": True})
    listed = config.data.get("layer_types") is not None or config.data.get("sliding_window", 0) is None
    usual = [] if listed else _every(config, shape.layers, "sliding_window_pattern", default=4)
    config.data.get("sliding_window_pattern")
    near = _kinds(config, shape.layers, usual)
    if config.data.get("sliding_window", 0) is None:
        return build(name, shape, style)
    return build(name, shape, style, layers=_turning_near(near, config.size("sliding_window", default=4096)))


def _smollm3(config: Config, name: str) -> ModelGraph:
    """Every fourth layer has no positions; only these have windows, where the config asks for them."""
    shape = llama_shape(config, kv_heads=4)
    turns = config.data.get("no_rope_layers")
    usual = _every(config, shape.layers, "no_rope_layer_interval", default=4)
    listed = usual if turns is None else turns
    if not isinstance(listed, list) or len(listed) != shape.layers:
        raise UserError(
            f"{config.source}: no_rope_layers = {turns!r}: allowed: 1 (positions) or 0 for each of "
            f"{shape.layers} layers"
        )
    windows = windows_of(config, shape.layers, default=False)
    if windows and config.data.get("layer_types") is None:
        windows = tuple(None if each else window for each, window in zip(listed, windows, strict=True))
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(default=True), qkv_bias=bias, output_bias=bias,
        mlp_bias=config.flag("mlp_bias", default=False),
    )  # fmt: skip
    pairs = zip(windows or (None,) * shape.layers, listed, strict=True)
    return build(name, shape, style, layers=tuple(Layer(window, rotary=bool(each)) for window, each in pairs))


def _stablelm(config: Config, name: str) -> ModelGraph:
    parallel = config.flag("use_parallel_residual", default=False)
    style = Style(
        norm="layer", tied=config.tied(), qkv_bias=config.flag("use_qkv_bias", default=False),
        parallel=parallel, norms=1 if parallel else 2,
    )  # fmt: skip
    shape = llama_shape(config)
    if not config.flag("qk_layernorm", default=False):
        return build(name, shape, style)
    return unbuilt(build(name, shape, replace(style, qk_norm="full")), HEAD_LAYER_NORM)


def _plain_llama(config: Config, name: str) -> ModelGraph:
    """Llama with LayerNorm and a plain MLP: Nemotron-4 and Jais 2."""
    usual = config.text("model_type") == "jais2"
    bias = config.flag("attention_bias", default=usual)
    style = Style(
        norm="layer", gated=False, tied=config.tied(), qkv_bias=bias, output_bias=bias,
        mlp_bias=config.flag("mlp_bias", default=usual),
    )  # fmt: skip
    return build(name, llama_shape(config), style)


def _hunyuan(config: Config, name: str) -> ModelGraph:
    """Queries and keys are normed after the rotation."""
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(), qkv_bias=bias, output_bias=bias, qk_norm="head",
        extra={"qk_norm_last": True},
    )  # fmt: skip
    return build(name, llama_shape(config), style)


def _apertus(config: Config, name: str) -> ModelGraph:
    """A plain MLP with an activation of two learnt numbers a layer [Apertus, arXiv 2509.14233, section 2.1]."""
    learnt = config.text("hidden_act", "xielu") == "xielu"
    bias = config.flag("attention_bias", default=False)
    style = Style(
        gated=False, tied=config.tied(), qkv_bias=bias, output_bias=bias, qk_norm="head",
        extra={"activation_parameters": 2} if learnt else {},
    )  # fmt: skip
    graph = build(name, llama_shape(config), style)
    return unbuilt(graph, XIELU) if learnt else graph


def _persimmon(config: Config, name: str) -> ModelGraph:
    normed = config.flag("qk_layernorm", default=True)
    style = gpt_style(
        tied=config.tied(), rotary=True, qk_norm="head" if normed else "",
        extra={"qk_norm_bias": True} if normed else {},
    )  # fmt: skip
    graph = build(name, llama_shape(config.having({"num_key_value_heads": None})), style)
    return unbuilt(graph, HEAD_LAYER_NORM) if normed else graph


def _gptj(config: Config, name: str) -> ModelGraph:
    hidden, heads = config.size("n_embd", "hidden_size"), config.size("n_head", "num_attention_heads")
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("n_inner", default=4 * hidden),
        layers=config.size("n_layer", "num_hidden_layers"), heads=heads,
    )  # fmt: skip
    turned = config.data.get("rotary_dim", 64)
    if not isinstance(turned, int) or not 0 < turned <= shape.head_dim:
        raise UserError(
            f"{config.source}: rotary_dim = {turned!r}: allowed: 1 to the {shape.head_dim} features of a head"
        )
    style = Style(
        norm="layer", gated=False, tied=config.tied(), mlp_bias=True, head_bias=True, parallel=True,
        norms=1,
    )  # fmt: skip
    graph = build(name, shape, style, dropout=config.rate("resid_pdrop", "attn_pdrop", "embd_pdrop") > 0)
    return unbuilt(graph, PARALLEL_DROPOUT) if config.rate("resid_pdrop") else graph


def _gpt_neo(config: Config, name: str) -> ModelGraph:
    """Learned positions, and windows in every second layer or as ``attention_types`` says."""
    hidden = config.size("hidden_size")
    layers = config.size("num_layers", "num_hidden_layers")
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("intermediate_size", default=4 * hidden), layers=layers,
        heads=config.size("num_heads", "num_attention_heads"),
        positions=config.size("max_position_embeddings", default=2048),
    )  # fmt: skip
    style = Style(
        norm="layer",
        gated=False,
        tied=config.tied(default=True),
        output_bias=True,
        mlp_bias=True,
        rotary=False,
    )
    kinds = _local(config, layers)
    window = config.size("window_size", default=256) if any(kinds) else None
    drops = config.rate("resid_dropout", "embed_dropout", "attention_dropout") > 0
    return build(name, shape, style, layers=_seeing_near(kinds, window), dropout=drops)


def _local(config: Config, layers: int) -> list[bool]:
    """Which layers see a window, from pairs of (kinds in turn, how often). Raises UserError."""
    config.data.get("attention_layers")  # asked for, because it is attention_types written out
    given = config.data.get("attention_types")
    kinds = ["global", "local"] * 12
    if given is not None:
        try:
            kinds = [kind for turn, times in given for kind in list(turn) * int(times)]
        except (TypeError, ValueError):
            kinds = []
    if len(kinds) != layers or set(kinds) - {"global", "local"}:
        raise UserError(
            f"{config.source}: attention_types = {given!r}: allowed: pairs of global and local layers and how often, "
            f"{layers} layers in all"
        )
    return [kind == "local" for kind in kinds]


def _gpt_bigcode(config: Config, name: str) -> ModelGraph:
    """GPT-2 whose heads share one key-value head [SantaCoder, arXiv 2301.03988]."""
    if config.flag("add_cross_attention", default=False):
        raise UserError(f"{config.source}: add_cross_attention = true: allowed: false, a decoder alone")
    shape = gpt_shape(config, kv_heads=1 if config.flag("multi_query", default=True) else 0)
    style = gpt_style(tied=config.tied(default=True))
    config.data.get("num_key_value_heads")  # asked for, because multi_query states the same
    usual = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.1)
    return build(name, shape, style, dropout=config.having(usual, unless_given=True).rate(*usual) > 0)


DENSE: dict[str, Family] = {
    **dict.fromkeys(("granite", "arcee", "ernie4_5", "internlm3", "seed_oss", "helium"), _llama_like),
    **dict.fromkeys(("ministral", "cwm"), _windowed_llama), "ministral3": _ministral3,
    **dict.fromkeys(("cohere", "cohere2"), _cohere), **dict.fromkeys(("glm", "glm4"), _glm),
    "olmo3": _olmo3, "exaone4": _exaone4, "smollm3": _smollm3, "stablelm": _stablelm,
    **dict.fromkeys(("nemotron", "jais2"), _plain_llama), "hunyuan_v1_dense": _hunyuan, "apertus": _apertus,
    "persimmon": _persimmon, "gptj": _gptj, "gpt_neo": _gpt_neo, "gpt_bigcode": _gpt_bigcode,
}  # fmt: skip
