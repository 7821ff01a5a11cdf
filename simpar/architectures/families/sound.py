"""Speech and sound before a language model: Voxtral [arXiv 2507.13264], Qwen2-Audio [arXiv 2407.10759], and their kin.

Whisper's encoder; four frames side by side, or the mean of two, make a token.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.heard import Heard
from simpar.architectures.sound_reading import whisper_like
from simpar.architectures.vision import ProjectorStep
from simpar.architectures.vision_reading import VIT
from simpar.errors import UserError


def _four_frames(audio: Config) -> int:
    """Frames side by side that are as wide as the encoder's MLP. Raises UserError."""
    width, read = audio.size("d_model", "hidden_size", default=1280), audio.size("intermediate_size", default=5120)
    if read % width:
        raise UserError(f"{audio.source}: intermediate_size = {read}: allowed: multiples of hidden_size = {width}")
    return read // width


def _voxtral(audio: Config, around: Config, hidden: int) -> Heard:
    merged = _four_frames(audio)
    clips, sound = whisper_like(audio, around, merged=merged)
    steps = (ProjectorStep("mlp", hidden, inner=hidden, bias=False),)
    return Heard(clips, sound, VIT, steps, merged, end_norm="layer")


def heard_in_pairs(audio: Config, around: Config, hidden: int, positions: str = "table") -> Heard:
    """Qwen2-Audio's: the mean of two frames makes a token."""
    clips, sound = whisper_like(audio, around, merged=2, positions=positions)
    steps = (ProjectorStep("norm", sound.shape.hidden), ProjectorStep("linear", hidden))
    return Heard(clips, sound, VIT, steps, 2, pooled=True)


def _flamingo(audio: Config, around: Config, hidden: int) -> Heard:
    mlp = ProjectorStep("mlp", hidden, inner=hidden, bias=around.flag("projector_bias", default=True))
    heard = heard_in_pairs(audio, around, hidden)
    return replace(heard, projector=(heard.projector[0], mlp))


def _glm(audio: Config, around: Config, hidden: int) -> Heard:
    """With rotary positions, and a projector whose middle is twice as wide."""
    merged = _four_frames(audio)
    clips, sound = whisper_like(audio, around, merged=merged, positions="", key_heads=True)
    steps = (ProjectorStep("mlp", hidden, inner=2 * hidden),)
    return Heard(clips, sound, replace(VIT, rotary=True), steps, merged, end_norm="layer")


MINISTRAL = {
    "model_type": "llama", "vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 100_000_000.0,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
GLM_NANO = {
    "model_type": "llama", "vocab_size": 59_264, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""What text configs may leave out."""
AUDIO = {
    "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 8,
}  # fmt: skip
FAMILIES = (
    vision_family(
        "voxtral", None, MINISTRAL, sound=_voxtral,
        tiny={
            "text_config": {**TINY, "model_type": "llama", "head_dim": 8}, "tie_word_embeddings": False,
            "audio_config": {**AUDIO, "max_source_positions": 24},
        },
    ),
    vision_family(
        "qwen2_audio", None, QWEN2, sound=heard_in_pairs,
        tiny={
            "text_config": {**TINY, "model_type": "qwen2"}, "tie_word_embeddings": False,
            "audio_config": {
                "d_model": 32, "encoder_ffn_dim": 48, "encoder_layers": 2, "encoder_attention_heads": 4,
                "num_mel_bins": 8, "max_source_positions": 24,
            },
        },
    ),
    vision_family(
        "audioflamingo3", None, QWEN2, sound=_flamingo, aliases=("musicflamingo",),
        tiny={
            "text_config": {**TINY, "model_type": "qwen2"}, "tie_word_embeddings": False,
            "audio_config": {**AUDIO, "max_source_positions": 24},
        },
    ),
    vision_family(
        "glmasr", None, GLM_NANO, sound=_glm, tied=True,
        tiny={"text_config": {**TINY, "model_type": "llama"}, "tie_word_embeddings": True, "audio_config": AUDIO},
    ),
)  # fmt: skip
