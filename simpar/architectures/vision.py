"""Vision towers in front of language models: patches, layers of an encoder, a projector into the language's stream.

Blocks form one chain, which a pipeline can cut anywhere. Tokens are looked up first, as in every other model, and
travel past the tower, whose first block loads the pixels of its own. Blocks of the tower have the scopes "vision" and
"connector": their sizes stand in the model's dims as "vision.hidden". Visual tokens take the places of text tokens, so
sequences of the language model keep the training's length [Liu et al. 2023, arXiv 2304.08485].
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simpar.architectures.graph import INPUT, WHOLE, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.transformer import LayerVariant, Shape, Style, add, layer, layers_with_windows, norm
from simpar.dataclass import dataclass

TEXT: Size = term("batch", "text.seq", "text_hidden")
"""The looked-up tokens that travel past the tower."""
PATCHES: Size = term("batch", "vision.seq")
WIDTH: Size = term("vision.hidden")
VISUAL: Size = term("batch", "visual.seq")
VISUAL_STREAM: Size = term("batch", "visual.seq", "text_hidden")
INNER: Size = term("ffn")
RANKS = 8
"""Tensor-parallel ranks by which the sizes of a tower divide, or no rank has a part of it."""


@dataclass(frozen=True)
class Patches:
    """Images of a sequence: ``images`` of ``count`` patches of ``elements`` numbers (channels x frames x side^2) each.

    ``positions`` are rows of a learned table (0: none); its parameters, and those of ``classes`` further tokens of an
    image, count, while rows of these tokens do not. ``norm`` is that between embedding and layers ("": none);
    ``merged`` patches become one visual token.
    """

    elements: int
    count: int
    images: int = 1
    bias: bool = True
    positions: int = 0
    classes: int = 0
    norm: str = ""
    merged: int = 1

    @property
    def tokens(self) -> int:
        """Visual tokens of a sequence."""
        return self.images * self.count // self.merged


@dataclass(frozen=True)
class ProjectorStep:
    """A step of a projector: a "norm" over ``width`` features, a "linear" product into ``width``, or an "mlp".

    An MLP of the kinds "mlp" and "gated" has ``inner`` features between its products and an activation there; an
    "activation" has ``width`` features. A "conv" is a product that contracts ``reads`` numbers, at ``rows`` places for
    each visual token.
    """

    kind: str
    width: int
    inner: int = 0
    bias: bool = True
    norm: str = "layer"
    reads: int = 0
    rows: int = 1


@dataclass(frozen=True)
class Vision:
    """A vision tower: patches, layers of a ``shape`` and ``style`` with ``windows`` (empty: none), and a projector.

    ``projector`` reads ``patches.merged`` patches side by side, or their mean (``pooled``). ``taps`` are layers behind
    which a ``tap_projector`` makes features that are added behind the first layers of the language model, one after the
    other [DeepStack, Meng et al. 2024, arXiv 2406.04334]. ``layer_scale``: a learned factor per feature and branch;
    ``marks``: learned vectors that stand between visual tokens (ends of rows), the tokens of which do not count.
    ``front`` are operators in the place of those that embed patches.
    """

    patches: Patches
    shape: Shape
    style: Style
    projector: tuple[ProjectorStep, ...]
    windows: tuple[int | None, ...] = ()
    end_norm: str = ""
    pooled: bool = False
    layer_scale: bool = False
    marks: int = 0
    taps: tuple[int, ...] = ()
    tap_projector: tuple[ProjectorStep, ...] = ()
    front: tuple[Operator, ...] = ()

    @property
    def features(self) -> int:
        """Width of what the projector reads."""
        return self.shape.hidden if self.pooled else self.shape.hidden * self.patches.merged


def before_language_model(name: str, vision: Vision, language: ModelGraph) -> ModelGraph:
    """The language model with the tower in front of it."""
    language = _receive(language, len(vision.taps))
    tower = tower_of(vision)
    layers = (*(block.name for block in tower), *language.layers)
    blocks = {**{block.name: block for block in tower}, **language.blocks}
    dims = {**language.dims, **dims_of(vision, language.dims["hidden"])}
    facts = language.facts if is_divided(vision) else undivided(language, ("vision", "connector"))
    return replace(language, name=name, dims=dims, blocks=blocks, layers=layers, facts=facts)


def is_divided(vision: Vision) -> bool:
    """Whether tensor parallelism divides a tower: 8 ranks can divide its heads, its MLP and its rows.

    Others are whole on every rank, as frameworks run them that take a tower as it is. Features that are tapped join
    rows of the language model one by one, so such towers are divided.
    """
    sizes = vision.shape.heads, vision.shape.ffn, vision.patches.images * vision.patches.count
    return bool(vision.taps) or not any(size % RANKS for size in sizes)


def undivided(language: ModelGraph, scopes: tuple[str, ...]) -> dict[str, Any]:
    """The facts of a language model with a tower of these scopes that tensor parallelism does not divide."""
    return {**language.facts, WHOLE: (*language.whole_scopes, *scopes)}


def dims_of(vision: Vision, hidden: int) -> dict[str, int]:
    """Named dims of the tower and of what travels past it or out of it."""
    shape, patches = vision.shape, vision.patches
    own = {
        "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "ffn": shape.ffn, "seq": patches.images * patches.count, "context": patches.count,
    }  # fmt: skip
    inner = max(step.inner for step in vision.projector) or hidden
    return {
        "visual.seq": patches.tokens, "text_hidden": hidden, "connector.ffn": inner,
        **{f"vision.{key}": size for key, size in own.items()},
    }  # fmt: skip


def tower_of(vision: Vision) -> list[Block]:
    """The blocks of the tower in order, up to the one from which visual tokens join the text's."""
    style = replace(vision.style, extra={**vision.style.extra, "bidirectional": True})
    variants = layers_with_windows(vision.windows) or (LayerVariant(),) * vision.shape.layers
    front = vision.front or tuple(embed_patches(vision.patches, style))
    result = [Block("patches", front, "vision", TEXT)]
    taps = 0
    for at, variant in enumerate(variants):
        block = layer(f"vision_{variant.name}", style, variant, dropout=False)
        operators = _scaled(block.operators) if vision.layer_scale else block.operators
        result.append(_passing(replace(block, operators=operators, scope="vision"), taps))
        if at in vision.taps:
            taps += 1
            stream = Operator("stream", "add", PATCHES, WIDTH, "sequence", inputs=("features",))
            made = (_features(), *_project("tap", vision.features, vision.tap_projector), stream)
            result.append(_passing(Block("tap", made, "connector"), taps))
    joined = Block("connector", tuple(_join(vision)), "connector", _times(VISUAL_STREAM, taps))
    return [*result, joined]


def _passing(block: Block, taps: int) -> Block:
    """The block with the text's tokens and the features of so many taps beside its output."""
    name = f"{block.name}_{taps}" if taps else block.name
    return replace(block, name=name, passes=(*TEXT, *_times(VISUAL_STREAM, taps)))


def _times(size: Size, count: int) -> Size:
    return tuple((times * count, names) for times, names in size if count)


def _scaled(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a layer whose branches are multiplied by a learned factor per feature before they are added."""
    return tuple(
        replace(op, weights=(Weight(f"{op.name}.scale", HIDDEN, "vector"),)) if op.name.endswith("_residual") else op
        for op in operators
    )


def embed_patches(patches: Patches, style: Style) -> Iterator[Operator]:
    """Every patch is projected (a convolution with stride), gets its position and is normed, as the tower has it."""
    weights = [Weight("patch_embedding.weight", term("hidden", times=patches.elements))]
    weights += [Weight("patch_embedding.bias", HIDDEN, "vector")] * patches.bias
    if patches.classes:
        weights.append(Weight("class_embedding", term("hidden", times=patches.classes), "vector"))
    yield Operator(
        "patch_embedding", "matmul", TOKENS, HIDDEN, "tensor", contraction=term(times=patches.elements),
        weights=tuple(weights),
    )  # fmt: skip
    last = "patch_embedding"
    if patches.positions:
        table = Weight("position_embedding.weight", term("hidden", times=patches.positions), "embedding")
        yield replace(add("position_embedding", last), weights=(table,))
        last = "position_embedding"
    if patches.norm:
        yield norm("patch_norm", last, replace(style, norm=patches.norm))


def _features() -> Operator:
    """The tower's stream as a tensor of its size, which the projector keeps."""
    return Operator("features", "add", PATCHES, WIDTH, "sequence", inputs=(INPUT,))


def _join(vision: Vision) -> Iterator[Operator]:
    """The projector from vision to language features, whose visual tokens are copied between the text's tokens."""
    yield _features()
    if vision.end_norm:
        yield _norm(
            "vision_norm", "features", PATCHES, WIDTH, ProjectorStep("norm", vision.shape.hidden, norm=vision.end_norm)
        )
    last = "vision_norm" if vision.end_norm else "features"
    if vision.pooled:
        yield Operator("pool", "copy", VISUAL, WIDTH, "sequence", inputs=(last,))
        last = "pool"
    steps = _project("project", vision.features, vision.projector, last)
    yield from steps
    marks = (Weight("marks", term("hidden", times=vision.marks), "vector"),) if vision.marks else ()
    yield Operator("join", "copy", TOKENS, HIDDEN, "sequence", weights=marks, inputs=(steps[-1].name,))


def _project(name: str, width: int, steps: tuple[ProjectorStep, ...], source: str = "features") -> list[Operator]:
    """The operators of a projector that reads ``width`` features a visual token."""
    result: list[Operator] = []
    for at, step in enumerate(steps):
        prefix, columns = f"{name}_{at}" if at else name, term(times=step.width)
        if step.kind == "norm":
            result.append(_norm(f"{prefix}_norm", source, VISUAL, term(times=width), step))
        elif step.kind == "linear":
            result.append(_product(prefix, source, term(times=width), columns, step.bias, "sequence"))
        elif step.kind == "conv":
            op = _product(prefix, source, term(times=step.reads), columns, step.bias, "sequence")
            result.append(replace(op, rows=term("batch", "visual.seq", times=step.rows)))
        elif step.kind == "activation":
            own = Operator(f"{prefix}_activation", "activation", VISUAL, columns, "sequence", inputs=(source,))
            result.append(replace(own, saves=(own.name,)))
        else:
            result += _mlp(prefix, source, term(times=width), step)
        source, width = result[-1].name, width if step.kind == "norm" else step.width
    return result


def _mlp(name: str, source: str, width: Size, step: ProjectorStep) -> list[Operator]:
    gated = step.kind == "gated"
    up = _product(f"{name}_up", source, width, term("ffn", times=1 + gated), step.bias, "tensor")
    kind = "gated_activation" if gated else "activation"
    act = Operator(f"{name}_activation", kind, VISUAL, INNER, "tensor", inputs=(up.name,), saves=(up.name,))
    down = _product(f"{name}_down", act.name, INNER, term(times=step.width), step.bias, "tensor")
    return [up, act, down]


def _norm(name: str, source: str, rows: Size, columns: Size, step: ProjectorStep) -> Operator:
    """A norm whose weights repeat along the columns, if it is that of single patches."""
    weights = [Weight(f"{name}.weight", term(times=step.width), "vector")]
    weights += [Weight(f"{name}.bias", term(times=step.width), "vector")] * (step.norm == "layer")
    return Operator(
        name, "norm", rows, columns, "sequence", weights=tuple(weights), inputs=(source,), saves=(source, "stats")
    )


def _product(name: str, source: str, contraction: Size, columns: Size, bias: bool, region: str) -> Operator:
    """A product on visual tokens; in region "sequence" every tensor-parallel rank has all of it, for its rows."""
    return replace(project(name, source, contraction, columns, bias=bias, region=region), rows=VISUAL)


def _receive(language: ModelGraph, taps: int) -> ModelGraph:
    """The language model, the first layers of which add the features of a tap each to their output."""
    blocks, layers = dict(language.blocks), list(language.layers)
    for at in range(taps):
        block = blocks[layers[at]]
        added = Operator("visual_add", "copy", TOKENS, HIDDEN, "sequence", inputs=(block.operators[-1].name,))
        left = _times(VISUAL_STREAM, taps - at - 1)
        layers[at] = f"{block.name}_visual_{taps - at}"
        blocks[layers[at]] = replace(block, name=layers[at], operators=(*block.operators, added), passes=left)
    return replace(language, blocks={name: blocks[name] for name in dict.fromkeys(layers)}, layers=tuple(layers))
