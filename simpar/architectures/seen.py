"""Models that read images by cross-attention: a tower of two stacks, whose output some layers of the text attend to.

Images are cut into tiles, which count whether they are used or not. Features of some layers of the first stack travel
past the second one, which works on all tiles of an image together and has a gate on every branch; all of them side by
side become a memory as wide as the text. Layers between those of the language model attend to it, and have a gate on
either branch, too [Llama 3, arXiv 2407.21783, section 7; transformers, models/mllama]. Blocks of the tower have the
scopes "vision" and "connector", as in other towers; the sequences of a step are the text's.
"""

from collections.abc import Iterator
from dataclasses import replace

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, project
from simpar.architectures.towers import MEMORY, MEMORY_STREAM, cross_attention
from simpar.architectures.transformer import LayerVariant, Shape, Style, add, attention, mlp, norm
from simpar.architectures.vision import TEXT
from simpar.architectures.vision_reading import VIT
from simpar.dataclass import dataclass

STYLE = replace(VIT, qkv_bias=False, output_bias=False, extra={"bidirectional": True})
"""The style of both stacks."""
CROSS = Style(qk_norm="head")
PADDED_TO = 8
"""Tokens of a tile are filled up to a multiple of so many."""
FEATURES: Size = term("batch", "vision.seq", "vision.hidden")
"""The output of a layer of the first stack that travels on."""
IMAGE_ROWS: Size = term("batch", "patched.seq")


@dataclass(frozen=True)
class Tiles:
    """Images of a sequence: ``images`` of ``tiles`` of ``patches`` patches of ``elements`` numbers each.

    A class token stands beside the patches of a tile; ``ratios`` are ways to lay the tiles out, each with tables.
    """

    images: int
    tiles: int
    patches: int
    elements: int
    ratios: int

    @property
    def tokens(self) -> int:
        """Tokens of a tile, its class token among them."""
        return self.patches + 1

    @property
    def memory(self) -> int:
        """Tokens of a sequence's images that the text attends to."""
        return self.images * self.tiles * self.tokens

    @property
    def context(self) -> int:
        """Tokens of an image in the layers of the tower."""
        return self.tiles * -(-self.tokens // PADDED_TO) * PADDED_TO


@dataclass(frozen=True)
class Seen:
    """The tower: ``shape`` has the layers of the first stack, ``further`` are those of the second.

    ``kept`` are the layers of the first whose outputs are features, beside that of the second.
    """

    tiles: Tiles
    shape: Shape
    further: int
    kept: tuple[int, ...]

    @property
    def dims(self) -> dict[str, int]:
        """Named dims of the tower's scopes, and of what travels past the text's layers."""
        shape, tiles = self.shape, self.tiles
        own = {
            "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
            "ffn": shape.ffn, "seq": tiles.images * tiles.context, "context": tiles.context,
        }  # fmt: skip
        return {
            "memory": tiles.memory, "connector.seq": tiles.memory,
            "patched.seq": tiles.images * tiles.tiles * tiles.patches,
            **{f"vision.{key}": size for key, size in own.items()},
        }  # fmt: skip


def attended_by_text(name: str, seen: Seen, language: ModelGraph, crossed: tuple[int, ...]) -> ModelGraph:
    """The language model with the tower before it and layers of cross-attention, which have the numbers ``crossed``."""
    tower = list(_tower(seen))
    count, own = len(language.layers) + len(crossed), iter(language.layers)
    blocks = {block.name: block for block in tower} | {"cross_layer": _cross_layer()}
    layers = [block.name for block in tower]
    for at in range(count):
        if at in crossed:
            layers.append("cross_layer" if at < max(crossed) else "last_cross_layer")
            passes: Size = () if at == max(crossed) else MEMORY_STREAM
            blocks[layers[-1]] = replace(blocks["cross_layer"], name=layers[-1], passes=passes)
            continue
        plain = language.blocks[next(own)]
        before = at < max(crossed)
        block = replace(plain, name=f"{plain.name}_beside_images", passes=MEMORY_STREAM) if before else plain
        layers.append(block.name)
        blocks[block.name] = block
    return replace(
        language, name=name, blocks={each: blocks[each] for each in dict.fromkeys(layers)}, layers=tuple(layers),
        dims={**language.dims, **seen.dims, "text_hidden": language.dims["hidden"]},
    )  # fmt: skip


def _tower(seen: Seen) -> Iterator[Block]:
    """Patches, both stacks with the norm between them, and the product that makes the memory."""
    yield Block("patches", tuple(_patches(seen.tiles)), "vision", TEXT)
    kept = 0
    for at in range(seen.shape.layers):
        kept += seen.kept.count(at)
        yield _passing("vision_layer", _layer(gated=False), kept)
    yield _passing("vision_between", _between(seen.tiles), kept)
    for _ in range(seen.further):
        yield _passing("vision_global_layer", _layer(gated=True), kept)
    yield Block("connector", tuple(_connect(seen)), "connector", MEMORY_STREAM)


def _passing(name: str, operators: list[Operator], kept: int) -> Block:
    """A block past which the text's tokens and so many features travel."""
    beside = tuple((times * kept, names) for times, names in FEATURES if kept)
    return Block(f"{name}_{kept}" if kept else name, tuple(operators), "vision", (*TEXT, *beside))


def _patches(tiles: Tiles) -> Iterator[Operator]:
    """A product with every patch; gated tables of tiles and of positions, one of each way to lay tiles out; a norm."""
    size = term("hidden", times=tiles.elements)
    patches = project("patch_embedding", INPUT, term(times=tiles.elements), HIDDEN)
    yield replace(
        patches, rows=IMAGE_ROWS, inputs=(), saves=(),
        weights=(Weight("patch_embedding.weight", size), Weight("class_embedding", HIDDEN, "vector")),
    )  # fmt: skip
    of_tiles = Weight("tile_embedding.weight", term("hidden", times=(tiles.ratios + 1) * tiles.tiles), "embedding")
    of_ratios = Weight(
        "tile_position_embedding.weight", term("hidden", times=(tiles.ratios + 1) * tiles.tiles * tiles.tokens),
        "embedding",
    )  # fmt: skip
    places = Weight("position_embedding.weight", term("hidden", times=tiles.tokens), "embedding")
    yield replace(add("tile_embedding", "patch_embedding"), weights=(of_tiles, _gate("tile_embedding")))
    yield replace(add("position_embedding", "tile_embedding"), weights=(places, of_ratios, _gate("position_embedding")))
    yield norm("patch_norm", "position_embedding", STYLE)


def _gate(name: str) -> Weight:
    """One number, by which everything is multiplied."""
    return Weight(f"{name}.gate", term(), "vector")


def _layer(*, gated: bool) -> list[Operator]:
    """A layer of either stack."""
    ops = [norm("attention_norm", INPUT, STYLE), *attention("attention_norm", STYLE, LayerVariant(), dropout=False)]
    ops += [_sum("attention", INPUT, "o_proj", gated=gated), norm("mlp_norm", "attention_residual", STYLE)]
    return [*ops, *mlp("mlp_norm", STYLE), _sum("mlp", "attention_residual", "mlp_down", gated=gated)]


def _sum(branch: str, stream: str, made: str, *, gated: bool = True) -> Operator:
    """The end of a branch; a gate's gradient needs what the branch made."""
    total = add(f"{branch}_residual", stream, made)
    return replace(total, weights=(_gate(branch),), saves=(made,)) if gated else total


def _between(tiles: Tiles) -> list[Operator]:
    """The norm behind the first stack, and a gated table of tiles before the second."""
    table = Weight("second_tile_embedding.weight", term("hidden", times=(tiles.ratios + 1) * tiles.tiles), "embedding")
    return [
        norm("vision_norm", INPUT, STYLE),
        replace(add("second_tile_embedding", "vision_norm"), weights=(table, _gate("second_tile_embedding"))),
    ]


def _connect(seen: Seen) -> Iterator[Operator]:
    """All features side by side, their product with the width of the text, and the text that has travelled past."""
    width = term("vision.hidden", times=len(seen.kept) + 1)
    yield Operator("features", "copy", MEMORY, width, "sequence", inputs=(INPUT,))
    yield replace(project("memory", "features", width, term("text_hidden"), bias=True, region="sequence"), rows=MEMORY)
    yield Operator("text", "add", term("batch", "text.seq"), term("text_hidden"), "sequence", inputs=(INPUT,))


def _cross_layer() -> Block:
    """Cross-attention with norms of queries and keys, and an MLP, each between a norm and a gated sum."""
    ops = [norm("attention_norm", INPUT, CROSS), *cross_attention("attention_norm", CROSS)]
    ops += [_sum("attention", INPUT, "cross_o_proj"), norm("mlp_norm", "attention_residual", CROSS)]
    return Block("cross_layer", (*ops, *mlp("mlp_norm", CROSS), _sum("mlp", "attention_residual", "mlp_down")))
