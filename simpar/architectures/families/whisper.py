"""Whisper: 30 s of sound through an encoder, text through a decoder that attends to it [arXiv 2212.04356]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import GPT_STYLE, shape_of, style_of
from simpar.architectures.speech import STRIDE, Sound, speech_model
from simpar.architectures.transformer import Shape
from simpar.errors import UserError

STYLE = replace(GPT_STYLE, tied=True)
DROPPED = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
SILENT = (
    "num_hidden_layers", "scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment",
    "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length",
    "mask_feature_min_masks", "median_filter_width", "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids",
    "max_length",
)  # fmt: skip
"""Fields of generation, of other tasks, and of masks that are drawn beside the devices."""


def _read(config: Config, name: str) -> ModelGraph:
    for field in SILENT:
        config.data.get(field)
    for field in DROPPED:
        if rate := config.rate(field):
            raise UserError(f"{config.source}: {field} = {rate:g}: allowed: 0, dropout of speech is not modelled")
    hidden = config.size("d_model", default=384)
    longest = config.size("max_target_positions", default=448)
    encoder, decoder = (_shape(config, tower, hidden) for tower in ("encoder", "decoder"))
    frames = config.size("max_source_positions", default=1500)
    sound = Sound(encoder, frames, config.size("num_mel_bins", default=80))
    graph = speech_model(name, sound, replace(decoder, positions=longest), style_of(config, STYLE))
    said = (
        f"{frames * STRIDE:,} frames of a spectrogram beside the text of every sequence, {frames:,} after convolutions"
    )
    return replace(graph, facts={**graph.facts, "assumed": (said,), "longest": longest})


def _shape(config: Config, tower: str, hidden: int) -> Shape:
    return shape_of(
        config.having({"vocab_size": 51_865}, unless_given=True), hidden=hidden,
        ffn=config.size(f"{tower}_ffn_dim", default=1536), layers=config.size(f"{tower}_layers", default=4),
        heads=config.size(f"{tower}_attention_heads", default=6),
    )  # fmt: skip


FAMILIES = (
    ModelFamily(
        "whisper",
        _read,
        None,
        None,
        {
            "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "max_source_positions": 20,
            "max_target_positions": 16, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
)  # fmt: skip
