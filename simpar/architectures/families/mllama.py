"""Llama 3.2 Vision: Llama 3.1 with layers between that attend to images [arXiv 2407.21783; transformers, mllama]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily, Reader
from simpar.architectures.families.vision_family import of_tower
from simpar.architectures.graph import ModelGraph, Weight, term
from simpar.architectures.seen import Seen, Tiles, attended_by_text
from simpar.architectures.vision_reading import CHANNELS, SILENT_VISION, check_width, square, vit_shape
from simpar.errors import UserError
from simpar.units import number_of

FURTHER_TOKENS = 8
"""Rows of the token table beyond the vocabulary, for images, which no output stands for."""
CROSSED = (3, 8, 13, 18, 23, 28, 33, 38)
KEPT = (3, 7, 15, 23, 30)
RATIOS = 8
TEXT = {
    "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14_336, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""What text configs may leave out."""


def _read(config: Config, name: str, read_text: Reader) -> ModelGraph:
    text = Config({**TEXT, **(config.mapping("text_config") or {})}, f"{name}: text_config")
    crossed, language = _language(text, read_text)
    if config.data.get("images_per_sequence") == 0:
        for field in ("vision_config", "patches_per_image"):
            config.data.get(field)
        said = "text only (images_per_sequence = 0): no vision tower and no cross-attention is held or trained"
        return replace(language, name=name).assuming(said)
    vision = Config(config.mapping("vision_config") or {}, f"{name}: vision_config")
    seen = _tower(vision, config)
    features = len(seen.kept) + 1
    check_width(vision, "vision_output_dim", seen.shape.hidden * features, f"features of {features} layers")
    graph = attended_by_text(name, seen, language, crossed)
    return of_tower(graph, _describe(seen.tiles), "vision_config", vision.unread(SILENT_VISION))


def _language(text: Config, read_text: Reader) -> tuple[tuple[int, ...], ModelGraph]:
    """Numbers of the layers that attend to images, and the model of the others."""
    count = text.size("num_hidden_layers", default=40)
    listed = text.layers("cross_attention_layers", count)
    crossed = CROSSED if listed is None else listed
    if not crossed or max(crossed) >= count or len(crossed) == count:
        raise UserError(f"{text.source}: cross_attention_layers = {list(crossed)}: allowed: some of the {count} layers")
    if text.tied():
        raise UserError(f"{text.source}: tie_word_embeddings = true: allowed: false, the table has rows for images too")
    if rate := text.rate("dropout"):
        raise UserError(f"{text.source}: dropout = {rate:g}: allowed: 0, dropout of this family is not modelled")
    own = {each: value for each, value in text.data.items() if each not in ("cross_attention_layers", "dropout")}
    own |= {"model_type": "llama", "num_hidden_layers": count - len(crossed)}
    return crossed, _with_further_tokens(read_text(own, text.source))


def _tower(vision: Config, around: Config) -> Seen:
    """Two stacks of ViT layers on all tiles of an image."""
    shape = vit_shape(vision, hidden=1280, layers=32, heads=vision.size("attention_heads", default=16), ffn=5120)
    width = square(vision, "patch_size", default=14)
    count = (square(vision, "image_size", default=448) // width) ** 2
    tiles = vision.size("max_num_tiles", default=4)
    if given := around.optional_size("patches_per_image"):
        if given % count:
            raise UserError(
                f"{around.source}: patches_per_image = {given}: allowed: multiples of the {count} of a tile"
            )
        tiles = given // count
    ratios = vision.data.get("supported_aspect_ratios")
    if ratios is not None and not isinstance(ratios, list):
        raise UserError(f"{vision.source}: supported_aspect_ratios = {ratios!r}: allowed: a list of pairs")
    kept = vision.layers("intermediate_layers_indices", shape.layers)
    kept = KEPT if kept is None else kept
    if kept and max(kept) >= shape.layers:
        raise UserError(
            f"{vision.source}: num_hidden_layers = {shape.layers}: allowed: more than the {max(kept)} of "
            "intermediate_layers_indices"
        )
    elements = vision.size("num_channels", default=CHANNELS) * width**2
    images = around.size("images_per_sequence", default=1)
    made = Tiles(images, tiles, count, elements, RATIOS if ratios is None else len(ratios))
    return Seen(made, shape, vision.size("num_global_layers", default=8), kept)


def _with_further_tokens(graph: ModelGraph) -> ModelGraph:
    """The model with a longer token table."""
    first, *rest = graph.embedding.operators
    table = Weight(
        "token_embedding.weight", (*term("vocab", "hidden"), *term("hidden", times=FURTHER_TOKENS)), "embedding"
    )
    return replace(graph, embedding=replace(graph.embedding, operators=(replace(first, weights=(table,)), *rest)))


def _describe(tiles: Tiles) -> str:
    return (
        f"{number_of(tiles.images, 'image')} a sequence (images_per_sequence) of {tiles.tiles} tiles of "
        f"{tiles.patches:,} patches each (max_num_tiles; patches_per_image: all of an image's), {tiles.memory:,} "
        "tokens that text attends to in all"
    )


FAMILIES = (
    ModelFamily(
        "mllama",
        _read,
        None,
        None,
        {
            "text_config": {
                **TINY, "model_type": "mllama_text_model", "num_hidden_layers": 5, "cross_attention_layers": [1, 3],
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "attention_heads": 4,
                "num_global_layers": 2, "image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0, 1],
                "vision_output_dim": 96,
            },
        },
        nested=True,
    ),
)  # fmt: skip
