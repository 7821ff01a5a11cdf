"""Decoder transformers of every usual shape as a ModelGraph."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from simpar.architectures.graph import INPUT, AttentionPattern, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.latent import LatentShape, latent_attention
from simpar.architectures.linear_attention import LinearShape, linear_attention
from simpar.architectures.mixture import Mixture, clamp, mixture, outputs
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, project
from simpar.architectures.short_convolution import ShortConvolution, short_convolution
from simpar.dataclass import dataclass

QKV: Size = (*term("heads", "head_dim"), *term("kv_heads", "head_dim", times=2))


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; ``head_dim`` need not be hidden / heads.

    ``mixture`` are the sizes of layers with experts, ``latent`` those of latent attention, ``linear`` those of linear
    attention, ``convolution`` those of convolutions in the place of attention.
    """

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int = 0
    mixture: Mixture | None = None
    latent: LatentShape | None = None
    linear: LinearShape | None = None
    convolution: ShortConvolution | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        sizes = {
            "hidden": self.hidden, "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "ffn": self.ffn, "vocab": self.vocab, "positions": self.positions,
        }  # fmt: skip
        for part in (self.mixture, self.latent, self.linear):
            sizes |= part.dims if part else {}
        return sizes


@dataclass(frozen=True)
class LayerVariant:
    """The differences between layers of a decoder.

    These are the attention ``window`` (None: all keys; ``chunked``: it does not slide), whether positions are
    ``rotary``, whether attention is ``linear`` or ``reuses_keys`` that an earlier layer's indexer has chosen, whether
    the layer ``convolves`` instead, whether ``experts`` replace the MLP, and whether it predicts a further token
    (``prediction``).
    """

    window: int | None = None
    chunked: bool = False
    rotary: bool = True
    linear: bool = False
    reuses_keys: bool = False
    convolves: bool = False
    experts: bool = False
    prediction: bool = False

    @property
    def name(self) -> str:
        """The name of the layer's block."""
        words = ["prediction" if self.prediction else "layer"]
        marked = {
            "linear": self.linear, "reusing": self.reuses_keys, "convolution": self.convolves, "moe": self.experts,
            "nope": not self.rotary,
        }  # fmt: skip
        words += [word for word, is_so in marked.items() if is_so]
        words += [f"{'chunk' if self.chunked else 'window'}_{self.window}"] * (self.window is not None)
        return "_".join(words)


def layers_with_windows(windows: tuple[int | None, ...]) -> tuple[LayerVariant, ...]:
    """Layers that differ in their windows only."""
    return tuple(LayerVariant(window) for window in windows)


@dataclass(frozen=True)
class Style:
    """The differences between decoder families beside their sizes.

    ``norms`` per layer is 2 (pre-norm), 4 (before and after both branches) or 1 (parallel branches on one norm);
    ``qk_norm`` is "", "head" (one weight of head_dim), "full" (one weight per feature) or "bare" (no weight, in layers
    that rotate). ``extra`` holds rarer flags:
    "embedding_norm", "post_norm_only", "bidirectional" (nothing is masked), "sinks" (a logit per head without a key),
    "attention_gate" (a sigmoid on every feature, from the packed product), "qk_norm_last" (after the rotation),
    "qk_norm_bias", "clamped" (inputs of the MLP's activation are limited), "embedding_kept" (no dropout on embeddings),
    "activation_parameters" (their number per layer).
    """

    norm: str = "rms"
    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    rotary: bool = True
    qk_norm: str = ""
    parallel: bool = False
    norms: int = 2
    extra: Mapping[str, Any] = field(default_factory=dict)


def build(
    name: str, shape: Shape, style: Style, *, layers: tuple[LayerVariant, ...] = (), dropout: bool = False
) -> ModelGraph:
    """A decoder of the given shape and style; ``layers`` describes each layer (default: all alike).

    Layers of one kind share one block.
    """
    kinds = layers or (LayerVariant(experts=shape.mixture is not None),) * shape.layers
    blocks = {kind.name: layer(kind.name, style, kind, parts=shape, dropout=dropout) for kind in dict.fromkeys(kinds)}
    return ModelGraph(
        name=name,
        dims=shape.dims,
        blocks=blocks,
        layers=tuple(kind.name for kind in kinds),
        embedding=embedding(shape, style, dropout and not style.extra.get("embedding_kept")),
        head=head(style),
        tied_embeddings=style.tied,
        facts={"norm": style.norm},
        auxiliary=tuple(kind.name for kind in dict.fromkeys(kinds) if kind.prediction),
    )


def norm(name: str, source: str, style: Style) -> Operator:
    """A normalisation of the residual stream with the parameters of the style."""
    weights: tuple[Weight, ...] = ()
    if style.norm != "none":  # rms and weight: one vector; layer: a bias besides; none: no parameters
        weights = (Weight(f"{name}.weight", HIDDEN, "vector"),)
    if style.norm == "layer":
        weights = (*weights, Weight(f"{name}.bias", HIDDEN, "vector"))
    return Operator(
        name, "norm", TOKENS, HIDDEN, "sequence", weights=weights, inputs=(source,), saves=(source, "stats")
    )


def attention(source: str, style: Style, kind: LayerVariant, dropout: bool) -> list[Operator]:
    """The attention branch from its packed projection to the output projection."""
    gated = bool(style.extra.get("attention_gate"))
    ops = [project("qkv", source, HIDDEN, (*QKV, *QUERY) if gated else QKV, bias=style.qkv_bias)]
    turns = style.rotary and kind.rotary
    last = bool(style.extra.get("qk_norm_last"))
    if style.qk_norm and not last:
        ops.append(_qk_norm(style, ops[-1].name))
    if turns:
        ops.append(Operator("rope", "rope", TOKENS, QKV, "tensor", inputs=(ops[-1].name,)))
    if style.qk_norm and last and (turns or style.qk_norm != "bare"):
        ops.append(_qk_norm(style, ops[-1].name))
    causal = not style.extra.get("bidirectional", False)
    core = AttentionPattern(causal=causal, window=kind.window, chunked=kind.chunked, dropout=dropout)
    sinks = (Weight("sinks", term("heads"), "vector"),) if style.extra.get("sinks") else ()
    ops.append(
        Operator(
            "attention",
            "attention",
            TOKENS,
            QUERY,
            "tensor",
            weights=sinks,
            inputs=(ops[-1].name,),
            saves=(ops[-1].name, "attention", "lse"),
            attention=core,
        )
    )
    if gated:
        both = ("attention", "qkv")
        ops.append(Operator("attention_gate", "gated_activation", TOKENS, QUERY, "tensor", inputs=both, saves=both))
    ops.append(project("o_proj", ops[-1].name, QUERY, HIDDEN, bias=style.output_bias))
    return ops


def clipped(graph: ModelGraph) -> ModelGraph:
    """The model with queries, keys and values limited behind their product: one more pass, which keeps what it reads.

    [OLMo, arXiv 2402.00838, section 2.3; MPT and DBRX, llm-foundry]
    """
    return replace(graph, blocks={name: _clipped(block) for name, block in graph.blocks.items()})


def _clipped(block: Block) -> Block:
    ops: list[Operator] = []
    for op in block.operators:
        if op.name != "qkv":
            swapped = [tuple(CLIP if name == "qkv" else name for name in names) for names in (op.inputs, op.saves)]
            ops.append(replace(op, inputs=swapped[0], saves=swapped[1]))
            continue
        limit = Operator(CLIP, "activation", op.rows, op.columns, "tensor", inputs=("qkv",), saves=("qkv",))
        ops += [op, limit]
    return replace(block, operators=tuple(ops))


CLIP = "qkv_clip"


def _qk_norm(style: Style, source: str) -> Operator:
    """The norm of queries and keys: one weight (and bias) of a head's width, one of all heads' features, or none."""
    sizes = {"head": term("head_dim", times=2), "full": (*QUERY, *term("kv_heads", "head_dim"))}
    weights = [Weight("qk_norm.weight", sizes[style.qk_norm], "vector")] if style.qk_norm in sizes else []
    if style.extra.get("qk_norm_bias"):
        weights.append(Weight("qk_norm.bias", sizes[style.qk_norm], "vector"))
    return Operator(
        "qk_norm", "norm", TOKENS, QKV, "tensor", weights=tuple(weights), inputs=(source,), saves=(source, "stats")
    )


def mlp(source: str, style: Style) -> list[Operator]:
    """The MLP branch, gated or plain."""
    width = term("ffn", times=2 if style.gated else 1)
    up = project("mlp_up", source, HIDDEN, width, bias=style.mlp_bias)
    kind = "gated_activation" if style.gated else "activation"
    learnt = int(style.extra.get("activation_parameters", 0))
    weights = (Weight("activation.weight", term(times=learnt), "vector"),) if learnt else ()
    clamped = clamp("mlp_clamp", "mlp_up", width) if style.extra.get("clamped") else []
    read = clamped[-1].name if clamped else "mlp_up"
    act = Operator("activation", kind, TOKENS, term("ffn"), "tensor", weights=weights, inputs=(read,), saves=(read,))
    down = project("mlp_down", "activation", term("ffn"), HIDDEN, bias=style.mlp_bias)
    return [up, *clamped, act, down]


def add(name: str, *sources: str) -> Operator:
    """A sum of residual streams."""
    return Operator(name, "add", TOKENS, HIDDEN, "sequence", inputs=sources)


def _dropout(name: str, source: str) -> Operator:
    return Operator(name, "dropout", TOKENS, HIDDEN, "sequence", inputs=(source,), saves=("mask",))


def layer(name: str, style: Style, kind: LayerVariant, *, parts: Shape | None = None, dropout: bool) -> Block:
    """One layer; styles decide norms, branches and biases, ``parts`` has the sizes of experts and latents."""
    if style.parallel:
        return Block(name, tuple(_parallel_layer(style, kind, dropout)))
    if kind.prediction:
        return Block(name, tuple(prediction(style, kind, parts)))
    return Block(name, tuple(_serial_layer(INPUT, style, kind, parts, dropout=dropout)))


def _serial_layer(
    source: str, style: Style, kind: LayerVariant, parts: Shape | None, *, dropout: bool
) -> list[Operator]:
    """Attention, then an MLP or experts, each with its residual."""
    experts = parts.mixture if parts else None
    post = style.norms == 4 or style.extra.get("post_norm_only", False)
    pre = not style.extra.get("post_norm_only", False)
    ops = [norm("attention_norm", source, style)] if pre else []
    start = ops[-1].name if pre else source
    ops += _mix(start, style, kind, parts, dropout=dropout)
    ops += _branch_end("attention", ops[-1].name, style, post=post, dropout=dropout)
    ops.append(add("attention_residual", source, ops[-1].name))
    if pre:
        ops.append(norm("mlp_norm", "attention_residual", style))
    start = "mlp_norm" if pre else "attention_residual"
    ends: tuple[str, ...] = ("mlp_down",)
    if kind.experts and experts:
        ops += mixture(start, experts)
        ends = outputs(experts)
    else:
        ops += mlp(start, style)
    closing = _branch_end("mlp", ends[0], style, post=post, dropout=dropout)
    ends = (closing[-1].name, *ends[1:]) if closing else ends
    return [*ops, *closing, add("mlp_residual", "attention_residual", *ends)]


def _mix(source: str, style: Style, kind: LayerVariant, parts: Shape | None, *, dropout: bool) -> list[Operator]:
    """The attention of a layer: linear, latent or usual; or the convolution in its place."""
    if kind.convolves and parts and parts.convolution:
        return short_convolution(source, parts.convolution)
    if kind.linear and parts and parts.linear:
        return linear_attention(source, parts.linear)
    if parts and parts.latent:
        return latent_attention(source, parts.latent, rotary=kind.rotary, reuses_keys=kind.reuses_keys)
    return attention(source, style, kind, dropout)


def prediction(style: Style, kind: LayerVariant, parts: Shape | None) -> list[Operator]:
    """One more layer that predicts the token after the next, from the hidden state and the next token's embedding.

    It shares embedding and output projection with the model, so only their work counts [DeepSeek-AI 2024, arXiv
    2412.19437, section 2.2].
    """
    joined = term("hidden", times=2)
    ops = [
        norm("state_norm", INPUT, style),
        norm("embedding_norm", INPUT, style),
        project("join", "embedding_norm", joined, HIDDEN),
    ]
    ops += _serial_layer("join", style, kind, parts, dropout=False)
    further = project("lm_head", "final_norm", HIDDEN, term("vocab"))
    loss = Operator("loss", "loss", TOKENS, term("vocab"), "tensor", inputs=("lm_head",), saves=("lm_head",))
    return [*ops, norm("final_norm", "mlp_residual", style), replace(further, weights=()), loss, _pass_on()]


def _pass_on() -> Operator:
    """The operator that makes the model's hidden state, unchanged, the block's output."""
    return Operator("pass", "add", TOKENS, HIDDEN, "sequence", inputs=(INPUT,))


def _branch_end(branch: str, source: str, style: Style, *, post: bool, dropout: bool) -> list[Operator]:
    ops = [norm(f"{branch}_post_norm", source, style)] if post else []
    if dropout:
        ops.append(_dropout(f"{branch}_dropout", ops[-1].name if ops else source))
    return ops


def _parallel_layer(style: Style, kind: LayerVariant, dropout: bool) -> list[Operator]:
    """Attention and MLP side by side: their partial sums are added first, so one reduction serves both."""
    ops = [norm("attention_norm", INPUT, style)]
    mlp_source = "attention_norm"
    if style.norms == 2:
        ops.append(norm("mlp_norm", INPUT, style))
        mlp_source = "mlp_norm"
    ops += attention("attention_norm", style, kind, dropout)
    ops += mlp(mlp_source, style)
    ops.append(add("residual", INPUT, "o_proj", "mlp_down"))
    return ops


def embedding(shape: Shape, style: Style, dropout: bool) -> Block:
    """The embedding block: token table, positions, norm and dropout, as the style has them."""
    table = Weight("token_embedding.weight", term("vocab", "hidden"), "embedding")
    ops = [Operator("token_embedding", "embedding", TOKENS, HIDDEN, "tensor", weights=(table,), inputs=(INPUT,))]
    if shape.positions:
        positions = Weight("position_embedding.weight", term("positions", "hidden"), "embedding")
        ops.append(
            Operator(
                "position_embedding",
                "add",
                TOKENS,
                HIDDEN,
                "sequence",
                weights=(positions,),
                inputs=("token_embedding",),
            )
        )
    if style.extra.get("embedding_norm"):
        ops.append(norm("embedding_norm", ops[-1].name, style))
    if dropout:
        ops.append(_dropout("embedding_dropout", ops[-1].name))
    return Block("embedding", tuple(ops))


def head(style: Style) -> Block:
    """Final norm, output projection and loss."""
    final = norm("final_norm", INPUT, style)
    lm_head = project("lm_head", "final_norm", HIDDEN, term("vocab"), bias=style.head_bias)
    loss = Operator("loss", "loss", TOKENS, term("vocab"), "tensor", inputs=("lm_head",), saves=("lm_head",))
    return Block("head", (final, lm_head, loss))
