"""Hybrids: decoders whose layers have a single mixer each (state space, attention, MLP or experts), in a pattern.

The pattern has one letter per layer, as in the configs of Nemotron-H: M state space, * attention, - MLP, E experts
[NVIDIA 2025, arXiv 2504.03624, figure 2; arXiv 2512.20848, figure 2]. Every layer is a norm, its operators and the
residual; positions are known through the state only.
"""

from __future__ import annotations

from dataclasses import replace

from simpar.errors import UserError
from simpar.models.config import Config, Family, llama_shape
from simpar.models.graph import INPUT, PRODUCTS, Block, ModelGraph, Operator
from simpar.models.mamba import Mamba, mamba
from simpar.models.mixture import Mixture, mixture, outputs
from simpar.models.transformer import (
    Layer,
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

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEWER = {"linear_attention": "M", "full_attention": "*"}
"""Kinds of layers as newer versions of transformers write them, by letter."""
PREDICTION = "*E"
KEPT = {"out_proj": "mxfp8", "latent_down": "bf16", "latent_up": "bf16", "qkv": "bf16", "o_proj": "bf16"}
"""Products that the 4-bit recipe of Nemotron 3 Super and Ultra keeps in more bits, beside the last layers and the
prediction layers as a whole [NVIDIA 2026, arXiv 2606.15007, section on NVFP4 pre-training; Megatron-Bridge 0.6.2,
training/mixed_precision.py and recipes/nemotronh]."""


def hybrid(name: str, pattern: str, shape: Shape, state: Mamba, style: Style, *, wide: int = 0) -> ModelGraph:
    """A decoder with the layers of ``pattern``, one of LETTERS each; layers of one kind share one block.

    In 4-bit runs the last ``wide`` layers stay in 16 bits, and some products of the other layers in more bits (KEPT).
    """
    narrow = len(pattern) - wide
    layers = tuple(LETTERS[letter] + "_wide" * (at >= narrow) for at, letter in enumerate(pattern))
    blocks = {kind: _block(kind.removesuffix("_wide"), shape, style) for kind in dict.fromkeys(layers)}
    if wide:
        blocks = {
            kind: _kept(replace(block, name=kind), everything=kind.endswith("_wide"))
            for kind, block in blocks.items()
        }
    dims = {
        "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "ffn": shape.ffn, "vocab": shape.vocab, "positions": 0, **state.dims,
    }  # fmt: skip
    dims |= shape.mixture.dims if shape.mixture else {}
    return ModelGraph(
        name=name, dims=dims, blocks=blocks, layers=layers, embedding=embedding(shape, style, False), head=head(style),
        tied_embeddings=style.tied, facts={"norm": style.norm, "pattern": pattern},
    )  # fmt: skip


def _kept(block: Block, *, everything: bool) -> Block:
    """The block with the products that a 4-bit recipe keeps in more bits: those of KEPT, or all."""
    operators = tuple(
        replace(op, kept_in=dict.fromkeys(narrower(8), "bf16" if everything else KEPT[op.name]))
        if op.kind in PRODUCTS and (everything or op.name in KEPT)
        else op
        for op in block.operators
    )
    return replace(block, operators=operators)


def predicting(graph: ModelGraph, shape: Shape, style: Style, passes: int, distinct: int) -> ModelGraph:
    """The graph with ``passes`` more layers that each predict a further token, ``distinct`` with weights of their own.

    The other ones share weights with a layer before them [NVIDIA 2026, Nemotron 3 Super and Ultra: two, shared]. All
    stay in 16 bits (Megatron-Bridge 0.6.2, recipes/nemotronh: keep_mtp_spec_in_bf16).
    """
    operators = prediction(style, Layer(rotary=False, experts=True), shape)
    wide = dict.fromkeys(narrower(16), "bf16")
    own = Block(
        "prediction",
        tuple(replace(op, kept_in=wide) if op.kind in PRODUCTS else op for op in operators),
    )
    again = Block("prediction_again", tuple(replace(op, weights=()) for op in own.operators))
    further = [own] * distinct + [again] * (passes - distinct)
    return replace(
        graph,
        blocks={**graph.blocks, **{block.name: block for block in further}},
        layers=(*graph.layers, *(block.name for block in further)),
        auxiliary=tuple(dict.fromkeys(block.name for block in further)),
    )


def _block(kind: str, shape: Shape, style: Style) -> Block:
    """A norm, the operators of the kind, and their sum with the residual."""
    name = "mlp" if kind == "moe" else kind
    before = norm(f"{name}_norm", INPUT, style)
    ops, ends = _operators(kind, before.name, shape, style)
    return Block(kind, (before, *ops, add(f"{name}_residual", INPUT, *ends)))


def _operators(kind: str, source: str, shape: Shape, style: Style) -> tuple[list[Operator], tuple[str, ...]]:
    """(Operators of a kind of layer, names of those whose outputs add up to the layer's)."""
    if kind == "moe" and shape.mixture:
        return mixture(source, shape.mixture), outputs(shape.mixture)
    if kind == "mamba":
        return mamba(source), ("out_proj",)
    if kind == "attention":
        return attention(source, style, Layer(rotary=False), False), ("o_proj",)
    return mlp(source, style), ("mlp_down",)


def _nemotron_h(config: Config, name: str) -> ModelGraph:
    """Nemotron-H, Nemotron Nano 2 and Nemotron 3, which has experts instead of MLPs."""
    pattern = _pattern(config)
    width = config.data.get("intermediate_size") or 1
    shape = llama_shape(config.having({"num_hidden_layers": len(pattern), "intermediate_size": width}))
    if "-" in pattern:
        config.size("intermediate_size")
    experts = _experts(config) if "E" in pattern else None
    shape = replace(shape, ffn=shape.ffn if "-" in pattern else 0, mixture=experts)
    state = Mamba(
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        state=config.size("ssm_state_size"),
        groups=config.size("n_groups", default=8),
        conv=config.size("conv_kernel", default=4),
        chunk=config.size("chunk_size", default=128),
    )
    if state.heads % state.groups:
        raise UserError(
            f"{config.source}: n_groups = {state.groups}: allowed: a divisor of the {state.heads} heads"
        )
    bias, mlp_bias = config.flag("attention_bias", default=False), config.flag("mlp_bias", default=False)
    style = Style(
        gated=False, tied=config.tied(), rotary=False, qkv_bias=bias,
        output_bias=bias, mlp_bias=mlp_bias,
    )  # fmt: skip
    given = config.data.get("num_layers_at_end_in_bf16")
    wide = config.size("num_layers_at_end_in_bf16") if given else 0
    if wide > len(pattern):
        raise UserError(
            f"{config.source}: num_layers_at_end_in_bf16 = {wide}: allowed: at most the {len(pattern)} layers"
        )
    graph = hybrid(name, pattern, shape, state, style, wide=wide)
    if not config.data.get("num_nextn_predict_layers"):
        return graph
    if config.text("mtp_hybrid_override_pattern", PREDICTION) != PREDICTION or experts is None:
        raise UserError(
            f"{config.source}: mtp_hybrid_override_pattern = {config.text('mtp_hybrid_override_pattern')!r}: allowed: "
            f"{PREDICTION!r}, in models with experts"
        )
    distinct = config.size("num_nextn_predict_layers")
    return predicting(graph, shape, style, config.size("mtp_num_layers", default=distinct), distinct)


def _pattern(config: Config) -> str:
    """The layers as letters. Raises UserError for unknown letters, or where their number is not the config's."""
    kinds = config.data.get("layers_block_type")
    if isinstance(kinds, list):
        names = {**{kind: letter for letter, kind in LETTERS.items()}, **NEWER}
        pattern = "".join(names.get(str(kind), "?") for kind in kinds)
    else:
        pattern = config.text("hybrid_override_pattern")
    strange = sorted(set(pattern) - set(LETTERS))
    if strange or not pattern:
        raise UserError(
            f"{config.source}: hybrid_override_pattern = {pattern!r}: allowed: one of {', '.join(LETTERS)} a layer"
        )
    count = config.size("num_hidden_layers", default=len(pattern))
    if count != len(pattern):
        raise UserError(
            f"{config.source}: num_hidden_layers = {count}: allowed: the {len(pattern)} of hybrid_override_pattern"
        )
    return pattern


def _experts(config: Config) -> Mixture:
    width = config.size("moe_intermediate_size")
    shared = (
        config.size("moe_shared_expert_intermediate_size") if config.data.get("n_shared_experts", 1) else 0
    )
    found = Mixture(
        config.size("n_routed_experts"), config.size("num_experts_per_tok"), width, shared_ffn=shared, router_bias=True,
        gated=False, latent=config.size("moe_latent_size") if config.data.get("moe_latent_size") else 0,
    )  # fmt: skip
    if found.topk > found.experts:
        raise UserError(
            f"{config.source}: num_experts_per_tok = {found.topk}: allowed: at most the {found.experts} experts"
        )
    return found


HYBRIDS: dict[str, Family] = {"nemotron_h": _nemotron_h}
