"""Whisper: an encoder of a fixed length, a decoder of text, and plans on both."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import find_model, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

TINY = DECLARED["whisper"].tiny
DIMENSIONS = {  # OpenAI's ModelDimensions of the checkpoints: width, heads, layers of encoder, vocabulary
    "whisper-tiny": (384, 6, 4, 51_865), "whisper-base": (512, 8, 6, 51_865), "whisper-small": (768, 12, 12, 51_865),
    "whisper-medium": (1024, 16, 24, 51_865), "whisper-large-v2": (1280, 20, 32, 51_865),
}  # fmt: skip
"""As k2-fsa/sherpa-onnx prints them (scripts/whisper/model-info.md), without large-v3 and turbo."""
PUBLISHED = {  # what these sizes come to by the formulas of transformers' class, the tied table once
    "whisper-tiny": 37_760_640, "whisper-base": 72_593_920, "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920, "whisper-large-v2": 1_543_304_960, "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": 808_878_080,
}  # fmt: skip


def tiny(**more):
    """A tiny model, whose decoder has other heads and another MLP than its encoder."""
    return read({**TINY, "model_type": "whisper", **more}, "tiny")


@pytest.mark.filterwarnings("ignore")
def test_parameters_are_those_of_transformers():
    """Keys without biases, positions of both towers, convolutions; those of the encoder are not trained."""
    graph = counted_alike("whisper", dict(TINY), "AutoModelForSpeechSeq2Seq")
    assert graph.num_parameters() - graph.num_trained_parameters() == 20 * 32


@pytest.mark.parametrize("name", PUBLISHED)
def test_released_models_have_the_published_parameters(name):
    """To the parameter, under the names of the hub."""
    assert load_model(name).num_parameters() == PUBLISHED[name]
    assert find_model(f"openai/{name}") == name


@pytest.mark.parametrize("name", DIMENSIONS)
def test_released_models_have_the_dimensions_of_their_checkpoints(name):
    """1,500 frames of 80 features, 448 positions of text, as many decoder layers as encoder layers."""
    graph = load_model(name)
    width, heads, layers, words = DIMENSIONS[name]
    dims = graph.dims
    assert (dims["hidden"], dims["heads"], dims["vocab"]) == (width, heads, words)
    assert (dims["encoder.hidden"], dims["encoder.heads"], dims["memory"]) == (width, heads, 1500)
    assert graph.layers.count("encoder_layer") == graph.layers.count("decoder_layer") == layers
    assert graph.facts["longest"] == 448


def test_flop_are_those_of_the_closed_form():
    """The encoder's do not depend on the text; cross-attention projects its keys once a sequence."""
    h, frames, seq, first, second = 32, 20, 16, 48, 64
    front = frames * (2 * 3 * 8 * h + 3 * h * h)
    encoder = 2 * frames * (4 * h * h + 2 * h * first)
    decoder = seq * (4 * h * h + 2 * h * h + 2 * h * second + 96 * h) + frames * 2 * h * h
    assert matmul_flop_per_token(tiny(), seq) * seq == pytest.approx(2 * (front + encoder + decoder))
    scores = 2 * 2 * h * (2 * frames**2 + seq**2 + seq * frames)
    assert attention_flop_per_token(tiny(), seq) * seq == pytest.approx(scores)


def test_text_travels_past_the_encoder_and_sound_past_the_decoder():
    """What a pipeline sends behind each kind of block."""
    graph, frames, seq, h = tiny(), 20, 16, 32
    sent = {name: graph.blocks[name].output_elements(shape_dims(graph, seq)) for name in graph.layers}
    assert sent == dict.fromkeys(sent, (frames + seq) * h)


def test_every_kind_of_plan_answers():
    """The model FLOP of a step are the same under any, and memory shrinks where weights are split."""
    training = simpar.Training(seq_len=448, global_batch=64)
    plans = ({}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "zero": 1}, {"zero": 3})
    results = [simpar.simulate("whisper-base", "dgx-h100", plan, training) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    assert all(result.memory.static_memory_bytes < results[0].memory.static_memory_bytes for result in results[1:])


def test_longer_text_and_dropout_are_refused():
    """With what is allowed."""
    with pytest.raises(UserError, match="seq_len = 512: whisper-tiny has 448 positions; allowed: as many"):
        simpar.simulate("whisper-tiny", "dgx-h100", {}, simpar.Training(seq_len=512, global_batch=64))
    with pytest.raises(UserError, match=r"dropout = 0\.1: allowed: 0"):
        tiny(dropout=0.1)
