"""DeepSeek V4: compressed attention, experts in every layer, and four residual streams.

The first layers choose experts by a table of tokens, which has no parameters [DeepSeek-AI 2026, arXiv 2606.19348,
section 2; transformers, models/deepseek_v4]. A layer that predicts a further token joins every stream with the token's
embedding and has the window alone (the released model code).
"""

from dataclasses import replace

from simpar.architectures.compressed import CompressedShape, Compression, compressed_attention
from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator
from simpar.architectures.indexer import Indexer
from simpar.architectures.mixture import Mixture, mixture, outputs
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.reading import layers_in, llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.streams import STREAMS, collapse, end, merge, mix, spread, stream_product
from simpar.architectures.transformer import Shape, Style, embedding, head, norm
from simpar.dataclass import dataclass
from simpar.errors import UserError

WIDE, COMPRESSED = "residual streams wider than the hidden size", "compressed keys"
KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Words of ``layer_types``, and the usual tokens of a key."""
ASSUMED = ("kernels of the residual streams are fused, and the indexer learns as that of DeepSeek V3.2",)
USUAL = {
    "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
}  # fmt: skip


@dataclass(frozen=True)
class _LayerParts:
    """What all layers of a model share."""

    shape: Shape
    style: Style
    attention: CompressedShape
    mixture: Mixture


def _read(config: Config, name: str) -> ModelGraph:
    config = config.having(USUAL, unless_given=True)
    shape = llama_shape(config, ffn="moe_intermediate_size")
    if shape.kv_heads != 1:
        raise UserError(f"{config.source}: num_key_value_heads = {shape.kv_heads}: allowed: 1")
    width = config.size("moe_intermediate_size")
    experts = Mixture(
        config.size("n_routed_experts", "num_local_experts", default=256),
        config.size("num_experts_per_tok", default=6), width,
        shared_ffn=width * config.size("n_shared_experts", default=1), router_bias=True,
        clamped=config.number("swiglu_limit", default=10.0) > 0,
    )  # fmt: skip
    sizes = CompressedShape(
        config.size("sliding_window", default=128), config.size("q_lora_rank", default=1024),
        config.size("o_groups", default=8), config.size("o_lora_rank", default=1024),
    )  # fmt: skip
    if shape.heads % sizes.groups:
        raise UserError(f"{config.source}: o_groups = {sizes.groups} does not divide {shape.heads} attention heads")
    for field in ("qk_rope_head_dim", "compress_rope_theta", "hc_sinkhorn_iters", "hc_eps", "topk_method"):
        config.data.get(field)
    full = with_experts(shape, experts)
    parts = _LayerParts(full, style_of(config, Style()), sizes, experts)
    ways, hashed = _compressions(config, shape.layers), _hashed(config, shape.layers)
    further = config.optional_size("num_nextn_predict_layers")
    layers = [_layer(parts, *each) for each in zip(ways, hashed, strict=True)]
    last = [_prediction(parts)] * further
    blocks = {block.name: block for block in (*layers, *last)}
    dims = {**full.dims, **sizes.dims, "streams": config.size("hc_mult", default=4)}
    for indexer in {way.indexer for way in ways if way and way.indexer}:
        dims |= indexer.dims
    graph = ModelGraph(
        name=name,
        dims=dims | {"compressed": 1} if any(ways) else dims,
        blocks=blocks,
        layers=tuple(block.name for block in (*layers, *last)),
        embedding=_embedding(parts),
        head=_head(parts),
        tied_embeddings=parts.style.tied,
        facts={"norm": parts.style.norm, "assumed": ASSUMED},
        auxiliary=tuple(dict.fromkeys(block.name for block in last)),
    )
    return mark_unbuilt(graph, WIDE, COMPRESSED)


def _compressions(config: Config, count: int) -> list[Compression | None]:
    """How every layer compresses keys: by words, by tokens of a key, or as V4 Pro does. Raises UserError."""
    ratios = dict(KINDS) | {str(kind): int(ratio) for kind, ratio in (config.mapping("compress_rates") or {}).items()}
    for word, field in (("compressed_sparse_attention", "csa"), ("heavily_compressed_attention", "hca")):
        ratios[word] = config.size(f"compress_rate_{field}", default=ratios[word])
    sparse, heavy = (ratios[word] for word in list(KINDS)[1:])
    indexer = Indexer(
        config.size("index_n_heads", default=64), config.size("index_head_dim", default=128),
        config.size("index_topk", default=512), ratio=sparse,
    )  # fmt: skip
    ways = {0: None, 1: Compression(sparse, indexer), 2: Compression(heavy)}
    given = config.data.get("compress_ratios")
    if isinstance(given, list):  # with those of prediction layers
        config = config.having({"compress_ratios": given[:count]})
    listed = layers_in(config, count, "layer_types", {word: at for at, word in enumerate(KINDS)})
    if listed is None:
        listed = layers_in(config, count, "compress_ratios", {ratio: at for at, ratio in enumerate(KINDS.values())})
    if listed is None:
        listed = [2 if at < 2 or at % 2 else 1 for at in range(count)]
    return [ways[each] for each in listed]


def _hashed(config: Config, count: int) -> list[bool]:
    """Layers that choose experts by a table of tokens. Raises UserError."""
    listed = layers_in(config, count, "mlp_layer_types", {"hash_moe": True, "moe": False})
    first = config.optional_size("num_hash_layers") if "num_hash_layers" in config.data else 3
    return [at < first for at in range(count)] if listed is None else listed


def _layer(parts: _LayerParts, way: Compression | None, hashed: bool) -> Block:
    words = ["layer", *(["hash"] if hashed else [])]
    words += ["window"] if way is None else [f"{'sparse' if way.indexer else 'compressed'}_{way.ratio}"]
    return Block("_".join(words), tuple(_both(parts, INPUT, way, hashed)), stream=STREAMS)


def _both(parts: _LayerParts, source: str, way: Compression | None, hashed: bool) -> list[Operator]:
    """Attention, then experts, each between a sum of the streams and a mix of them."""
    experts = replace(parts.mixture, router_bias=not hashed)
    return [
        *collapse("attention", source), norm("attention_norm", "attention_collapse", parts.style),
        *compressed_attention("attention_norm", parts.attention, parts.shape.dims, way),
        *merge("attention", source, "o_proj"),
        *collapse("mlp", "attention_merge"), norm("mlp_norm", "mlp_collapse", parts.style),
        *mixture("mlp_norm", experts), *merge("mlp", "attention_merge", *outputs(experts)),
    ]  # fmt: skip


def _prediction(parts: _LayerParts) -> Block:
    """One more layer, from every stream and the next token's embedding, and the shared output projection."""
    own = norm("state_norm", INPUT, parts.style)
    last = head(parts.style).operators
    projected = replace(last[1], weights=())
    operators = (
        replace(own, columns=STREAMS), norm("embedding_norm", INPUT, parts.style),
        project("join_embedding", "embedding_norm", HIDDEN, HIDDEN, region="sequence"),
        stream_product("join_state", "state_norm"),
        mix("join", (*STREAMS, *HIDDEN), STREAMS, "join_state", "join_embedding"),
        *_both(parts, "join", None, hashed=False),
        *end("mlp_merge"), replace(last[0], inputs=("head_collapse",), saves=("head_collapse", "stats")),
        projected, last[2], Operator("pass", "add", TOKENS, STREAMS, "sequence", inputs=(INPUT,)),
    )  # fmt: skip
    return Block("prediction", operators, stream=STREAMS)


def _embedding(parts: _LayerParts) -> Block:
    block = embedding(parts.shape, parts.style, dropout=False)
    return replace(block, operators=(*block.operators, spread(block.operators[-1].name)), stream=STREAMS)


def _head(parts: _LayerParts) -> Block:
    final, *others = head(parts.style).operators
    final = replace(final, inputs=("head_collapse",), saves=("head_collapse", "stats"))
    return Block("head", (*end(INPUT), final, *others), stream=STREAMS)


FAMILIES = (
    ModelFamily(
        "deepseek_v4",
        _read,
        Details(
            norm_eps=0.000001, positions=Positions(Rope(interleaved=True)),
            gating=Gating("sqrtsoftplus", factor=1.5, bias="chooses"),
        ),
        None,
        {
            **TINY, "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 24,
            "moe_intermediate_size": 16, "intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 4,
            "sliding_window": 8, "num_nextn_predict_layers": 0, "hc_mult": 2, "num_hash_layers": 1,
            "compress_ratios": [0, 128, 4, 4],
        },
    ),
)  # fmt: skip
