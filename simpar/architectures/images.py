"""Models of images alone: classifiers and diffusion transformers. A sequence is an image, its tokens are patches.

Neither has a vocabulary: dims have 1 in its place, and ends have the columns of labels, or of what is predicted for a
patch. A classifier reads one row of an image, its class token [ViT, Dosovitskiy et al. 2020, arXiv 2010.11929]. In a
diffusion transformer, an embedding of time and label, one row an image, travels beside the patches; a product of it in
every layer makes six vectors that shift and scale what both branches read and gate what they add, adaLN-Zero [DiT,
Peebles and Xie 2022, arXiv 2212.09748]. These products are whole on every tensor-parallel rank, which are few rows.
"""

from collections.abc import Iterator
from dataclasses import replace

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, product, project
from simpar.architectures.streams import mix
from simpar.architectures.transformer import LayerVariant, Shape, Style, attention, layer, mlp, norm
from simpar.architectures.vision import Patches, embed_patches
from simpar.architectures.vision_reading import VIT

IMAGES: Size = term("batch")
CONDITION: Size = product(IMAGES, HIDDEN)
"""The embedding of time and label of every image."""
BOTH_WAYS = {"bidirectional": True}
PLAIN = replace(VIT, norm="none", extra=BOTH_WAYS)
"""ViT's style with norms without weights."""
FREQUENCIES = 256
"""Sines and cosines of which an embedding of time is made."""


def classifier(name: str, patches: Patches, shape: Shape, style: Style, labels: int) -> ModelGraph:
    """An encoder of images with one product of their class tokens with ``labels``."""
    both_ways = replace(style, extra=BOTH_WAYS)
    chosen = project("lm_head", "final_norm", HIDDEN, term(times=labels), bias=True, region="sequence")
    end = (norm("final_norm", INPUT, style), replace(chosen, rows=IMAGES), loss_of_images(IMAGES, term(times=labels)))
    return ModelGraph(
        name=name,
        dims=shape.dims,
        blocks={"layer": layer("layer", both_ways, LayerVariant(), dropout=False)},
        layers=("layer",) * shape.layers,
        embedding=Block("embedding", tuple(embed_patches(patches, style))),
        head=Block("head", end),
        tied_embeddings=False,
        facts={"norm": style.norm},
    )


def diffusion_transformer(name: str, patches: Patches, shape: Shape, labels: int, predicted: int) -> ModelGraph:
    """A transformer with ``labels`` of images, which predicts so many numbers for a patch."""
    return ModelGraph(
        name=name,
        dims={**shape.dims, "labels": labels},
        blocks={"layer": Block("layer", tuple(_modulated_layer()), passes=CONDITION)},
        layers=("layer",) * shape.layers,
        embedding=Block("embedding", tuple(_conditioned(patches)), passes=CONDITION),
        head=Block("head", tuple(_predict(term(times=predicted)))),
        tied_embeddings=False,
        facts={"norm": "layer"},
    )


def loss_of_images(rows: Size, columns: Size) -> Operator:
    """Cross entropy of labels; or a squared error, which is counted as the cross entropy of as many logits."""
    return Operator("loss", "loss", rows, columns, "sequence", inputs=("lm_head",), saves=("lm_head",))


def product_of_image(name: str, source: str, contraction: Size, columns: Size) -> Operator:
    """A product with one row for each image; without a source, with the embedding that travels beside the patches."""
    op = replace(project(name, source, contraction, columns, bias=True, region="sequence"), rows=IMAGES)
    return op if source else replace(op, inputs=(), saves=())


def _conditioned(patches: Patches) -> Iterator[Operator]:
    """The embeddings of time, by an MLP, and label; then patches with positions that are not trained."""
    table = Weight("label_embedding.weight", term("labels", "hidden"), "embedding")
    yield product_of_image("time_up", "", term(times=FREQUENCIES), HIDDEN)
    yield Operator("time_activation", "activation", IMAGES, HIDDEN, "sequence", inputs=("time_up",), saves=("time_up",))
    yield product_of_image("time_down", "time_activation", HIDDEN, HIDDEN)
    yield Operator("label_embedding", "embedding", IMAGES, HIDDEN, "sequence", weights=(table,))
    yield Operator("condition", "add", IMAGES, HIDDEN, "sequence", inputs=("time_down", "label_embedding"))
    *made, last = embed_patches(patches, VIT)
    yield from made
    yield replace(last, weights=tuple(replace(each, trainable=False) for each in last.weights))


def _modulated_layer() -> list[Operator]:
    """Attention and an MLP, each between a shift and scale of a norm and a gate before the sum."""
    return [
        product_of_image("modulation", "", HIDDEN, term("hidden", times=6)),
        *modulate("attention", INPUT),
        *attention("attention_modulate", PLAIN, LayerVariant(), dropout=False),
        gated("attention", INPUT, "o_proj"),
        *modulate("mlp", "attention_residual"),
        *mlp("mlp_modulate", PLAIN),
        gated("mlp", "attention_residual", "mlp_down"),
    ]


def modulate(branch: str, source: str, rows: Size = TOKENS, by: str = "modulation") -> list[Operator]:
    """A norm of ``rows`` without weights, and one kernel that scales and shifts, ``by`` what a product has made."""
    name = f"{branch}_norm"
    read = (name, by)
    both = (norm(name, source, PLAIN), mix(f"{branch}_modulate", HIDDEN, HIDDEN, *read, saves=read))
    return [replace(op, rows=rows) for op in both]


def gated(branch: str, source: str, made: str) -> Operator:
    """One kernel that multiplies what a branch ends with and adds it."""
    return mix(f"{branch}_residual", term("hidden", times=2), HIDDEN, source, made, saves=(made,))


def _predict(columns: Size) -> list[Operator]:
    """Shift and scale of the last norm, a product with what is predicted for a patch, and the loss."""
    return [
        product_of_image("modulation", "", HIDDEN, term("hidden", times=2)),
        *modulate("final", INPUT),
        project("lm_head", "final_modulate", HIDDEN, columns, bias=True, region="sequence"),
        loss_of_images(TOKENS, columns),
    ]
