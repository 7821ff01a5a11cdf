"""Decoders whose layers have attention, a Mamba-2 mixer or both, and then an MLP or experts.

Field names of mixers are those that Bamba introduced.
"""

import math
from collections.abc import Mapping

from simpar.architectures.config import Config
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator
from simpar.architectures.hybrid import Mixer
from simpar.architectures.mamba import Mamba, mamba
from simpar.architectures.mixture import mixture, outputs
from simpar.architectures.transformer import LayerVariant, Shape, Style, add, attention, embedding, head, mlp, norm
from simpar.errors import UserError

MAMBA, ATTENTION = "mamba", "attention"
KINDS = {"mamba": MAMBA, "linear_attention": MAMBA, "attention": ATTENTION, "full_attention": ATTENTION}
BARE_CONVOLUTION = "convolutions without a bias"
NORM_FIRST = "a norm before the gate of a mixer"
MULTIPLIERS = "multipliers of branches"
BRANCH_MULTIPLIERS = (
    "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
    "mlp_multipliers", "ssm_multipliers",
)  # fmt: skip


def state_of(config: Config, hidden: int) -> Mamba:
    """Sizes of mixers. Raises UserError."""
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


def mixer_of(config: Config, *, normed: bool = True, **biases: bool) -> Mixer:
    """The mixer of a config, ``normed`` behind its gate; ``biases`` may be that of its output. Raises UserError."""

    def operators(source: str) -> list[Operator]:
        bias = config.flag("mamba_proj_bias", default=False)
        conv_bias = config.flag("mamba_conv_bias", default=True)
        return mamba(source, bias=bias, conv_bias=conv_bias, normed=normed, **biases)

    return operators


def with_mixers(
    config: Config, name: str, shape: Shape, style: Style, kinds: tuple[str, ...], mixer: Mixer
) -> ModelGraph:
    """A decoder whose layers have the branches of their kind ("attention", "mamba" or both) and an MLP or experts."""
    state = state_of(config, shape.hidden)
    blocks = {kind: _layer(kind, shape, style, mixer) for kind in dict.fromkeys(kinds)}
    return ModelGraph(
        name=name, dims=shape.dims | state.dims, blocks=blocks, layers=kinds,
        embedding=embedding(shape, style, False), head=head(style),
        tied_embeddings=style.tied, facts={"norm": style.norm},
    )  # fmt: skip


def _layer(kind: str, shape: Shape, style: Style, mixer: Mixer) -> Block:
    ops = [norm("attention_norm", INPUT, style)]
    ends = []
    if ATTENTION in kind:
        ops += attention("attention_norm", style, LayerVariant(), False)
        ends.append("o_proj")
    if MAMBA in kind:
        ops += mixer("attention_norm")
        ends.append("out_proj")
    ops += [add("attention_residual", INPUT, *ends), norm("mlp_norm", "attention_residual", style)]
    branch: tuple[str, ...] = ("mlp_down",)
    if shape.mixture:
        ops += mixture("mlp_norm", shape.mixture)
        branch = outputs(shape.mixture)
    else:
        ops += mlp("mlp_norm", style)
    return Block(kind, (*ops, add("mlp_residual", "attention_residual", *branch)))


def kinds_of(config: Config, count: int) -> tuple[str, ...]:
    """Mamba or attention by layer, as ``layer_types`` or ``layers_block_type`` has them. Raises UserError."""
    listed = config.data.get("layer_types") or config.data.get("layers_block_type") or ["mamba"] * count
    kinds = tuple(KINDS.get(str(kind), "") for kind in listed) if isinstance(listed, list) else ()
    if len(kinds) != count or "" in kinds:
        raise UserError(
            f"{config.source}: layer_types = {listed!r}: allowed: one of {', '.join(KINDS)} for each of {count} layers"
        )
    return kinds


def list_missing(config: Config, *, normed: bool = False) -> list[str]:
    """Parts of a config's mixers that runs cannot compute; ``normed``: a norm is there, perhaps before the gate."""
    parts = [] if config.flag("mamba_conv_bias", default=True) else [BARE_CONVOLUTION]
    ones = (None, 1, [1, 1], [1, 1, 1, 1, 1])
    if any(config.data.get(name) not in ones for name in BRANCH_MULTIPLIERS):
        parts.append(MULTIPLIERS)
    if config.flag("mamba_norm_before_gate", default=True) and normed:
        parts.append(NORM_FIRST)
    return parts


def step_limits(config: Config) -> tuple[float, float | None]:
    """Between what a config's time steps are clamped (None: no upper limit). Raises UserError.

    transformers writes infinity as a mapping, ``{"__float__": "Infinity"}``.
    """
    given = config.data.get("time_step_limit")
    if given is None:
        return 0.0, None
    try:
        least, most = (float(each["__float__"] if isinstance(each, Mapping) else each) for each in given)
    except (KeyError, TypeError, ValueError):
        least = most = math.nan
    if not 0 <= least < most:
        raise UserError(f"{config.source}: time_step_limit = {given!r}: allowed: two numbers from 0, the smaller first")
    return least, most if math.isfinite(most) else None
