"""Short convolutions in the place of attention: a gate before and a gate behind a causal convolution over few tokens.

One product makes both gates and the input; the convolution runs over every channel by itself [Liquid AI 2025, LFM2
Technical Report, arXiv 2511.23404; transformers, models/lfm2]. Channels are those of all heads, by which tensor
parallelism divides them. The first product's output, the convolution's input and its result are kept for backward.
"""

from collections.abc import Sequence

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Weight, term
from simpar.architectures.mixture import mixture, outputs
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.transformer import (
    QUERY,
    LayerVariant,
    Shape,
    Style,
    add,
    attention,
    embedding,
    head,
    mlp,
    norm,
)


def short_convolution(source: str, *, kernel: int, bias: bool) -> list[Operator]:
    """Operators of one mixer over ``kernel`` tokens that reads ``source``; the last is the output projection."""
    columns = term("heads", "head_dim", times=3)
    weights = [Weight("conv.weight", term("heads", "head_dim", times=kernel))]
    weights += [Weight("conv.bias", QUERY, "vector")] * bias
    return [
        project("in_proj", source, HIDDEN, columns, bias=bias),
        Operator(
            "conv_gate", "gated_activation", TOKENS, QUERY, "tensor", inputs=("in_proj",), saves=("in_proj",)
        ),
        Operator(
            "conv", "convolution", TOKENS, QUERY, "tensor", weights=tuple(weights), inputs=("conv_gate",),
            saves=("conv_gate",),
        ),
        Operator(
            "gate", "gated_activation", TOKENS, QUERY, "tensor", inputs=("conv", "in_proj"), saves=("conv", "in_proj")
        ),
        project("out_proj", "gate", QUERY, HIDDEN, bias=bias),
    ]  # fmt: skip


def build_convolutional(
    name: str, shape: Shape, style: Style, layers: Sequence[tuple[bool, bool]], *, kernel: int, bias: bool
) -> ModelGraph:
    """A decoder whose ``layers`` have (attention or a convolution over ``kernel`` tokens, experts or an MLP)."""
    blocks = {
        _name(*each): Block(_name(*each), tuple(_layer(shape, style, *each, kernel=kernel, bias=bias)))
        for each in dict.fromkeys(layers)
    }
    return ModelGraph(
        name=name, dims=shape.dims, blocks=blocks, layers=tuple(_name(*each) for each in layers),
        embedding=embedding(shape, style, dropout=False), head=head(style), tied_embeddings=style.tied,
        facts={"norm": style.norm},
    )  # fmt: skip


def _name(attends: bool, experts: bool) -> str:
    return ("attention" if attends else "convolution") + "_moe" * experts


def _layer(shape: Shape, style: Style, attends: bool, experts: bool, *, kernel: int, bias: bool) -> list[Operator]:
    """A mixer, then an MLP or experts, each with its norm and residual."""
    start = norm("attention_norm", INPUT, style)
    mixer = (
        attention("attention_norm", style, LayerVariant(), dropout=False)
        if attends
        else short_convolution("attention_norm", kernel=kernel, bias=bias)
    )
    ops = [start, *mixer, add("attention_residual", INPUT, mixer[-1].name)]
    ops.append(norm("mlp_norm", "attention_residual", style))
    ends: tuple[str, ...] = ("mlp_down",)
    if experts and shape.mixture:
        ops += mixture("mlp_norm", shape.mixture)
        ends = outputs(shape.mixture)
    else:
        ops += mlp("mlp_norm", style)
    return [*ops, add("mlp_residual", "attention_residual", *ends)]
