"""Alternating updates: streams of the hidden size, one of which a layer computes while maps predict and correct all.

Before a layer, n^2 maps of the active stream predict all n; the layer reads the active prediction; behind it, n maps of
its output spread what the layer changed over the predictions. One norm and one product with n columns make what both
kinds of maps are made of [AltUp, Baykal et al. 2023, arXiv 2301.13310; transformers, models/gemma3n]. Beside attention
there is a branch of low rank [LAuReL, Menghani et al. 2024, arXiv 2411.07501]. Every tensor-parallel rank does all of
this for its rows of the sequence; what is not a product is one kernel that reads and writes once.
"""

from dataclasses import replace

from simpar.architectures.gemma4 import LayerPlan, attention_with_shared_keys, embed_by_layer, own_embedding
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Size, term
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.streams import STREAMS, mix
from simpar.architectures.transformer import Shape, Style, add, head, mlp, norm
from simpar.dataclass import dataclass

STYLE = Style(tied=True)
MAPS: Size = term("streams")
ALL_MAPS: Size = term("streams", "streams")


@dataclass(frozen=True)
class Alternation:
    """The number of ``streams``, the ``rank`` of the branch beside attention, and which layers are ``sparse``.

    In sparse layers an MLP's gates count from so many deviations above their mean on, and are 0 below.
    """

    streams: int
    rank: int
    sparse: tuple[bool, ...]


def build_alternating(name: str, shape: Shape, layout: LayerPlan, ways: Alternation) -> ModelGraph:
    """A decoder of the given shape and kinds of layers, with the stream of a layer alternately updated."""
    first = len(layout.windows) - layout.shared
    layers = [
        _layer(window, layout, reads=at >= first, sparse=sparse, passes=layout.passes(at))
        for at, (window, sparse) in enumerate(zip(layout.windows, ways.sparse, strict=True))
    ]
    return ModelGraph(
        name=name,
        dims={
            **shape.dims, **layout.full.dims, **layout.dims, "streams": ways.streams, "laurel": ways.rank,
        },
        blocks={block.name: block for block in layers},
        layers=tuple(block.name for block in layers),
        embedding=_embedding(shape, layout, ways.streams - 1),
        head=_head(ways.streams - 1),
        tied_embeddings=True,
        facts={"norm": STYLE.norm},
    )  # fmt: skip


def _embedding(shape: Shape, layout: LayerPlan, others: int) -> Block:
    """Tokens and embeddings of all layers; a product with the tokens for each of the ``others`` among the streams."""
    block = embed_by_layer(shape, layout)
    made = project("stream_projection", "token_embedding", HIDDEN, term("hidden", times=others), region="sequence")
    scaled = mix("streams", STREAMS, STREAMS, "token_embedding", made.name, saves=("token_embedding", made.name))
    return replace(block, operators=(*block.operators[:-1], made, scaled), stream=STREAMS)


def _head(others: int) -> Block:
    """The mean of all streams, each of the ``others`` behind a product of its own; then the usual head."""
    made = [project(f"stream_{at}", INPUT, HIDDEN, HIDDEN, region="sequence") for at in range(1, others + 1)]
    names = tuple(op.name for op in made)
    final, *rest = head(STYLE).operators
    final = replace(final, inputs=("mean",), saves=("mean", "stats"))
    return Block(
        "head", (*made, mix("mean", STREAMS, HIDDEN, INPUT, *names, saves=names), final, *rest), stream=STREAMS
    )


def _layer(window: int | None, layout: LayerPlan, *, reads: bool, sparse: bool, passes: Size) -> Block:
    """Prediction, attention beside a branch of low rank, an MLP, correction, then the layer's own embedding."""
    operators = (
        *_predict(),
        norm("attention_norm", "predict", STYLE),
        *_low_rank("attention_norm"),
        *attention_with_shared_keys(window, layout.full, reads=reads),
        norm("attention_post_norm", "o_proj", STYLE),
        add("attention_residual", "predict", "attention_post_norm", "laurel"),
        norm("mlp_norm", "attention_residual", STYLE),
        *(_sparse_mlp("mlp_norm") if sparse else mlp("mlp_norm", STYLE)),
        norm("mlp_post_norm", "mlp_down", STYLE),
        add("mlp_residual", "attention_residual", "mlp_post_norm"),
        *_correct("mlp_residual"),
        *own_embedding("correct_scale"),
        mix("embedding_merge", (*STREAMS, *HIDDEN), STREAMS, "correct", "embedding_post_norm"),
    )
    kinds = {"shared": reads, "sparse": sparse, f"window_{window}": window is not None, f"{len(passes)}": bool(passes)}
    words = ["layer", *(word for word, is_so in kinds.items() if is_so)]
    return Block("_".join(words), operators, passes=passes, stream=STREAMS)


def _predict() -> list[Operator]:
    """All streams from their mixture by maps of the active one."""
    return [
        norm("predict_norm", INPUT, STYLE),
        project("predict_router", "predict_norm", HIDDEN, MAPS, region="sequence"),
        project("predict_maps", "predict_router", MAPS, ALL_MAPS, region="sequence"),
        mix("predict", (*STREAMS, *ALL_MAPS), STREAMS, INPUT, "predict_maps", saves=(INPUT, "predict_maps")),
    ]


def _correct(source: str) -> list[Operator]:
    """All streams from the predictions and what the layer changed; then the active one, with a factor per feature."""
    read = ("predict", source, "correct_maps")
    scale = replace(norm("correct_scale", "active", STYLE), kind="mix", contraction=HIDDEN, saves=("active",))
    return [
        _shared(norm("correct_norm", source, STYLE)),
        _shared(project("correct_router", "correct_norm", HIDDEN, MAPS, region="sequence")),
        project("correct_maps", "correct_router", MAPS, MAPS, region="sequence"),
        mix("correct", (*STREAMS, *HIDDEN, *MAPS), STREAMS, *read, saves=read),
        Operator("active", "copy", TOKENS, HIDDEN, "sequence", inputs=("correct",)),
        scale,
    ]


def _shared(op: Operator) -> Operator:
    """The operator with the weights of prediction, which count there."""
    return replace(op, weights=tuple(replace(weight, kind="shared") for weight in op.weights))


def _low_rank(source: str) -> list[Operator]:
    """What attention reads, plus a normed product of low rank with it."""
    return [
        project("laurel_left", source, HIDDEN, term("laurel"), region="sequence"),
        project("laurel_right", "laurel_left", term("laurel"), HIDDEN, region="sequence"),
        norm("laurel_norm", "laurel_right", STYLE),
        add("laurel", source, "laurel_norm"),
    ]


def _sparse_mlp(source: str) -> list[Operator]:
    """A gated MLP whose gates lose their mean and some deviations, and are cut at 0, in one pass over them.

    Of a tensor-parallel rank's own columns, as in the plan of transformers: nothing is summed over ranks. The products
    stay dense: training saves nothing.
    """
    up, act, down = mlp(source, STYLE)
    cut = Operator("mlp_sparsity", "norm", TOKENS, term("ffn"), "tensor", inputs=("mlp_up",), saves=("mlp_up", "stats"))
    read = ("mlp_sparsity", "mlp_up")
    return [up, cut, replace(act, inputs=read, saves=read), down]
