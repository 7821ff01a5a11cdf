"""MiMo: Qwen 2 with layers that predict further tokens [Xiaomi 2025, arXiv 2505.07608]; and MiMo-V2-Flash.

MiMo-V2-Flash: experts behind one dense layer; five layers of six have a short window, twice the keys and sinks.

Values are narrower than queries and keys in all layers [Xiaomi 2026, arXiv 2601.02780; transformers,
models/mimo_v2_flash].
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, QUERY, product
from simpar.architectures.reading import (
    ATTENTION_BIAS,
    llama_shape,
    mark_unbuilt,
    routed_in_groups,
    style_of,
    with_experts,
)
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.errors import UserError

FURTHER = "layers that predict further tokens under names of their own"
NARROW = "values narrower than keys, and key-value heads that differ by layer"
WINDOWED = "window.kv_heads"
"""The dim that counts key-value heads of layers with a window."""


def _read(config: Config, name: str) -> ModelGraph:
    config = config.having({"routed_scaling_factor": 1.0}, unless_given=True)
    shape = llama_shape(config, kv_heads=4, head_dim=192, ffn="moe_intermediate_size")
    windows = _flags(config, shape.layers, "layer_types", "sliding_attention", "hybrid_layer_pattern")
    if windows is None:
        windows = [at != 0 and (at + 1) % 6 != 0 for at in range(shape.layers)]
    experts = _flags(config, shape.layers, "mlp_layer_types", "sparse", "moe_layer_freq")
    if experts is None:
        experts = [at > 0 for at in range(shape.layers)]
    size = config.size("sliding_window_size", "sliding_window", default=129)
    config.data.get("sliding_window")
    mixture = routed_in_groups(config, shared=config.optional_size("n_shared_experts"), router_bias=True)
    full = with_experts(shape, mixture, ffn=0 if all(experts) else config.size("intermediate_size"))
    layers = tuple(
        LayerVariant(size if near else None, experts=wide) for near, wide in zip(windows, experts, strict=True)
    )
    graph = build(
        name, full, style_of(config, biases={"attention_bias": ATTENTION_BIAS["attention_bias"][:1]}), layers=layers
    )
    blocks = {layer.name: _with_heads(graph.blocks[layer.name], layer.window is not None) for layer in layers}
    dims = {
        **graph.dims, "value_dim": config.size("v_head_dim", default=128),
        WINDOWED: config.size("swa_num_key_value_heads", default=2 * shape.kv_heads),
    }  # fmt: skip
    return mark_unbuilt(replace(graph, dims=dims, blocks=blocks), NARROW)


def _read_dense(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config)
    further = config.optional_size("num_nextn_predict_layers")
    layers = (*[LayerVariant()] * shape.layers, *[LayerVariant(prediction=True)] * further)
    style = style_of(config, Style(qkv_bias=True), {"attention_bias": ("qkv_bias",)})
    graph = build(name, shape, style, layers=layers)
    for field in ("use_sliding_window", "sliding_window"):
        config.data.get(field)
    return mark_unbuilt(graph, FURTHER) if further else graph


def _flags(config: Config, count: int, kinds: str, kind: str, numbers: str) -> list[bool] | None:
    """Layers that a list of words, or of 0 and 1, says; None where the config has neither. Raises UserError."""
    named, given = config.data.get(kinds), config.data.get(numbers)
    listed = named if named is not None else given
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) != count:
        raise UserError(f"{config.source}: {kinds} = {listed!r}: allowed: one for each of {count} layers")
    return [each == kind if named is not None else bool(each) for each in listed]


def _with_heads(block: Block, windowed: bool) -> Block:
    """The block with values of their own width; with a window, also with its own key-value heads, and sinks."""
    kv_heads = WINDOWED if windowed else "kv_heads"
    packed: Size = (*QUERY, *term(kv_heads, "head_dim"), *term(kv_heads, "value_dim"))
    made = term("heads", "value_dim")

    def changed(op: Operator) -> Operator:
        if op.name in ("qkv", "rope"):
            sizes = [product(HIDDEN, packed), packed]
            weights = tuple(replace(old, size=size) for old, size in zip(op.weights, sizes, strict=False))
            return replace(op, columns=packed, weights=weights)
        if op.attention:
            mask = replace(op.attention, value_dim=term("value_dim"), kv_heads=term(kv_heads))
            sinks = (Weight("sinks", term("heads"), "vector"),) if windowed else ()
            return replace(op, columns=made, attention=mask, weights=sinks)
        if op.name == "o_proj":
            return replace(op, contraction=made, weights=(replace(op.weights[0], size=product(made, HIDDEN)),))
        return op

    return replace(block, operators=tuple(map(changed, block.operators)))


FAMILIES = (
    ModelFamily(
        "mimo",
        _read_dense,
        Details(norm_eps=0.000001),
        tiny={**TINY, "num_nextn_predict_layers": 1},
    ),
    ModelFamily(
        "mimo_v2_flash",
        _read,
        Details(
            positions=Positions(Rope(5_000_000.0, 0.334), Rope(10_000.0, 0.334)),
            gating=Gating("sigmoid", bias="chooses", pairs=True),
        ),
        None,
        {
            **TINY, "num_key_value_heads": 1, "head_dim": 12, "v_head_dim": 8, "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 8,
            "n_routed_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
        },
    ),
)  # fmt: skip
