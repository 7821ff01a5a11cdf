"""Readers of models whose layers have a Mamba-2 mixer and an MLP or experts, and of Mamba-2 itself.

In Falcon-H1 every layer has attention and a mixer side by side on one norm [arXiv 2507.22448, section 2.1]; in Bamba
and Granite 4 a layer has one of the two.
"""

from __future__ import annotations

from dataclasses import replace

from simpar.errors import UserError
from simpar.models.config import Config, Family, llama_shape
from simpar.models.graph import INPUT, Block, ModelGraph, Operator, Weight
from simpar.models.hf_dense import unbuilt
from simpar.models.hf_hybrids import hybrid
from simpar.models.hf_mixtures import with_experts
from simpar.models.mamba import Mamba, mamba
from simpar.models.mixture import Mixture, mixture, outputs
from simpar.models.transformer import Layer, Shape, Style, add, attention, embedding, head, mlp, norm

MAMBA, ATTENTION = "mamba", "attention"
KINDS = {"mamba": MAMBA, "linear_attention": MAMBA, "attention": ATTENTION, "full_attention": ATTENTION}
BARE_CONVOLUTION = "convolutions without a bias"
NORM_FIRST = "a norm before the gate of a mixer"
MULTIPLIERS = "multipliers of branches"
LIMITS = "limits of time steps"
BRANCH_MULTIPLIERS = (
    "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
    "mlp_multipliers", "ssm_multipliers",
)  # fmt: skip


def _state(config: Config, hidden: int) -> Mamba:
    """Sizes of mixers, from the field names that Bamba introduced."""
    inner = config.size("mamba_d_ssm", default=config.size("mamba_expand", default=2) * hidden)
    heads = config.size("mamba_n_heads", default=128)
    given = config.data.get("mamba_d_head", "auto")
    state = Mamba(
        heads=heads, head_dim=inner // heads if given in ("auto", None) else config.size("mamba_d_head"),
        state=config.size("mamba_d_state", default=256), groups=config.size("mamba_n_groups", default=1),
        conv=config.size("mamba_d_conv", default=4), chunk=config.size("mamba_chunk_size", default=256),
    )  # fmt: skip
    if state.heads * state.head_dim != inner or state.heads % state.groups:
        raise UserError(
            f"{config.source}: mamba_n_heads = {heads}: allowed: a divisor of the {inner} inner features, and a "
            f"multiple of the {state.groups} groups"
        )
    return state


def _mixer(config: Config, source: str) -> list[Operator]:
    normed = config.text("model_type") != "falcon_h1" or config.flag("mamba_rms_norm", default=False)
    ops = mamba(
        source,
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        normed=normed,
    )
    if config.text("model_type") != "falcon_h1":
        return ops
    return [*ops[:-1], _biased(ops[-1], config.flag("projectors_bias", default=False))]


def _biased(op: Operator, bias: bool) -> Operator:
    """The projection out of a mixer with a bias, or without."""
    weights = op.weights[:1]
    return replace(
        op, weights=(*weights, Weight(f"{op.name}.bias", op.columns, "vector")) if bias else weights
    )


def _layers(config: Config, name: str, shape: Shape, style: Style, kinds: tuple[str, ...]) -> ModelGraph:
    """A decoder whose layers have the mixers of their kind ("attention", "mamba" or both) and an MLP or experts."""
    state = _state(config, shape.hidden)
    blocks = {kind: _layer(config, kind, shape, style) for kind in dict.fromkeys(kinds)}
    dims = {
        "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "ffn": shape.ffn, "vocab": shape.vocab, "positions": 0, **state.dims,
    }  # fmt: skip
    dims |= shape.mixture.dims if shape.mixture else {}
    graph = ModelGraph(
        name=name, dims=dims, blocks=blocks, layers=kinds, embedding=embedding(shape, style, False), head=head(style),
        tied_embeddings=style.tied, facts={"norm": style.norm},
    )  # fmt: skip
    return unbuilt(graph, *_missing(config))


def _layer(config: Config, kind: str, shape: Shape, style: Style) -> Block:
    ops = [norm("attention_norm", INPUT, style)]
    ends = []
    if ATTENTION in kind:
        ops += attention("attention_norm", style, Layer(), False)
        ends.append("o_proj")
    if MAMBA in kind:
        ops += _mixer(config, "attention_norm")
        ends.append("out_proj")
    ops += [add("attention_residual", INPUT, *ends), norm("mlp_norm", "attention_residual", style)]
    branch: tuple[str, ...] = ("mlp_down",)
    if shape.mixture:
        ops += mixture("mlp_norm", shape.mixture)
        branch = outputs(shape.mixture)
    else:
        ops += mlp("mlp_norm", style)
    return Block(kind, (*ops, add("mlp_residual", "attention_residual", *branch)))


def _missing(config: Config) -> list[str]:
    """Parts of the config's mixers that runs cannot compute."""
    found = [] if config.flag("mamba_conv_bias", default=True) else [BARE_CONVOLUTION]
    ones = (None, 1, [1, 1], [1, 1, 1, 1, 1])
    if any(config.data.get(name) not in ones for name in BRANCH_MULTIPLIERS):
        found.append(MULTIPLIERS)
    normed = config.text("model_type") == "falcon_h1" and config.flag("mamba_rms_norm", default=False)
    if config.flag("mamba_norm_before_gate", default=True) and normed:
        found.append(NORM_FIRST)
    return [*found, *_limits(config)]


def _limits(config: Config) -> list[str]:
    limits = config.data.get("time_step_limit")
    none = limits is None or (
        isinstance(limits, list | tuple) and list(limits) in ([0.0, float("inf")], [0.0, "Infinity"])
    )
    return [] if none else [LIMITS]


def _listed(config: Config, count: int) -> tuple[str, ...]:
    """Mamba or attention by layer, as ``layer_types`` or ``layers_block_type`` has them."""
    listed = config.data.get("layer_types") or config.data.get("layers_block_type") or ["mamba"] * count
    kinds = tuple(KINDS.get(str(kind), "") for kind in listed)
    if len(kinds) != count or "" in kinds:
        raise UserError(
            f"{config.source}: layer_types = {listed!r}: allowed: one of {', '.join(KINDS)} for each of {count} layers"
        )
    return kinds


def _style(config: Config) -> Style:
    """Llama's, with biases where the config asks for them."""
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    return Style(tied=config.tied(), qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def _falcon_h1(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    return _layers(config, name, shape, _style(config), (f"{ATTENTION}_{MAMBA}",) * shape.layers)


def _bamba(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, kv_heads=8)
    indices = config.data.get("attn_layer_indices") or []
    if not isinstance(indices, list):
        raise UserError(f"{config.source}: attn_layer_indices = {indices!r}: allowed: a list of layers")
    kinds = tuple(ATTENTION if layer in indices else MAMBA for layer in range(shape.layers))
    if not indices and (config.data.get("layers_block_type") or config.data.get("layer_types")):
        kinds = _listed(config, shape.layers)
    return _layers(config, name, shape, _style(config), kinds)


def _granite_hybrid(config: Config, name: str) -> ModelGraph:
    """Granite 4: an MLP for all tokens, beside experts if there are any; mostly without positions."""
    shape = llama_shape(config)
    shared = config.size("shared_intermediate_size", default=1024)
    routed = config.data.get("num_local_experts", 8)
    config.data.get("num_experts_per_tok")
    bias = config.flag("attention_bias", default=False)
    style = Style(
        tied=config.tied(), qkv_bias=bias, output_bias=bias,
        rotary=config.text("position_embedding_type") == "rope",
    )  # fmt: skip
    if routed:
        experts = Mixture(
            config.size("num_local_experts", default=8), config.size("num_experts_per_tok", default=2),
            config.size("intermediate_size"), shared_ffn=shared,
        )  # fmt: skip
        shape = with_experts(shape, experts)
    else:
        shape = replace(shape, ffn=shared)
    return _layers(config, name, shape, style, _listed(config, shape.layers))


def _mamba2(config: Config, name: str) -> ModelGraph:
    """Mixers alone, as many heads as ``expand`` times the hidden size has."""
    hidden, heads = config.size("hidden_size", default=4096), config.size("num_heads", default=128)
    head_dim, expand = config.size("head_dim", default=64), config.size("expand", default=2)
    state = Mamba(
        heads=heads, head_dim=head_dim, state=config.size("state_size", default=128),
        groups=config.size("n_groups", default=8), conv=config.size("conv_kernel", default=4),
        chunk=config.size("chunk_size", default=256),
    )  # fmt: skip
    if heads * head_dim != expand * hidden or heads % state.groups:
        raise UserError(
            f"{config.source}: num_heads = {heads}: allowed: expand x hidden_size / head_dim = "
            f"{expand * hidden // head_dim}, and a multiple of the {state.groups} groups"
        )
    layers = config.size("num_hidden_layers", default=64)
    shape = Shape(config.size("vocab_size", default=32768), hidden, 0, layers, heads, heads, head_dim)
    style = Style(tied=config.tied(), rotary=False)
    graph = hybrid(name, "M" * layers, shape, state, style)
    bias, conv_bias = config.flag("use_bias", default=False), config.flag("use_conv_bias", default=True)
    ops = mamba("mamba_norm", bias=bias, conv_bias=conv_bias)
    block = graph.blocks[MAMBA]
    whole = replace(block, operators=(block.operators[0], *ops, block.operators[-1]))
    graph = replace(graph, blocks={MAMBA: whole})
    return unbuilt(graph, *([] if conv_bias else [BARE_CONVOLUTION]), *_limits(config))


STATE_SPACE: dict[str, Family] = {
    "falcon_h1": _falcon_h1, "bamba": _bamba, "granitemoehybrid": _granite_hybrid, "mamba2": _mamba2,
}  # fmt: skip
