"""Hybrids: decoders whose layers have a single mixer each (state space, attention, MLP or experts), in a pattern.

The pattern has one letter per layer, as in the configs of Nemotron-H: M state space, * attention, - MLP, E experts
[NVIDIA 2025, arXiv 2504.03624, figure 2; arXiv 2512.20848, figure 2]. Every layer is a norm, its operators and the
residual; positions are known through the state only.
"""

from collections.abc import Callable
from dataclasses import replace

from simpar.architectures.graph import INPUT, PRODUCTS, Block, ModelGraph, Operator
from simpar.architectures.mamba import Mamba, mamba
from simpar.architectures.mixture import mixture, outputs
from simpar.architectures.transformer import (
    LayerVariant,
    Shape,
    Style,
    add,
    attention,
    embedding,
    head,
    mlp,
    norm,
    prediction,
)
from simpar.precisions import narrower

Mixer = Callable[[str], list[Operator]]
"""Makes the operators of a mixer that reads an operator's output."""
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
PREDICTION = "*E"
KEPT_PRECISIONS = {"out_proj": "mxfp8", "latent_down": "bf16", "latent_up": "bf16", "qkv": "bf16", "o_proj": "bf16"}
"""Products that the 4-bit recipe of Nemotron 3 Super and Ultra keeps in more bits, beside the last layers and the
prediction layers as a whole [NVIDIA 2026, arXiv 2606.15007, section on NVFP4 pre-training; Megatron-Bridge 0.6.2,
training/mixed_precision.py and recipes/nemotronh]."""


def hybrid(
    name: str, pattern: str, shape: Shape, state: Mamba, style: Style, *, wide: int = 0, mixer: Mixer = mamba
) -> ModelGraph:
    """A decoder with the layers of ``pattern``, one of LETTERS each; layers of one kind share one block.

    In 4-bit runs the last ``wide`` layers stay in 16 bits, and some products of the other layers in more bits (KEPT).
    """
    narrow = len(pattern) - wide
    layers = tuple(LETTERS[letter] + "_wide" * (at >= narrow) for at, letter in enumerate(pattern))
    blocks = {kind: _block(kind.removesuffix("_wide"), shape, style, mixer) for kind in dict.fromkeys(layers)}
    if wide:
        blocks = {
            kind: _kept(replace(block, name=kind), everything=kind.endswith("_wide")) for kind, block in blocks.items()
        }
    return ModelGraph(
        name=name, dims=shape.dims | state.dims, blocks=blocks, layers=layers,
        embedding=embedding(shape, style, False), head=head(style),
        tied_embeddings=style.tied, facts={"norm": style.norm, "pattern": pattern},
    )  # fmt: skip


def _kept(block: Block, *, everything: bool) -> Block:
    """The block with the products that a 4-bit recipe keeps in more bits: those of KEPT, or all."""
    operators = tuple(
        replace(op, kept_in=dict.fromkeys(narrower(8), "bf16" if everything else KEPT_PRECISIONS[op.name]))
        if op.kind in PRODUCTS and (everything or op.name in KEPT_PRECISIONS)
        else op
        for op in block.operators
    )
    return replace(block, operators=operators)


def add_prediction(graph: ModelGraph, shape: Shape, style: Style, passes: int, distinct: int) -> ModelGraph:
    """The graph with ``passes`` more layers that each predict a further token, ``distinct`` with weights of their own.

    The other ones share weights with a layer before them [NVIDIA 2026, Nemotron 3 Super and Ultra: two, shared]. All
    stay in 16 bits (Megatron-Bridge 0.6.2, recipes/nemotronh: keep_mtp_spec_in_bf16).
    """
    operators = prediction(style, LayerVariant(rotary=False, experts=True), shape)
    wide = dict.fromkeys(narrower(16), "bf16")
    own = Block("prediction", tuple(replace(op, kept_in=wide) if op.kind in PRODUCTS else op for op in operators))
    again = Block("prediction_again", tuple(replace(op, weights=()) for op in own.operators))
    further = [own] * distinct + [again] * (passes - distinct)
    return replace(
        graph,
        blocks={**graph.blocks, **{block.name: block for block in further}},
        layers=(*graph.layers, *(block.name for block in further)),
        auxiliary=tuple(dict.fromkeys(block.name for block in further)),
    )


def _block(kind: str, shape: Shape, style: Style, mixer: Mixer) -> Block:
    """A norm, the operators of the kind, and their sum with the residual."""
    name = "mlp" if kind == "moe" else kind
    before = norm(f"{name}_norm", INPUT, style)
    ops, ends = (
        (mixer(before.name), ("out_proj",)) if kind == LETTERS["M"] else _operators(kind, before.name, shape, style)
    )
    return Block(kind, (before, *ops, add(f"{name}_residual", INPUT, *ends)))


def _operators(kind: str, source: str, shape: Shape, style: Style) -> tuple[list[Operator], tuple[str, ...]]:
    """(Operators of a kind of layer without states, names of those whose outputs add up to the layer's)."""
    if kind == "moe" and shape.mixture:
        return mixture(source, shape.mixture), outputs(shape.mixture)
    if kind == "attention":
        return attention(source, style, LayerVariant(rotary=False), False), ("o_proj",)
    return mlp(source, style), ("mlp_down",)
