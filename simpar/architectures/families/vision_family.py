"""Families with a vision tower before a language model: what a file that declares one says, and what all share."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import ModelFamily, Reader
from simpar.architectures.graph import ModelGraph
from simpar.architectures.vision import Patches, Vision, before_language_model
from simpar.architectures.vision_reading import SILENT_VISION, TEXT_CONFIGS, TOWERS
from simpar.errors import UserError

TowerReader = Callable[[Config, Config, int], Vision]
"""Makes a tower of its config, the config around it and the width of the language model."""


def vision_family(
    kind: str,
    tower: TowerReader,
    text: str,
    tiny: Mapping[str, Any],
    aliases: tuple[str, ...] = (),
    *,
    tied: bool | None = None,
    either: bool = False,
) -> ModelFamily:
    """The family of a vision tower before a language model, whose default ``model_type`` is ``text``.

    ``tied``: whether the head has the embedding's table where the config does not say (None: as the language model).
    ``either``: a language model that says so ties them, whatever the config around it says.
    """
    usual = {"model_type": text} if tied is None else {"model_type": text, "tie_word_embeddings": tied}
    return ModelFamily(kind, _reader(tower, usual, either), None, None, tiny, aliases, nested=True)


def _reader(read_tower: TowerReader, text: Mapping[str, Any], either: bool) -> Reader:

    def read(config: Config, name: str, read_text: Reader) -> ModelGraph:
        language = read_text(_text(config, text, either), f"{name}: text_config")
        inner = config.mapping("vision_config")
        left_out = [f"{field} is left out" for field in ("audio_config",) if config.mapping(field)]
        images = config.data.get("images_per_sequence")
        if inner is None or images == 0:
            reason = "images_per_sequence = 0" if inner is not None else "the config has no vision_config"
            said = f"text only ({reason}): no vision tower is held or trained"
            config.data.get("patches_per_image")
            return _told(replace(language, name=name), [said, *left_out], ())
        tower = Config(inner, f"{name}: vision_config")
        vision = read_tower(tower, config, language.dims["hidden"])
        if len(vision.taps) > len(language.layers):
            raise UserError(
                f"{name}: num_hidden_layers = {len(language.layers)}: allowed: at least the {len(vision.taps)} of "
                "deepstack_visual_indexes"
            )
        graph = before_language_model(name, vision, language)
        return _told(graph, [_describe(vision.patches), *left_out], tower.unread(SILENT_VISION))

    return read


def _text(config: Config, usual: Mapping[str, Any], either: bool) -> dict[str, Any]:
    """The config of the language model: a section, or fields beside the vision's. Raises UserError for none.

    ``usual`` are the fields that it may leave out. ``tie_word_embeddings`` beside a section counts for more than one in
    it, but where ``either`` is enough.
    """
    inner = next((each for name in TEXT_CONFIGS if (each := config.mapping(name)) is not None), None)
    if inner is None:
        if "hidden_size" not in config.data:
            raise UserError(f"{config.source}: model_type = {config.text('model_type')!r}: text_config is needed")
        inner = {name: value for name, value in config.data.items() if name not in (*TOWERS, "model_type")}
        for name in inner:
            config.data.get(name)
    outside = config.data.get("tie_word_embeddings")
    said = inner.get("tie_word_embeddings") is True and either
    tied = {} if outside is None or said else {"tie_word_embeddings": outside}
    return {**usual, **inner, **tied}


def _told(graph: ModelGraph, assumed: list[str], unread: tuple[str, ...]) -> ModelGraph:
    """The graph with what was assumed, and fields of the vision config that were not understood."""
    details = graph.details
    fields = (*details.unread, *(f"vision_config.{field}" for field in unread))
    return replace(
        graph, facts={**graph.facts, "assumed": (*graph.assumed, *assumed)}, details=replace(details, unread=fields)
    )


def _describe(patches: Patches) -> str:
    images = f"{patches.images} image" + "s" * (patches.images > 1)
    return (
        f"{images} a sequence (images_per_sequence) of {patches.count:,} patches each (patches_per_image), "
        f"{patches.tokens:,} visual tokens in all"
    )
