"""Diffusion transformers conditioned on text: joint attention of text and image tokens, or cross-attention to text.

*Joint* [MMDiT, Esser et al. 2024, arXiv 2403.03206; Flux, diffusers' transformer_flux.py]. A sequence is the tokens of
its text, "prompt.seq" of them, and the patches of its image. In a double layer both have weights of their own (qkv,
output, MLP, modulation) and attend together; a single layer has one set of weights for all tokens, and its attention
and MLP read one norm and end in one product. In a dual layer [MMDiT-X, Stable Diffusion 3.5 Medium; diffusers'
attention.py] the image's patches also attend to each other alone, beside the joint attention. *Crossed* [PixArt, Chen
et al. 2023, arXiv 2310.00426]: a sequence is patches, which attend to the projected text; all layers share one product
that makes the modulation, and add a table.

Time, pooled text and sizes are embedded once an image and travel beside the tokens, as in
:mod:`simpar.architectures.images`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from simpar.architectures.graph import INPUT, AttentionPattern, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.images import CONDITION, IMAGES, PLAIN, gated, loss_of_images, modulate, product_of_image
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, product, project
from simpar.architectures.towers import MEMORY, MEMORY_STREAM, cross_attention
from simpar.architectures.transformer import QKV, LayerVariant, Shape, Style, add, attention, mlp, norm
from simpar.architectures.vision import Patches, embed_patches
from simpar.architectures.vision_reading import VIT
from simpar.dataclass import dataclass

PROMPT: Size = term("batch", "prompt.seq")
PATCHES: Size = (*TOKENS, *term("batch", "prompt.seq", times=-1))
"""Rows of text, and of the image: the other tokens of a sequence."""
STREAMS = (("", PATCHES), ("text_", PROMPT))
PROMPT_STREAM: Size = product(PROMPT, HIDDEN)
MADE_OF_TEXT: Size = (*QUERY, *term("ffn"))


@dataclass(frozen=True)
class Conditioned:
    """What a model is conditioned on: ``prompt`` tokens of text of so many ``features``, and what is embedded once.

    ``once`` are (name, features, rows an image, columns as a share of the hidden size) of embeddings by an MLP each.
    Text may be ``normed`` before its product.
    """

    prompt: int
    features: int
    once: tuple[tuple[str, int, int, int], ...]
    normed: bool = False


@dataclass(frozen=True)
class JointStyle:
    """Double layers with weights for text and image, then ``single`` ones with one set; norms of queries and keys.

    Without single layers the last double one ends the text's stream before its output, unless it ``keeps_text``.
    ``dual`` are the double layers, by number, whose image has a second attention of its own.
    """

    single: int = 0
    qk_norm: bool = False
    rotary: bool = False
    dual: Collection[int] = ()
    keeps_text: bool = False


def joint_transformer(
    name: str, patches: Patches, shape: Shape, text: Conditioned, style: JointStyle, predicted: int
) -> ModelGraph:
    """Double layers of ``shape``, single ones behind them, and a product with ``predicted`` numbers for a patch."""
    passes = (*PROMPT_STREAM, *CONDITION)
    blocks = [Block("layer", tuple(_double(style)), passes=passes)]
    doubles = ["dual_layer" if at in style.dual else "layer" for at in range(shape.layers)]
    if style.dual:
        blocks.append(Block("dual_layer", tuple(_double(style, dual=True)), passes=passes))
    if style.single:
        joined = Operator("joined_streams", "copy", TOKENS, HIDDEN, "sequence", inputs=(INPUT,))
        blocks += [
            Block("join", (joined,), passes=CONDITION), Block("single_layer", tuple(_single(style)), passes=CONDITION),
        ]  # fmt: skip
        layers = (*doubles, "join", *("single_layer",) * style.single)
    else:
        ends = _double(style, last=not style.keeps_text, dual=doubles[-1] == "dual_layer")
        blocks.append(Block("last_layer", tuple(ends), passes=CONDITION))
        layers = (*doubles[:-1], "last_layer")
    start = [*_condition(text.once), *_embedded(text)]
    start += [replace(op, rows=PATCHES) for op in _patches(patches)]
    return ModelGraph(
        name=name,
        dims={**shape.dims, "prompt.seq": text.prompt},
        blocks={block.name: block for block in blocks if block.name in layers},
        layers=layers,
        embedding=Block("embedding", tuple(start), passes=passes),
        head=Block("head", tuple(_end(term(times=predicted), PATCHES))),
        tied_embeddings=False,
        facts={"norm": "layer"},
    )


def crossed_transformer(
    name: str, patches: Patches, shape: Shape, text: Conditioned, predicted: int, style: Style = PLAIN
) -> ModelGraph:
    """Layers whose patches attend to each other, then to the text, with a norm before that where queries have one."""
    shared = product(IMAGES, term("hidden", times=7))  # the modulation of all layers, and time for the end
    passes = (*MEMORY_STREAM, *shared)
    start = [
        *_condition(text.once), product_of_image("shared_modulation", "condition", HIDDEN, term("hidden", times=6)),
        _prompt("prompt_up", "", term(times=text.features), MEMORY), _activation("prompt", "prompt_up", MEMORY, HIDDEN),
        _prompt("memory", "prompt_activation", HIDDEN, MEMORY), *_patches(patches),
    ]  # fmt: skip
    table = _table(2)
    end = [table, *_end(term(times=predicted), TOKENS)[1:]]
    return ModelGraph(
        name=name,
        dims={**shape.dims, "memory": text.prompt},
        blocks={"layer": Block("layer", tuple(_crossed(style)), passes=passes)},
        layers=("layer",) * shape.layers,
        embedding=Block("embedding", tuple(start), passes=passes),
        head=Block("head", tuple(end)),
        tied_embeddings=False,
        facts={"norm": "layer"},
    )


def _condition(once: Sequence[tuple[str, int, int, int]]) -> Iterator[Operator]:
    """An MLP for everything that is embedded once an image, and their sum."""
    ends = []
    for name, features, times, share in once:
        rows, width = term("batch", times=times), HIDDEN if share == 1 else term(times=share)
        up = replace(product_of_image(f"{name}_up", "", term(times=features), width), rows=rows)
        down = replace(product_of_image(f"{name}_down", f"{name}_activation", width, width), rows=rows)
        yield from (up, _activation(name, up.name, rows, width), down)
        ends.append(down.name)
    yield Operator("condition", "add", IMAGES, HIDDEN, "sequence", inputs=tuple(ends))


def _activation(name: str, source: str, rows: Size, columns: Size) -> Operator:
    return Operator(
        f"{name}_activation", "activation", rows, columns, "sequence", inputs=(source,), saves=(source,)
    )  # fmt: skip


def _prompt(name: str, source: str, contraction: Size, rows: Size) -> Operator:
    """A product with every token of the text; without a source, with what its encoders made of it."""
    op = replace(project(name, source, contraction, HIDDEN, bias=True, region="sequence"), rows=rows)
    return op if source else replace(op, inputs=(), saves=())


def _embedded(text: Conditioned) -> Iterator[Operator]:
    """The text as wide as the model, behind a norm or not."""
    size, name = term(times=text.features), "prompt_norm"
    made = _prompt("prompt_embedding", "", size, PROMPT)
    if not text.normed:
        yield made
        return
    yield Operator(name, "norm", PROMPT, size, "sequence", weights=(Weight(f"{name}.weight", size, "vector"),))
    yield replace(made, inputs=(name,), saves=(name,))


def _patches(patches: Patches) -> Iterator[Operator]:
    """Patches with positions that are not trained."""
    for op in embed_patches(patches, VIT):
        fixed = op.name == "position_embedding"
        yield replace(op, weights=tuple(replace(each, trainable=not fixed) for each in op.weights))


def _double(style: JointStyle, *, last: bool = False, dual: bool = False) -> Iterator[Operator]:
    """Attention of all tokens between weights of the text's and of the image's own; the ``last`` drops the text.

    In a ``dual`` one the image has a second attention, and a shift, scale and gate for it.
    """
    for prefix, rows in STREAMS:
        vectors = 2 if last and prefix else 9 if dual and not prefix else 6
        yield product_of_image(f"{prefix}modulation", "", HIDDEN, term("hidden", times=vectors))
        yield from modulate(f"{prefix}attention", INPUT, rows, f"{prefix}modulation")
        yield replace(project(f"{prefix}qkv", f"{prefix}attention_modulate", HIDDEN, QKV, bias=True), rows=rows)
    yield Operator("joined", "copy", TOKENS, QKV, "tensor", inputs=("qkv", "text_qkv"))
    yield from _attend("joined", style, norms=4)
    for prefix, rows in reversed(STREAMS[:1] if last else STREAMS):
        yield from _branches(prefix, rows, style, dual=dual and not prefix)


def _attend(source: str, style: JointStyle, *, norms: int, prefix: str = "", rows: Size = TOKENS) -> Iterator[Operator]:
    """Norms of queries and keys with so many weights of a head's width, a rotation, and attention both ways."""
    if style.qk_norm:
        weights = (Weight(f"{prefix}qk_norm.weight", term("head_dim", times=norms), "vector"),)
        name, saves = f"{prefix}qk_norm", (source, "stats")
        yield Operator(name, "norm", rows, QKV, "tensor", weights=weights, inputs=(source,), saves=saves)
        source = name
    if style.rotary:
        yield Operator(f"{prefix}rope", "rope", rows, QKV, "tensor", inputs=(source,))
        source = f"{prefix}rope"
    name = f"{prefix}attention"
    yield Operator(
        name, "attention", rows, QUERY, "tensor", inputs=(source,), saves=(source, name, "lse"),
        attention=AttentionPattern(causal=False),
    )  # fmt: skip


def _branches(prefix: str, rows: Size, style: JointStyle, *, dual: bool) -> Iterator[Operator]:
    """What one stream has behind attention: its output, and an MLP, each gated and summed."""
    by = f"{prefix}modulation"
    yield replace(project(f"{prefix}o_proj", "attention", QUERY, HIDDEN, bias=True), rows=rows)
    yield replace(gated(f"{prefix}attention", INPUT, f"{prefix}o_proj"), rows=rows)
    stream = f"{prefix}attention_residual"
    if dual:
        yield from _second_attention(rows, style)
        stream = "second_residual"
    yield from modulate(f"{prefix}mlp", stream, rows, by)
    yield from _mlp(prefix, rows)
    yield replace(gated(f"{prefix}mlp", stream, f"{prefix}mlp_down"), rows=rows)


def _second_attention(rows: Size, style: JointStyle) -> Iterator[Operator]:
    """Attention of the image to itself: another scale and shift of the layer's input, gated and summed.

    Kernels are given as many keys as joint attention has: those of the text are counted too.
    """
    yield from modulate("second", INPUT, rows)
    yield replace(project("second_qkv", "second_modulate", HIDDEN, QKV, bias=True), rows=rows)
    yield from _attend("second_qkv", style, norms=2, prefix="second_", rows=rows)
    yield replace(project("second_o_proj", "second_attention", QUERY, HIDDEN, bias=True), rows=rows)
    yield replace(gated("second", "attention_residual", "second_o_proj"), rows=rows)


def _mlp(prefix: str, rows: Size) -> Iterator[Operator]:
    names = {op.name: f"{prefix}{op.name}" for op in mlp("mlp_modulate", PLAIN)}
    names["mlp_modulate"] = f"{prefix}mlp_modulate"
    for op in mlp("mlp_modulate", PLAIN):
        reads, keeps = (tuple(names[name] for name in each) for each in (op.inputs, op.saves))
        weights = tuple(replace(weight, name=f"{prefix}{weight.name}") for weight in op.weights)
        yield replace(op, name=names[op.name], rows=rows, inputs=reads, saves=keeps, weights=weights)


def _single(style: JointStyle) -> Iterator[Operator]:
    """Attention and an MLP of one norm, side by side, and one product of both."""
    yield product_of_image("modulation", "", HIDDEN, term("hidden", times=3))
    yield from modulate("attention", INPUT, TOKENS, "modulation")
    yield project("qkv", "attention_modulate", HIDDEN, QKV, bias=True)
    yield project("mlp_up", "attention_modulate", HIDDEN, term("ffn"), bias=True)
    yield from _attend("qkv", style, norms=2)
    yield Operator("activation", "activation", TOKENS, term("ffn"), "tensor", inputs=("mlp_up",), saves=("mlp_up",))
    yield Operator("side_by_side", "copy", TOKENS, MADE_OF_TEXT, "tensor", inputs=("attention", "activation"))
    yield project("o_proj", "side_by_side", MADE_OF_TEXT, HIDDEN, bias=True)
    yield gated("attention", INPUT, "o_proj")


def _crossed(style: Style) -> Iterator[Operator]:
    """DiT's layer with the table that it adds to the shared modulation, and cross-attention."""
    yield _table(6)
    yield from modulate("attention", INPUT)
    yield from attention("attention_modulate", style, LayerVariant(), dropout=False)
    yield gated("attention", INPUT, "o_proj")
    source = "attention_residual"
    if style.qk_norm:
        yield norm("cross_norm", source, VIT)
        source = "cross_norm"
    yield from cross_attention(source, style)
    yield add("cross_residual", "attention_residual", "cross_o_proj")
    yield from modulate("mlp", "cross_residual")
    yield from mlp("mlp_modulate", PLAIN)
    yield gated("mlp", "cross_residual", "mlp_down")


def _table(vectors: int) -> Operator:
    """So many vectors of a layer's own, added to what travels beside the tokens."""
    size = term("hidden", times=vectors)
    return Operator("modulation", "add", IMAGES, size, "sequence", weights=(Weight("scale_shift", size, "vector"),))


def _end(columns: Size, rows: Size) -> list[Operator]:
    """Shift and scale of the last norm, a product with what is predicted for a patch, and the loss."""
    predict = project("lm_head", "final_modulate", HIDDEN, columns, bias=True, region="sequence")
    return [
        product_of_image("modulation", "", HIDDEN, term("hidden", times=2)),
        *modulate("final", INPUT, rows, "modulation"),
        replace(predict, rows=rows),
        loss_of_images(rows, columns),
    ]
