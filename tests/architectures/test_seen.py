"""Images read by cross-attention: what the two stacks of a tower, its features and the layers between cost."""

from __future__ import annotations

import copy

import pytest

import simpar
from simpar.architectures.catalogue import config_of, find_model, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.gate import some

TINY = DECLARED["mllama"].tiny
SEQ = 32
TILE, TOKENS, TOWER = 4, 4 * 5, 4 * 8
"""Patches of a tile; tokens of an image that text attends to, and those of it in the tower, which are filled up."""


def tiny(**more):
    """Three layers, two gated ones, and two layers of five that attend to images."""
    return read({**copy.deepcopy(dict(TINY)), "model_type": "mllama", **more}, "tiny")


def test_flop_are_those_of_the_closed_form():
    """Tower and keys grow with the images of a sequence, the text's own layers do not."""
    h, f = 32, 48
    one, three = tiny(), tiny(images_per_sequence=3)
    tower = 4 * TILE * 3 * 14 * 14 * h + 5 * TOWER * (4 * h * h + 2 * h * f) + TOKENS * 3 * h * h
    keys = 2 * TOKENS * h * 2 * 16
    grown = matmul_flop_per_token(three, SEQ) - matmul_flop_per_token(one, SEQ)
    assert grown * SEQ == pytest.approx(2 * 2 * (tower + keys))
    scores = 4 * h * (5 * TOWER * TOWER + 2 * SEQ * TOKENS)
    seen = attention_flop_per_token(three, SEQ) - attention_flop_per_token(one, SEQ)
    assert seen * SEQ == pytest.approx(2 * scores)  # each image's own, and all keys for every token


def test_features_and_text_travel_past_the_tower_and_the_memory_past_the_text():
    """Behind each block: its rows, the text, features that are kept; then the memory, to its last reader."""
    graph = tiny()
    dims = shape_dims(graph, SEQ)
    text, rows, memory = SEQ * 32, TOWER * 32, TOKENS * 32
    sent = [graph.blocks[name].output_elements(dims) for name in graph.layers]
    assert sent == [rows + text, 2 * rows + text, *[3 * rows + text] * 5, *[memory + text] * 4, text, text]


def test_text_alone_is_the_language_model_with_a_longer_table():
    """Llama 3.1 8B, and eight rows for images."""
    config = config_of("llama-3.2-11b-vision")
    alone = read({**config, "images_per_sequence": 0}, "alone")
    assert alone.num_parameters() == load_model("llama-3.1-8b").num_parameters() + 8 * 4096
    assert alone.assumed[0].startswith("text only (images_per_sequence = 0)")


def test_names_of_the_hub_and_what_is_assumed():
    """The tuned models have tiles of 560 pixels; an image has four tiles, whether it fills them or not."""
    assert find_model("meta-llama/Llama-3.2-11B-Vision-Instruct") == "llama-3.2-11b-vision"
    assert find_model("meta-llama/Llama-3.2-90B-Vision") == "llama-3.2-90b-vision"
    small = read({"model_type": "mllama", "text_config": {}, "vision_config": {}}, "base")
    assert small.num_parameters() == 10_642_941_475  # of the base model's checkpoint: tiles of 448
    (said,) = load_model("llama-3.2-11b-vision").assumed
    assert "4 tiles of 1,600 patches each" in said
    assert "6,404 tokens that text attends to" in said


def test_plans_of_every_kind_answer():
    """Model FLOP are the same under each; a frozen tower has no backward."""
    training = simpar.Training(seq_len=1024, global_batch=16)
    graph = tiny(text_config={**TINY["text_config"], "max_position_embeddings": 1024})
    plans = ({}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "recompute": "full"}, {"cp": 2}, {"zero": 3})
    results = [simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    assert all(result.step_time_s > 0 for result in results)
    still = {"frozen_layers": graph.layers.index("connector")}
    frozen = simpar.simulate(graph, "dgx-h100", still, training, with_timeline=False)
    assert frozen.step_time_s < results[0].step_time_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patches_per_image": 6}, "patches_per_image = 6: allowed: multiples of the 4 of a tile"),
        ({"text_config": {**TINY["text_config"], "cross_attention_layers": [5]}}, "numbers below the 5 layers"),
        ({"text_config": {**TINY["text_config"], "cross_attention_layers": []}}, "allowed: some of the 5 layers"),
        ({"text_config": {**TINY["text_config"], "tie_word_embeddings": True}}, "the table has rows for images too"),
        ({"text_config": {**TINY["text_config"], "dropout": 0.1}}, "dropout = 0.1: allowed: 0"),
        ({"vision_config": {**TINY["vision_config"], "vision_output_dim": 64}}, "vision_output_dim = 64: allowed: 96"),
        ({"vision_config": {**TINY["vision_config"], "supported_aspect_ratios": 3}}, "allowed: a list of pairs"),
        ({"vision_config": {"num_hidden_layers": 8}}, "num_hidden_layers = 8: allowed: more than the 30 of"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    """With the field, its value and what is allowed."""
    with pytest.raises(UserError, match=words):
        tiny(**changes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("images", some((1, 2), (1,)))
def test_the_module_with_an_image_is_captured_as_it_is_declared(images):
    """Parameters, products, scores and activations of the whole class, tower and all."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from simpar.tracing.capture import capture
    from simpar.tracing.graph import _traced
    from tests.tracing.test_transformers import activations_bytes

    def make():
        config = transformers.MllamaConfig(**copy.deepcopy(dict(TINY)))
        config.text_config.pad_token_id = 0
        marks = torch.ones(1, SEQ, images, 4, dtype=torch.int64)
        return transformers.MllamaForConditionalGeneration(config), {
            "input_ids": torch.zeros(1, SEQ, dtype=torch.int64), "cross_attention_mask": marks,
            "pixel_values": torch.zeros(1, images, 4, 3, 28, 28), "aspect_ratio_ids": marks[:, 0, :, 0],
            "aspect_ratio_mask": marks[:, 0],
        }  # fmt: skip

    captured, declared = _traced("m", capture("m", SEQ, make), ""), tiny(images_per_sequence=images)
    assert captured.num_parameters() == declared.num_parameters()
    for count in (matmul_flop_per_token, attention_flop_per_token):
        assert count(captured, SEQ) == pytest.approx(count(declared, SEQ), rel=0.01)
    assert activations_bytes(captured) == pytest.approx(activations_bytes(declared), rel=0.01)
