"""Models of two towers: an encoder with a decoder that attends to it.

A decoder of another length has a scope: its sizes stand in the model's dims as "decoder.seq". Blocks form one chain,
which a pipeline can cut anywhere; an encoder's output travels past every decoder layer.
"""

from dataclasses import replace

from simpar.architectures.graph import (
    HEAD_DIM,
    INPUT,
    AttentionPattern,
    Block,
    ModelGraph,
    Operator,
    Size,
    Weight,
    term,
)
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, product, project
from simpar.architectures.transformer import (
    LayerVariant,
    Shape,
    Style,
    add,
    attention,
    embedding,
    head,
    layer,
    mlp,
    norm,
)

MEMORY: Size = term("batch", "memory")
KEYS_VALUES: Size = term("kv_heads", "head_dim", times=2)
RELATIVE_BUCKETS = 32


def encoder_decoder(
    name: str,
    shape: Shape,
    style: Style,
    *,
    decoder_layers: int,
    decoder_seq: int | None = None,
    biases_by_layer: bool = False,
) -> ModelGraph:
    """A T5-like model: ``shape.layers`` encoder layers, then decoder layers with cross-attention.

    The encoder has the training's sequence length, the decoder ``decoder_seq`` tokens (None: as many). The towers share
    the token table, which counts once; each stack has 32 buckets of relative positions per head [Raffel et al. 2020,
    arXiv 1910.10683], with ``biases_by_layer`` each layer [UMT5; Chung et al. 2023, arXiv 2304.09151].
    """
    tables = (shape.layers, decoder_layers) if biases_by_layer else (1, 1)
    dims = {**shape.dims, "buckets": RELATIVE_BUCKETS}
    if decoder_seq:
        dims |= {"decoder.seq": decoder_seq, "decoder.context": decoder_seq}
    scope = "decoder" if decoder_seq else ""
    both_ways = replace(style, extra={**style.extra, "bidirectional": True})
    blocks = {
        "encoder_layer": layer("encoder_layer", both_ways, LayerVariant(), dropout=False),
        "decoder_embedding": Block("decoder_embedding", _decoder_start(style, tables[1]), scope, MEMORY_STREAM),
        "decoder_layer": Block("decoder_layer", decoder_layer(style), scope, MEMORY_STREAM),
    }
    return ModelGraph(
        name=name,
        dims=dims,
        blocks=blocks,
        layers=(*("encoder_layer",) * shape.layers, "decoder_embedding", *("decoder_layer",) * decoder_layers),
        embedding=_with_buckets(embedding(shape, style, dropout=False), tables[0]),
        head=replace(head(style), scope=scope),
        tied_embeddings=style.tied,
    )


MEMORY_STREAM: Size = product(MEMORY, HIDDEN)


def _with_buckets(block: Block, tables: int) -> Block:
    """The block with the tower's tables of relative position biases as weights of its first operator."""
    first, *rest = block.operators
    buckets = Weight("relative_attention_bias", term("buckets", "heads", times=tables), "vector")
    return replace(block, operators=(replace(first, weights=(*first.weights, buckets)), *rest))


def _decoder_start(style: Style, tables: int) -> tuple[Operator, ...]:
    """The norm that ends the encoder, and the decoder's tokens, looked up in the table that both towers share."""
    table = Weight("shared_embedding.weight", term("vocab", "hidden"), "shared")
    buckets = Weight("decoder_relative_attention_bias", term("buckets", "heads", times=tables), "vector")
    final = replace(norm("memory", INPUT, style), rows=MEMORY)
    tokens = Operator(
        "decoder_embedding", "embedding", TOKENS, HIDDEN, "tensor", weights=(table, buckets), inputs=(INPUT,)
    )
    return (final, tokens)


def decoder_layer(style: Style) -> tuple[Operator, ...]:
    """Self-attention, cross-attention to the encoder's output, MLP."""
    ops = [norm("attention_norm", INPUT, style), *attention("attention_norm", style, LayerVariant(), dropout=False)]
    ops.append(add("attention_residual", INPUT, "o_proj"))
    ops.append(norm("cross_norm", "attention_residual", style))
    ops += cross_attention("cross_norm", style)
    ops.append(add("cross_residual", "attention_residual", "cross_o_proj"))
    ops.append(norm("mlp_norm", "cross_residual", style))
    ops += mlp("mlp_norm", style)
    ops.append(add("mlp_residual", "cross_residual", "mlp_down"))
    return tuple(ops)


def cross_attention(source: str, style: Style) -> list[Operator]:
    """Queries of the decoder, keys and values of the encoder's output (saved once, by the encoder's end).

    Queries and keys are normed where the style says so: over all heads ("full") or each head by itself ("head").
    """
    query = project("cross_q", source, HIDDEN, QUERY, bias=style.qkv_bias)
    pairs = project("cross_kv", "memory", HIDDEN, KEYS_VALUES, bias=style.qkv_bias)
    weight = HEAD_DIM if style.qk_norm == "head" else QUERY
    norms = [_cross_norm("cross_q", TOKENS, QUERY, weight), _cross_norm("cross_kv", MEMORY, KEYS_VALUES, weight)]
    norms = norms if style.qk_norm else []
    read = tuple(op.name for op in norms or (query, pairs))
    core = Operator(
        "cross_attention",
        "attention",
        TOKENS,
        QUERY,
        "tensor",
        inputs=read,
        saves=(*read, "cross_attention", "lse"),
        attention=AttentionPattern(causal=False, context="memory"),
    )
    out = project("cross_o_proj", "cross_attention", QUERY, HIDDEN, bias=style.output_bias)
    return [query, replace(pairs, rows=MEMORY, saves=()), *norms, core, out]


def _cross_norm(source: str, rows: Size, columns: Size, weight: Size) -> Operator:
    """A norm of queries, or of keys beside their values, with a weight of all heads' features or of one head's."""
    name = f"{source}_norm"
    return Operator(
        name, "norm", rows, columns, "tensor", weights=(Weight(f"{name}.weight", weight, "vector"),), inputs=(source,),
        saves=(source, "stats"),
    )  # fmt: skip
