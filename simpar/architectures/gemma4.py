"""Gemma 4: layers of two head widths, experts beside a dense MLP, shared keys and values, embeddings for every layer.

Layers that see all tokens have wider and fewer key-value heads than those with a window, and may use their keys as
values. The last layers may read the keys and values of the last layer of their kind before them. Where there is a
second table, its rows are split among the layers, each of which adds its part behind a gate [transformers,
models/gemma4]. Keys and values that are shared, and the embeddings of all layers, travel past layers that do not make
them.
"""

from dataclasses import replace

from simpar.architectures.graph import INPUT, AttentionPattern, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.mixture import mixture
from simpar.architectures.products import HIDDEN, TOKENS, product, project
from simpar.architectures.transformer import Shape, Style, add, embedding, head, mlp, norm
from simpar.dataclass import dataclass
from simpar.errors import UserError

STYLE = Style(tied=True)
HEADS: dict[bool, tuple[str, str]] = {True: ("kv_heads", "head_dim"), False: ("full.kv_heads", "full.head_dim")}
"""Dims of the key-value heads and the width of a head: with a window, and without."""
EMBEDDINGS: Size = term("batch", "seq", "per_layer_embeddings")


@dataclass(frozen=True)
class FullHeads:
    """Heads of layers that see all tokens: their width, their key-value heads, and whether keys are values, too."""

    head_dim: int
    kv_heads: int
    keys_are_values: bool

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        return {"full.head_dim": self.head_dim, "full.kv_heads": self.kv_heads}


@dataclass(frozen=True)
class LayerPlan:
    """What layers differ in: the ``windows`` of all (None: all tokens), the last ``shared`` of which read others' keys.

    These have an MLP of twice the width (``wide``), where the model says so. ``embedded`` are the features of a layer's
    own embedding (0: none), of a table with ``rows``.
    """

    windows: tuple[int | None, ...]
    full: FullHeads
    shared: int = 0
    wide: bool = False
    embedded: int = 0
    rows: int = 0

    @property
    def dims(self) -> dict[str, int]:
        """Named dims of embeddings by layer, where there are some."""
        if not self.embedded:
            return {}
        return {"embedded": self.embedded, "per_layer_embeddings": self.embedded * len(self.windows)}

    def passes(self, layer: int) -> Size:
        """Elements that travel on behind a layer: keys and values that later ones read, and embeddings of all."""
        first = len(self.windows) - self.shared
        later = {bool(window) for window in self.windows[max(first, layer + 1) :]}
        made = {bool(window): at for at, window in enumerate(self.windows[:first])}
        result = [
            term("batch", "seq", *HEADS[kind], times=2) for kind in sorted(later) if made.get(kind, layer) <= layer
        ]
        if self.embedded and layer + 1 < len(self.windows):
            result.append(EMBEDDINGS)
        return tuple(part for size in result for part in size)


def check_shared(source: str, windows: tuple[int | None, ...], shared: int) -> None:
    """Whether layers before the last ``shared`` ones make the keys that these read. Raises UserError."""
    first = len(windows) - shared
    if first < 0 or {bool(each) for each in windows[first:]} - {bool(each) for each in windows[:first]}:
        raise UserError(f"{source}: num_kv_shared_layers = {shared}: allowed: layers of each kind before them")


def build_gemma4(name: str, shape: Shape, layout: LayerPlan) -> ModelGraph:
    """A decoder of the given shape and kinds of layers."""
    first = len(layout.windows) - layout.shared
    layers = [
        _layer(window, shape, layout, reads=at >= first, passes=layout.passes(at))
        for at, window in enumerate(layout.windows)
    ]
    names = tuple(_name_of(block) for block in layers)
    return ModelGraph(
        name=name,
        dims={**shape.dims, **layout.full.dims, **layout.dims},
        blocks={key: replace(block, name=key) for key, block in zip(names, layers, strict=True)},
        layers=names,
        embedding=embed_by_layer(shape, layout),
        head=head(STYLE),
        tied_embeddings=True,
        facts={"norm": STYLE.norm},
    )


def _name_of(block: Block) -> str:
    """A name for blocks of one kind: with what travels past them."""
    travelling = [f"{len(block.passes)}"] if block.passes else []
    return "_".join([block.name, *travelling])


def embed_by_layer(shape: Shape, layout: LayerPlan) -> Block:
    """The token table; beside it the table of all layers, to which a product of the tokens' embeddings is added."""
    block = embedding(shape, STYLE, dropout=False)
    if not layout.embedded:
        return block
    columns = term("per_layer_embeddings")
    rows = term("vocab") if layout.rows == shape.vocab else term(times=layout.rows)
    table = Weight("layer_embedding.weight", product(rows, columns), "embedding")
    scale = Weight("layer_norm.weight", term("embedded"), "vector")
    operators = (
        *block.operators,
        Operator("layer_embedding", "embedding", TOKENS, columns, "tensor", weights=(table,), inputs=(INPUT,)),
        project("layer_projection", "token_embedding", HIDDEN, columns, region="sequence"),
        Operator(
            "layer_norm", "norm", TOKENS, columns, "sequence", weights=(scale,), inputs=("layer_projection",),
            saves=("layer_projection", "stats"),
        ),
        Operator("layer_sum", "add", TOKENS, columns, "sequence", inputs=("layer_norm", "layer_embedding")),
        add("embeddings", "token_embedding"),
    )  # fmt: skip
    return replace(block, operators=operators, passes=EMBEDDINGS)


def _layer(window: int | None, shape: Shape, layout: LayerPlan, *, reads: bool, passes: Size) -> Block:
    """Attention, then an MLP, with experts beside it where the shape has some, then the layer's own embedding."""
    ops = [norm("attention_norm", INPUT, STYLE), *attention_with_shared_keys(window, layout.full, reads=reads)]
    ops += [norm("attention_post_norm", "o_proj", STYLE), add("attention_residual", INPUT, "attention_post_norm")]
    ops += [norm("mlp_norm", "attention_residual", STYLE), *_mlp(2 if layout.wide and reads else 1)]
    last = "mlp_down"
    if shape.mixture:
        ops += _experts(shape)
        last = "mlp_sum"
    ops += [norm("mlp_post_norm", last, STYLE), add("mlp_residual", "attention_residual", "mlp_post_norm")]
    if layout.embedded:
        ops += [*own_embedding("mlp_residual"), add("embedding_residual", "mlp_residual", "embedding_post_norm")]
    words = ["layer", *(["moe"] if shape.mixture else []), *(["shared"] if reads else [])]
    words += [f"window_{window}"] if window is not None else []
    return Block("_".join(words), tuple(ops), passes=passes)


def attention_with_shared_keys(window: int | None, full: FullHeads, *, reads: bool) -> list[Operator]:
    """Normed queries and keys, and values normed without weights; of a layer that ``reads`` keys, queries alone."""
    kv_heads, head_dim = HEADS[window is not None]
    query, pair = term("heads", head_dim), term(kv_heads, head_dim, times=2)
    both: Size = query if reads else (*query, *pair)
    once = window is None and full.keys_are_values
    made: Size = query if reads else (*query, *term(kv_heads, head_dim, times=1 if once else 2))
    scale = Weight("qk_norm.weight", term(head_dim, times=1 if reads else 2), "vector")
    mask = AttentionPattern(
        window=window, key_dim=term(head_dim), value_dim=term(head_dim), kv_heads=term(kv_heads)
    )  # fmt: skip
    return [
        project("qkv", "attention_norm", HIDDEN, made),
        Operator(
            "qk_norm", "norm", TOKENS, both, "tensor", weights=(scale,), inputs=("qkv",), saves=("qkv", "stats")
        ),
        Operator("rope", "rope", TOKENS, both, "tensor", inputs=("qk_norm",)),
        Operator(
            "attention", "attention", TOKENS, query, "tensor", inputs=("rope",), saves=("rope", "attention", "lse"),
            attention=mask,
        ),
        project("o_proj", "attention", query, HIDDEN),
    ]  # fmt: skip


def _mlp(times: int) -> list[Operator]:
    """A gated MLP ``times`` as wide as the model's."""

    def wider(size: Size) -> Size:
        return tuple((count * times if "ffn" in names else count, names) for count, names in size)

    return [
        replace(
            op, columns=wider(op.columns), contraction=wider(op.contraction),
            weights=tuple(replace(weight, size=wider(weight.size)) for weight in op.weights),
        )
        for op in mlp("mlp_norm", STYLE)
    ]  # fmt: skip


def _experts(shape: Shape) -> list[Operator]:
    """Experts that read the residual beside the dense MLP, each with norms of its own, and the sum of both.

    The router reads a norm without weights, times a learned factor per feature; it has another factor per expert.
    """
    assert shape.mixture is not None, "asked for only with experts"
    factor = Weight("router_norm.scale", HIDDEN, "vector")
    scaled = Weight("router.scale", term("num_experts"), "vector")
    router, *experts = mixture("expert_norm", shape.mixture)
    return [
        norm("mlp_own_norm", "mlp_down", STYLE),
        replace(norm("router_norm", "attention_residual", STYLE), weights=(factor,)),
        replace(router, inputs=("router_norm",), saves=("router_norm", "router"), weights=(*router.weights, scaled)),
        norm("expert_norm", "attention_residual", STYLE),
        *experts,
        norm("expert_own_norm", "combine", STYLE),
        add("mlp_sum", "mlp_own_norm", "expert_own_norm"),
    ]


def own_embedding(source: str) -> list[Operator]:
    """A gate of the stream on the layer's embedding, widened and normed; whole on every tensor-parallel rank."""
    inner = term("embedded")
    return [
        project("embedding_gate", source, HIDDEN, inner, region="sequence"),
        Operator(
            "embedding_product", "gated_activation", TOKENS, inner, "sequence", inputs=("embedding_gate",),
            saves=("embedding_gate",),
        ),
        project("embedding_up", "embedding_product", inner, HIDDEN, region="sequence"),
        norm("embedding_post_norm", "embedding_up", STYLE),
    ]  # fmt: skip
