"""Towers of sound before language models: parameters, FLOP, what travels, and what of sequences is sound."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import simpar
from simpar.architectures.catalogue import find_model, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.graph import ModelGraph, evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

SEQ = 1024
KINDS = (
    "voxtral", "qwen2_audio", "audioflamingo3", "glmasr", "qwen3_asr", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker",
)  # fmt: skip
AS_PAIR = ("audioflamingo3",)
"""Those that the library lists among encoders with decoders."""
RELEASED = {"voxtral-mini-3b": 4_676_271_104, "qwen2-audio-7b": 8_397_094_912, "voxtral-small-24b": 24_261_800_960}
"""What transformers' class has at the released sizes; the hub says 4.7, 8.4 and 24.3 B."""


def tiny(kind: str, **more: Any) -> ModelGraph:
    """A family's tiny model, with other fields."""
    return read({**copy.deepcopy(dict(DECLARED[kind].tiny)), "model_type": kind, **more}, kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_transformers(kind):
    """Tower, projector and language model; positions that are not trained count, computed ones do not."""
    made_by = "AutoModelForSeq2SeqLM" if kind in AS_PAIR else "AutoModelForMultimodalLM"
    assert counted_alike(kind, copy.deepcopy(dict(DECLARED[kind].tiny)), made_by).details.unread == ()


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_the_parameters_of_their_class(name):
    """To the parameter."""
    assert load_model(name).num_parameters() == RELEASED[name]


def test_names_of_the_hub():
    """With dates, and as tuned."""
    assert find_model("mistralai/Voxtral-Mini-3B-2507") == "voxtral-mini-3b"
    assert find_model("mistralai/Voxtral-Small-24B-2507") == "voxtral-small-24b"
    assert find_model("Qwen/Qwen2-Audio-7B-Instruct") == "qwen2-audio-7b"


def test_flop_are_those_of_the_closed_form():
    """Two convolutions of three frames, layers, scores of all frames, and a projector of four frames side by side."""
    h, f, bins, frames, clips = 32, 128, 8, 24, 3
    one, four = tiny("voxtral"), tiny("voxtral", clips_per_sequence=1 + clips)
    tower = frames * (2 * 3 * bins * h + 3 * h * h + 2 * (4 * h * h + 2 * h * f)) + frames // 4 * (4 * h * h + h * h)
    grown = matmul_flop_per_token(four, SEQ) - matmul_flop_per_token(one, SEQ)
    assert grown * SEQ == pytest.approx(2 * clips * tower)
    seen = attention_flop_per_token(four, SEQ) - attention_flop_per_token(one, SEQ)
    assert seen * SEQ == pytest.approx(clips * 2 * 4 * h * frames * frames)


def test_frames_see_those_of_their_own_window():
    """Qwen2.5-Omni: 100 frames of 1,500; Qwen3: 8 pieces of 13 frames of 30."""
    for kind, frames, window in (("qwen2_5_omni_thinker", 1500, 100), ("qwen3_asr", 390, 104)):
        one, two = tiny(kind), tiny(kind, clips_per_sequence=2)
        seen = attention_flop_per_token(two, SEQ) - attention_flop_per_token(one, SEQ)
        assert seen * SEQ == pytest.approx(2 * 4 * 32 * frames * window)


def test_convolutions_over_both_sides_have_rows_of_their_own():
    """Of 100 times and 16 bins each halves both, and rounds up: 50 x 8, 25 x 4, 13 x 2 places a second."""
    graph = tiny("qwen3_asr")
    dims = shape_dims(graph, SEQ)
    rows = [evaluate(op.rows, dims) for op in graph.blocks["frames"].operators if op.name.startswith("convolution_")]
    assert rows[0:6:2] == [30 * 50 * 8, 30 * 25 * 4, 30 * 13 * 2]
    cut = graph.blocks["frames"].view(dims)
    assert evaluate(graph.blocks["frames"].operator("convolution_out").rows, cut) == 390


def test_text_travels_past_both_towers_of_a_model():
    """First the sound's, then the images', each of which joins its tokens with the text's."""
    graph = tiny("qwen2_5_omni_thinker")
    dims = shape_dims(graph, 2048)
    text, sound, image = 2048 * 32, 1500 * 32, 3136 * 32
    sent = [graph.blocks[name].output_elements(dims) for name in graph.layers]
    assert sent == [*[text + sound] * 3, text, *[text + image] * 3, text, text, text]
    assert [each.split(" ")[1] for each in graph.assumed] == ["image", "clip"]


@pytest.mark.parametrize("kind", ["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
def test_the_thinker_of_a_whole_model_is_read(kind):
    """What else the whole has is said to be left out; images and clips may stand beside all."""
    thinker = {**copy.deepcopy(dict(DECLARED[kind].tiny)), "model_type": kind}
    whole = {"model_type": kind.removesuffix("_thinker"), "thinker_config": thinker, "talker_config": {"x": 1}}
    graph = read({**whole, "clips_per_sequence": 2}, "whole")
    assert graph.num_parameters() == tiny(kind).num_parameters()
    assert "2 clips a sequence" in " ".join(graph.assumed)
    assert graph.assumed[-1] == "the thinker alone: talker_config are left out"
    assert graph.details.unread == ()


def test_plans_of_every_kind_answer():
    """Model FLOP are the same under each; text alone is the language model's."""
    training = simpar.Training(seq_len=SEQ, global_batch=16)
    graph = tiny("voxtral", audio_config={**DECLARED["voxtral"].tiny["audio_config"], "max_source_positions": 64})
    plans = ({}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "recompute": "full"}, {"cp": 2}, {"zero": 3})
    results = [simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    silent = tiny("voxtral", clips_per_sequence=0)
    assert silent.num_parameters() == read(dict(DECLARED["voxtral"].tiny["text_config"]), "text").num_parameters()
    assert silent.assumed[0].startswith("no sound (clips_per_sequence = 0)")


AUDIO = DECLARED["voxtral"].tiny["audio_config"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frames_per_clip": 6}, "frames_per_clip = 6: allowed: multiples of 4 up to 24"),
        ({"frames_per_clip": 28}, "frames_per_clip = 28: allowed: multiples of 4 up to 24"),
        ({"audio_config": {**AUDIO, "intermediate_size": 100}}, "allowed: multiples of hidden_size = 32"),
        ({"audio_config": {**AUDIO, "dropout": 0.1}}, "dropout = 0.1: allowed: 0, dropout of sound"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    """With the field, its value and what is allowed."""
    with pytest.raises(UserError, match=words):
        tiny("voxtral", **changes)


def test_longer_sound_than_a_sequence_is_refused():
    """As tokens of images are."""
    training = simpar.Training(seq_len=256, global_batch=8)
    with pytest.raises(UserError, match="seq_len = 256: glmasr has 375 tokens of images and sound a sequence"):
        simpar.simulate(tiny("glmasr"), "dgx-h100", {}, training)
    with pytest.raises(UserError, match="output_dim = 32: allowed: 64"):
        tiny("qwen3_asr", text_config={**DECLARED["qwen3_asr"].tiny["text_config"], "hidden_size": 64})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["voxtral", "qwen2_audio", "audioflamingo3", "glmasr"])
def test_a_captured_tower_is_its_declaration(kind):
    """Parameters, products and scores of the class's tower and projector, captured by themselves."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from simpar.tracing.capture import capture
    from simpar.tracing.graph import _traced

    config = copy.deepcopy(dict(DECLARED[kind].tiny))
    frames = config["audio_config"].get("max_source_positions", 24)

    class Tower(torch.nn.Module):
        """What the class does with a spectrogram."""

        def __init__(self) -> None:
            super().__init__()
            table = transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING
            own = transformers.CONFIG_MAPPING[kind].from_dict(copy.deepcopy(config))
            pairs = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
            whole = (pairs if kind in AS_PAIR else table)[type(own)](own).model
            self.tower, self.project = whole.audio_tower, whole.multi_modal_projector
            self.width = 4 if kind in ("voxtral", "glmasr") else 1

        def forward(self, sound):
            """Tokens of sound."""
            marks = {"input_features_mask": torch.ones(sound.shape[0], 2 * frames)} if kind in AS_PAIR else {}
            heard = self.tower(sound, **marks).last_hidden_state
            return self.project(heard.reshape(heard.shape[0], -1, heard.shape[-1] * self.width))

    captured = _traced("m", capture("m", 2 * frames, lambda: (Tower(), torch.zeros(1, 8, 2 * frames))), "")
    declared, text = tiny(kind, frames_per_clip=frames), tiny(kind, clips_per_sequence=0)
    assert captured.num_parameters() == declared.num_parameters() - text.num_parameters()
    for count in (matmul_flop_per_token, attention_flop_per_token):
        own = count(declared, SEQ) - count(text, SEQ)
        assert count(captured, 2 * frames) * 2 * frames == pytest.approx(own * SEQ, rel=0.01)
