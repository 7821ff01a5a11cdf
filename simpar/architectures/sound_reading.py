"""Fields of audio configs that many families read: clips and frames, the layers of Whisper's encoder.

``clips_per_sequence`` and ``frames_per_clip`` beside the sub-configs say what sequences are made of; without them there
is one clip a sequence, of all frames that the encoder has positions for (30 s).
"""

from simpar.architectures.config import Config
from simpar.architectures.reading import shape_of
from simpar.architectures.speech import Sound
from simpar.architectures.transformer import Shape
from simpar.errors import UserError

SILENT_SOUND = {
    "_attn_implementation", "activation_function", "architectures", "attention_dropout", "chunk_size_feed_forward",
    "decoder_start_token_id", "dtype", "hidden_act", "id2label", "init_std", "initializer_factor",
    "initializer_range", "is_encoder_decoder", "label2id", "layer_norm_eps", "max_position_embeddings", "model_type",
    "norm_eps", "num_hidden_layers", "output_attentions", "output_hidden_states", "partial_rotary_factor",
    "return_dict", "rope_parameters", "rope_theta", "scale_embedding", "torch_dtype", "transformers_version",
    "use_cache", "vocab_size",
}  # fmt: skip
"""Fields of audio configs that no size depends on, or that have defaults for what another field says."""
DROPPED = ("dropout", "activation_dropout", "encoder_layerdrop", "layerdrop")
FRAMES = 1500
"""Frames of 20 ms of Whisper's 30 s."""


def whisper_like(
    audio: Config, around: Config, *, merged: int = 1, positions: str = "table", key_heads: bool = False
) -> tuple[int, Sound]:
    """Clips of a sequence and Whisper's encoder by either of its names of fields. Raises UserError.

    ``merged`` frames make a token; ``key_heads``: there may be fewer heads of keys.
    """
    shape = encoder_shape(audio, hidden=1280, layers=32, heads=20, ffn=5120, key_heads=key_heads)
    longest = audio.size("max_source_positions", default=FRAMES) if positions else FRAMES
    clips, frames = clips_of(around, longest, pieces=merged, longest=longest if positions == "table" else 0)
    return clips, Sound(shape, frames, audio.size("num_mel_bins", default=128), positions)


def encoder_shape(audio: Config, *, hidden: int, layers: int, heads: int, ffn: int, key_heads: bool = False) -> Shape:
    """The shape of an encoder with a family's defaults. Raises UserError, also for dropout."""
    for field in DROPPED:
        if rate := audio.rate(field):
            raise UserError(f"{audio.source}: {field} = {rate:g}: allowed: 0, dropout of sound is not modelled")
    heads = audio.size("encoder_attention_heads", "num_attention_heads", default=heads)
    return shape_of(
        audio.having({"vocab_size": 1}), hidden=audio.size("d_model", "hidden_size", default=hidden), heads=heads,
        ffn=audio.size("encoder_ffn_dim", "intermediate_size", default=ffn),
        layers=audio.size("encoder_layers", "num_hidden_layers", default=layers),
        kv_heads=audio.size("num_key_value_heads", default=heads) if key_heads else heads,
    )  # fmt: skip


def clips_of(around: Config, usual: int, *, pieces: int, longest: int = 0) -> tuple[int, int]:
    """Clips of a sequence and frames of each: multiples of ``pieces``, up to ``longest`` (0: any). Raises UserError."""
    frames = around.size("frames_per_clip", default=usual)
    if frames % pieces or frames > (longest or frames):
        most = f" up to {longest}" * bool(longest)
        raise UserError(f"{around.source}: frames_per_clip = {frames}: allowed: multiples of {pieces}{most}")
    return around.size("clips_per_sequence", default=1), frames
