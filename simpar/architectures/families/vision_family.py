"""Families with a tower of images, of sound or both before a language model: what a file declares, what all share."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import ModelFamily, Reader
from simpar.architectures.graph import ModelGraph
from simpar.architectures.heard import Heard, hearing
from simpar.architectures.sound_reading import SILENT_SOUND
from simpar.architectures.vision import Patches, Vision, before_language_model
from simpar.architectures.vision_reading import SILENT_VISION, TEXT_CONFIGS, TOWERS
from simpar.errors import UserError
from simpar.units import number_of

TowerReader = Callable[[Config, Config, int], Vision]
"""Makes a tower of its config, the config around it and the width of the language model."""
SoundReader = Callable[[Config, Config, int], Heard]
"""The same for a tower of sound."""


def vision_family(
    kind: str,
    tower: TowerReader | None,
    text: str | Mapping[str, Any],
    tiny: Mapping[str, Any],
    aliases: tuple[str, ...] = (),
    *,
    tied: bool | None = None,
    either: bool = False,
    sound: SoundReader | None = None,
) -> ModelFamily:
    """The family of a vision tower, a tower of ``sound``, or both before a language model.

    ``text`` is the default ``model_type`` of that, or all of its default fields.

    ``tied``: whether the head has the embedding's table where the config does not say (None: as the language model).
    ``either``: a language model that says so ties them, whatever the config around it says.
    """
    usual = {"model_type": text} if isinstance(text, str) else dict(text)
    usual |= {} if tied is None else {"tie_word_embeddings": tied}

    def read(config: Config, name: str, read_text: Reader) -> ModelGraph:
        graph = replace(read_text(_text(config, usual, either), f"{name}: text_config"), name=name)
        if tower:
            graph = _seeing(tower, config, name, graph)
        if sound:
            return _hearing(sound, config, name, graph)
        return graph.assuming("audio_config is left out") if config.mapping("audio_config") else graph

    return ModelFamily(kind, read, None, None, tiny, aliases, nested=True)


def _seeing(read_tower: TowerReader, config: Config, name: str, language: ModelGraph) -> ModelGraph:
    """The language model with a vision tower before it, where there is one and sequences have images."""
    inner = config.mapping("vision_config")
    images = config.data.get("images_per_sequence")
    if inner is None or images == 0:
        reason = "images_per_sequence = 0" if inner is not None else "the config has no vision_config"
        config.data.get("patches_per_image")
        return language.assuming(f"text only ({reason}): no vision tower is held or trained")
    tower = Config(inner, f"{name}: vision_config")
    vision = read_tower(tower, config, language.dims["hidden"])
    if len(vision.taps) > len(language.layers):
        raise UserError(
            f"{name}: num_hidden_layers = {len(language.layers)}: allowed: at least the {len(vision.taps)} of "
            "deepstack_visual_indexes"
        )
    graph = before_language_model(name, vision, language)
    return of_tower(graph, _describe(vision.patches), "vision_config", tower.unread(SILENT_VISION))


def _hearing(read_tower: SoundReader, config: Config, name: str, language: ModelGraph) -> ModelGraph:
    """The model with a tower of sound before it, where there is one and sequences have clips."""
    inner = config.mapping("audio_config")
    if inner is None or config.data.get("clips_per_sequence") == 0:
        reason = "clips_per_sequence = 0" if inner is not None else "the config has no audio_config"
        config.data.get("frames_per_clip")
        return language.assuming(f"no sound ({reason}): no audio tower is held or trained")
    tower = Config(inner, f"{name}: audio_config")
    heard = read_tower(tower, config, language.dims["hidden"])
    graph = hearing(name, heard, language)
    return of_tower(graph, _describe_sound(heard), "audio_config", tower.unread(SILENT_SOUND))


KNOWN_AS = {"qwen2_5_omni_text": "qwen2_5_vl_text", "qwen3_omni_moe_text": "qwen3_vl_moe_text"}
"""Language models within others -> those with the same fields and operators."""


def _text(config: Config, usual: Mapping[str, Any], either: bool) -> dict[str, Any]:
    """The config of the language model: a section, or fields beside the vision's. Raises UserError for none.

    ``usual`` are the fields that it may leave out. ``tie_word_embeddings`` beside a section counts for more than one in
    it, but where ``either`` is enough.
    """
    inner = next((each for name in TEXT_CONFIGS if (each := config.mapping(name)) is not None), None)
    if inner is None:
        if "hidden_size" not in {*config.data, *usual}:
            raise UserError(f"{config.source}: model_type = {config.text('model_type')!r}: text_config is needed")
        inner = {name: value for name, value in config.data.items() if name not in (*TOWERS, "model_type")}
        for name in inner:
            config.data.get(name)
    kind = KNOWN_AS.get(str(inner.get("model_type")))
    inner = {**inner, "model_type": kind} if kind else inner
    outside = config.data.get("tie_word_embeddings")
    said = inner.get("tie_word_embeddings") is True and either
    tied = {} if outside is None or said else {"tie_word_embeddings": outside}
    return {**usual, **inner, **tied}


def of_tower(graph: ModelGraph, said: str, section: str, unread: tuple[str, ...]) -> ModelGraph:
    """The graph with what was assumed of a tower, and fields of its section that were not understood."""
    fields = (*graph.details.unread, *(f"{section}.{field}" for field in unread))
    return replace(graph.assuming(said), details=replace(graph.details, unread=fields))


def _describe(patches: Patches) -> str:
    return (
        f"{number_of(patches.images, 'image')} a sequence (images_per_sequence) of {patches.count:,} patches each "
        f"(patches_per_image), {patches.tokens:,} visual tokens in all"
    )


def _describe_sound(heard: Heard) -> str:
    return (
        f"{number_of(heard.clips, 'clip')} a sequence (clips_per_sequence) of {heard.sound.frames:,} frames each "
        f"behind convolutions (frames_per_clip), {heard.tokens:,} tokens of sound in all"
    )
