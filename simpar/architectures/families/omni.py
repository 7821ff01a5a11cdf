"""Qwen's models that see and hear: the thinkers of Qwen2.5-Omni and Qwen3-Omni, and Qwen3-ASR.

Qwen2.5-Omni hears by Whisper's encoder, whose frames see those of their own 2 s [arXiv 2503.20215]. Qwen3's encoder has
three convolutions over both sides of a spectrogram in pieces of 1 s, each halving both [arXiv 2509.17765]. Talkers,
which are trained apart, are left out.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY, ModelFamily, Reader
from simpar.architectures.families.qwen_vl import MIXED, STACKED, tower_2_5, tower_stacked
from simpar.architectures.families.sound import heard_in_pairs
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ModelGraph, Operator, term
from simpar.architectures.heard import Heard
from simpar.architectures.products import HIDDEN, project
from simpar.architectures.sound_reading import clips_of, encoder_shape
from simpar.architectures.speech import Sound
from simpar.architectures.transformer import Shape, add
from simpar.architectures.vision import ProjectorStep
from simpar.architectures.vision_reading import VIT, check_width
from simpar.errors import UserError

SECONDS = 30
"""Pieces of a clip."""
CONVOLUTIONS = 3
AREA = 9
"""Numbers of a channel that a convolution reads for a place."""
OUTER = (
    "talker_config", "token2wav_config", "code2wav_config", "enable_audio_output", "enable_talker", "user_token_id",
)  # fmt: skip
"""Fields of whole models that say nothing of their thinkers."""


def _heard_2_5(audio: Config, around: Config, hidden: int) -> Heard:
    heard = heard_in_pairs(audio, around, hidden, positions="computed")
    check_width(audio, "output_dim", hidden)
    return replace(heard, marks=2, windows=(audio.size("n_window", default=100),) * heard.sound.shape.layers)


def _heard_3(audio: Config, around: Config, hidden: int) -> Heard:
    return _in_pieces(audio, around, hidden, encoder_shape(audio, hidden=1280, layers=32, heads=20, ffn=5120))


def _heard_by_asr(audio: Config, around: Config, hidden: int) -> Heard:
    return _in_pieces(audio, around, hidden, encoder_shape(audio, hidden=1024, layers=24, heads=16, ffn=4096))


def _in_pieces(audio: Config, around: Config, hidden: int, shape: Shape) -> Heard:
    """Qwen3's encoder."""
    check_width(audio, "output_dim", hidden)
    audio.data.get("conv_chunksize")  # how many pieces a rank's memory takes at a time
    audio.data.get("max_source_positions")
    piece = 2 * audio.size("n_window", default=50)
    times, bins = _halved(piece), _halved(audio.size("num_mel_bins", default=128))
    clips, frames = clips_of(around, SECONDS * times[-1], pieces=times[-1])
    places = [clips * (frames // times[-1]) * time * bin_ for time, bin_ in zip(times, bins, strict=True)]
    seen = audio.size("n_window_infer", default=800)
    if seen % piece:
        raise UserError(f"{audio.source}: n_window_infer = {seen}: allowed: multiples of {piece} (twice n_window)")
    channels = audio.size("downsample_hidden_size", default=480)
    return Heard(
        clips, Sound(shape, frames, bins[-1], "computed"), VIT,
        (ProjectorStep("mlp", hidden, inner=shape.hidden),), end_norm="layer", key_biases=True,
        windows=(seen // piece * times[-1],) * shape.layers, first=tuple(_convolutions(channels, bins[-1])),
        lengths={f"convolution_{at}.seq": count for at, count in enumerate(places)},
    )  # fmt: skip


def _halved(size: int) -> list[int]:
    """A size behind each convolution."""
    result = []
    for _ in range(CONVOLUTIONS):
        size = (size + 1) // 2
        result.append(size)
    return result


def _convolutions(channels: int, bins: int) -> Iterator[Operator]:
    """Three convolutions with their activations, a product with all that is left of a time, and computed positions."""
    last = ""
    for at in range(CONVOLUTIONS):
        name, rows = f"convolution_{at}", term("batch", f"convolution_{at}.seq")
        made = project(name, last, term(times=AREA * (channels if at else 1)), term(times=channels), bias=True,
                       region="sequence")  # fmt: skip
        yield replace(made, rows=rows, inputs=(last,) if last else (), saves=(last,) if last else ())
        last = f"{name}_activation"
        yield Operator(last, "activation", rows, term(times=channels), "sequence", inputs=(name,), saves=(name,))
    yield project("convolution_out", last, term(times=channels * bins), HIDDEN, region="sequence")
    yield add("position_embedding", "convolution_out")


def _thinker(kind: str, tiny: dict[str, Any]) -> ModelFamily:
    """The family of whole models, of which the part that is ``kind`` is read."""

    def read(config: Config, name: str, read_text: Reader) -> ModelGraph:
        inner = config.mapping("thinker_config")
        if inner is None:
            raise UserError(f"{config.source}: model_type = {config.text('model_type')!r}: thinker_config is needed")
        given = {each: config.data.get(each) for each in GIVEN if each in config.data}
        left = [each for each in OUTER if config.data.get(each) and each.endswith("_config")]
        graph = read_text({**inner, **given, "model_type": kind}, name)
        return graph.assuming(f"the thinker alone: {' and '.join(left)} are left out") if left else graph

    whole = kind.removesuffix("_thinker")
    return ModelFamily(whole, read, None, None, {"thinker_config": {**tiny, "model_type": kind}}, nested=True)


GIVEN = ("images_per_sequence", "patches_per_image", "clips_per_sequence", "frames_per_clip")
HEARD = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 16,
    "output_dim": 32,
}  # fmt: skip
TINY_2_5 = {
    "text_config": {**TINY, "model_type": "qwen2_5_omni_text"}, "audio_config": HEARD, "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 4, "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
    },
}  # fmt: skip
TINY_3 = {
    "text_config": {**TINY, "head_dim": 8, **MIXED, "model_type": "qwen3_omni_moe_text"}, "vision_config": STACKED,
    "audio_config": {**HEARD, "downsample_hidden_size": 8}, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = (
    vision_family("qwen2_5_omni_thinker", tower_2_5, "qwen2_5_vl_text", TINY_2_5, sound=_heard_2_5),
    vision_family("qwen3_omni_moe_thinker", tower_stacked, "qwen3_vl_moe_text", TINY_3, sound=_heard_3),
    _thinker("qwen2_5_omni_thinker", TINY_2_5),
    _thinker("qwen3_omni_moe_thinker", TINY_3),
    vision_family(
        "qwen3_asr", None, "qwen3", sound=_heard_by_asr,
        tiny={
            "text_config": {**TINY, "head_dim": 8, "model_type": "qwen3"}, "tie_word_embeddings": True,
            "audio_config": {**HEARD, "downsample_hidden_size": 8},
        },
    ),
)  # fmt: skip
