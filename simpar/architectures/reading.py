"""Fields that many families read from their configs: shapes, styles, windows by layer, experts.

Names and defaults of fields are those of the configuration classes of transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from simpar.architectures.config import Config
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.transformer import LayerVariant, Shape, Style, build
from simpar.errors import UserError

HEAD_LAYER_NORM = "LayerNorm of queries and keys"
LINEAR_ATTENTION = "layers of linear attention"
ATTENTION_GATES = "gates of attention"
INDEXER = "keys that an indexer chooses"

LLAMA_STYLE = Style()
GPT_STYLE = Style(norm="layer", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, rotary=False)
"""GPT's style: LayerNorm, plain MLP, biases everywhere, no rotary positions."""
Biases = Mapping[str, tuple[str, ...]]
"""Fields of configs -> the biases of :class:`Style` about which each decides."""
NO_FIELDS: Biases = {}
ATTENTION_BIAS: Biases = {"attention_bias": ("qkv_bias", "output_bias")}
MLP_BIAS: Biases = {"mlp_bias": ("mlp_bias",)}
ALL_BIASES = ("qkv_bias", "output_bias", "mlp_bias")
BARE_NORM = "norms of queries and keys without weights"
"""Norms that the runtime does not build."""
LAYER_TYPES = {"linear_attention", "full_attention"}
"""Words of ``layer_types`` in models with linear attention."""
T = TypeVar("T")
Windows = tuple[int | None, ...]
"""A sliding window for each layer, or None for a layer that sees everything; empty: no layer has one."""


def mark_unbuilt(graph: ModelGraph, *what: str) -> ModelGraph:
    """The graph with more ``unbuilt`` parts, which are simulated, but not computed by the runtime."""
    return replace(graph, details=replace(graph.details, unbuilt=(*graph.details.unbuilt, *what)))


def shape_of(
    config: Config,
    *,
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int = 0,
    head_dim: int = 0,
    positions: int = 0,
) -> Shape:
    """A shape, checked for head counts that divide; of 0, ``kv_heads`` and ``head_dim`` follow from ``heads``.

    Raises UserError.
    """
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise UserError(
            f"{config.source}: num_key_value_heads = {kv_heads} does not divide num_attention_heads = {heads}"
        )
    if not head_dim and hidden % heads:
        raise UserError(f"{config.source}: num_attention_heads = {heads} does not divide hidden_size = {hidden}")
    return Shape(
        config.size("vocab_size"), hidden, ffn, layers, heads, kv_heads, head_dim or hidden // heads, positions
    )


def llama_shape(config: Config, *, kv_heads: int = 0, head_dim: int = 0, ffn: str = "intermediate_size") -> Shape:
    """The shape in a config with Llama's field names, with the family's defaults and its field for the FFN's width.

    Raises UserError.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.data.get("intermediate_size")  # asked for, because models without dense layers have it, too
    return shape_of(
        config,
        hidden=hidden,
        ffn=config.size(ffn),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=kv_heads or heads),
        head_dim=config.size("head_dim", default=head_dim or max(hidden // heads, 1))
        if head_dim or config.data.get("head_dim")
        else 0,
    )


def gpt_shape(config: Config, *, kv_heads: int = 0, learned: bool = True) -> Shape:
    """The shape in a config with GPT-2's field names, with ``learned`` positions or without. Raises UserError."""
    hidden = config.size("n_embd", "hidden_size")
    return shape_of(
        config, hidden=hidden, ffn=config.size("n_inner", default=4 * hidden),
        layers=config.size("n_layer", "num_hidden_layers"), heads=config.size("n_head", "num_attention_heads"),
        kv_heads=kv_heads,
        positions=config.size("n_positions", "max_position_embeddings", default=1024) if learned else 0,
    )  # fmt: skip


def style_of(config: Config, usual: Style = LLAMA_STYLE, biases: Biases = NO_FIELDS) -> Style:
    """The style of a config, where the family's ``usual`` one has the defaults; ``biases`` are its fields for them.

    A field's default is the first bias that it decides about, after the fields before it. Raises UserError.
    """
    style = replace(usual, tied=config.tied(default=usual.tied))
    for field, decided in biases.items():
        changed: dict[str, Any] = dict.fromkeys(decided, config.flag(field, default=getattr(style, decided[0])))
        style = replace(style, **changed)
    return style


def windows_of(config: Config, layers: int, *, default: bool) -> Windows:
    """Sliding windows by layer: ``layer_types`` decides, else one window for all layers.

    ``default`` is that of ``use_sliding_window``. Raises UserError.
    """
    window, kinds = config.data.get("sliding_window"), config.data.get("layer_types")
    if window is None or not config.flag("use_sliding_window", default=default):
        return ()
    size = config.size("sliding_window")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(size if "sliding" in str(kind) else None for kind in kinds)
    return (size,) * layers


def alternate_windows(config: Config, layers: int, *, period: int) -> Windows:
    """Windows by layer: none in every ``period``-th layer, which sees all keys. Raises UserError."""
    listed = windows_of(config, layers, default=True)
    if isinstance(config.data.get("layer_types"), list):
        return listed
    window = config.size("sliding_window", default=4096)
    return tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))


def windows_in(config: Config, layers: int, usual: Sequence[bool], *, default: int) -> Windows:
    """Windows in the layers that ``layer_types`` says, else in the ``usual`` ones; ``default`` is their size.

    Where ``sliding_window`` is null, no layer has one. Raises UserError.
    """
    listed = config.data.get("layer_types")
    if config.data.get("sliding_window", 0) is None:
        return (None,) * layers
    if listed is not None and (not isinstance(listed, list) or len(listed) != layers):
        raise UserError(f"{config.source}: layer_types = {listed!r}: allowed: one for each of {layers} layers")
    has = usual if listed is None else ["sliding" in str(kind) for kind in listed]
    window = config.size("sliding_window", default=default) if any(has) else None
    return tuple(window if each else None for each in has)


def all_but_every(config: Config, layers: int, *fields: str, default: int) -> list[bool]:
    """Flags of all layers but every n-th, where n is a field of the config or the default. Raises UserError."""
    period = config.size(*fields, default=default)
    return [(layer + 1) % period != 0 for layer in range(layers)]


def linear_in(config: Config, usual: Sequence[bool]) -> Sequence[bool]:
    """Which layers have linear attention: as ``layer_types`` says, else the ``usual`` ones. Raises UserError."""
    listed = config.data.get("layer_types")
    if listed is None:
        return usual
    if not isinstance(listed, list) or len(listed) != len(usual) or {*map(str, listed)} - LAYER_TYPES:
        raise UserError(
            f"{config.source}: layer_types = {listed!r}: allowed: one of {', '.join(sorted(LAYER_TYPES))} for each of "
            f"{len(usual)} layers"
        )
    return [kind == "linear_attention" for kind in listed]


def layers_in(config: Config, count: int, field: str, words: Mapping[Any, T]) -> list[T] | None:
    """What a list says of every layer, by what its ``words`` mean; None where the config has none. Raises UserError."""
    listed = config.data.get(field)
    if listed is None:
        return None
    known = [*words]  # compared one by one: what a config holds may be a list
    if not isinstance(listed, list) or len(listed) != count or any(each not in known for each in listed):
        raise UserError(
            f"{config.source}: {field} = {listed!r}: allowed: one of {', '.join(map(str, words))} for each of {count} "
            "layers"
        )
    return [words[each] for each in listed]


def rotary_in_windows(windows: Windows) -> tuple[LayerVariant, ...]:
    """Layers with a window and rotary positions, and layers with neither."""
    return tuple(LayerVariant(rotary=False) if window is None else LayerVariant(window) for window in windows)


def llama_like(
    style: Style = LLAMA_STYLE,
    *,
    kv_heads: int = 0,
    head_dim: int = 0,
    windows: Callable[[Config, int], Windows] | None = None,
    biases: Biases = NO_FIELDS,
    experts: Callable[[Config], Mixture] | None = None,
) -> Callable[[Config, str], ModelGraph]:
    """The reader of a decoder with Llama's field names and the family's usual ``style``.

    ``kv_heads`` and ``head_dim`` are the family's defaults, ``windows`` reads those of its layers, ``biases`` are its
    fields for biases, ``experts`` reads those that all layers have instead of an MLP.
    """

    def read(config: Config, name: str) -> ModelGraph:
        shape = llama_shape(config, kv_heads=kv_heads, head_dim=head_dim)
        shape = with_experts(shape, experts(config)) if experts else shape
        seen = windows(config, shape.layers) if windows else ()
        layers = tuple(LayerVariant(window, experts=experts is not None) for window in seen)
        return build(name, shape, style_of(config, style, biases), layers=layers)

    return read


USED_WINDOWS = partial(windows_of, default=True)
"""All layers have the window of the config, unless it says that they do not use it."""
UNUSED_WINDOWS = partial(windows_of, default=False)
"""No layer has a window, unless the config says that they use it."""


def with_experts(shape: Shape, mixture: Mixture, *, ffn: int = 0, **parts: Any) -> Shape:
    """The shape with experts; ``ffn`` is the width of its dense layers, 0 where it has none. Raises UserError."""
    if mixture.topk > mixture.experts:
        raise UserError(f"experts per token = {mixture.topk}: allowed: at most the {mixture.experts} experts")
    return replace(shape, ffn=ffn, mixture=mixture, **parts)


def experts_of(
    *count: str, experts: int | None = None, topk: int | None = None, **properties: Any
) -> Callable[[Config], Mixture]:
    """The reader of experts as wide as ``intermediate_size``, with the names of the field of their ``count``.

    ``experts`` and ``topk`` are the family's defaults (None: there is none), ``properties`` those of
    :class:`Mixture`.
    """
    return lambda config: Mixture(
        config.size(*count, default=experts),
        config.size("num_experts_per_tok", default=topk),
        config.size("intermediate_size"),
        **properties,
    )


def routed_in_groups(config: Config, *, shared: int, router_bias: bool) -> Mixture:
    """Experts with DeepSeek's field names: routed ones, in groups if the config has some, and ``shared`` ones."""
    width, groups = config.size("moe_intermediate_size"), config.size("n_group", default=1)
    chosen = config.size("topk_group", default=1)
    return Mixture(
        config.size("n_routed_experts", "num_local_experts"), config.size("num_experts_per_tok"), width,
        shared_ffn=width * shared, router_bias=router_bias, groups=groups, chosen_groups=chosen if groups > 1 else 1,
    )  # fmt: skip


def sparse_behind(config: Config, count: int, dense: int) -> list[bool]:
    """Which layers have experts: as ``mlp_layer_types`` says, else all behind the first ``dense``. Raises UserError.

    Configs that transformers writes have the list where released ones have the number.
    """
    listed = layers_in(config, count, "mlp_layer_types", {"dense": False, "sparse": True})
    return [at >= dense for at in range(count)] if listed is None else listed


def dense_first(config: Config, count: int) -> tuple[int, tuple[LayerVariant, ...]]:
    """(Width of dense layers, layers): dense ones, ones with experts, and ones that predict further tokens."""
    experts = sparse_behind(config, count, config.optional_size("first_k_dense_replace"))
    layers = [LayerVariant(experts=each) for each in experts]
    further = config.optional_size("num_nextn_predict_layers")
    width = 0 if all(experts) else config.size("intermediate_size")
    return width, (*layers, *[LayerVariant(experts=True, prediction=True)] * further)
