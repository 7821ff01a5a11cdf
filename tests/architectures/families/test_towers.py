"""Vision towers of every family: parameters as transformers counts them, and as they are published."""

from __future__ import annotations

import copy

import pytest

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike
from tests.gate import some

SOUND = {
    "voxtral", "qwen2_audio", "audioflamingo3", "musicflamingo", "glmasr", "qwen3_asr", "qwen2_5_omni",
    "qwen3_omni_moe", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker",
}  # fmt: skip
"""Those that hear are counted in test_heard.py."""
NESTED = sorted(
    {family.model_type for family in DECLARED.values() if family.nested} - {"kimi_k3", "step3_vl", "dots_ocr", *SOUND}
)
"""Those that transformers has a class for."""
PUBLISHED = {  # totals of the released checkpoints (safetensors indices on the Hugging Face hub)
    "qwen2-vl-2b": 2_208_985_600, "qwen2-vl-7b": 8_291_375_616, "qwen2-vl-72b": 73_405_560_320,
    "qwen2.5-vl-3b": 3_754_622_976, "qwen2.5-vl-7b": 8_292_166_656, "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344, "qwen3-vl-2b": 2_127_532_032, "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696, "qwen3-vl-30b-a3b": 31_070_754_032, "internvl3-8b": 7_944_373_760,
    "mistral-small-3.1-24b": 24_011_361_280, "glm-4.5v": 107_710_933_120, "llava-1.5-7b": 7_063_427_072,
    "llama-3.2-11b-vision": 10_670_220_835, "llama-3.2-90b-vision": 88_593_355_323,
}  # fmt: skip
WITH_TOWERS = {  # text models that are shipped alone: config of the whole, total of its checkpoint
    "gemma-3-4b": (
        {
            "model_type": "gemma3",
            "vision_config": {
                "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
                "image_size": 896, "patch_size": 14,
            },
        },
        4_300_079_472,
    ),
    "llama-4-scout": (
        {
            "model_type": "llama4",
            "vision_config": {
                "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
                "image_size": 336, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096,
                "vision_output_dim": 4096,
            },
        },
        108_641_793_536,
    ),
}  # fmt: skip

SIGLIP_SO = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
"""SigLIP So400m."""
RELEASED = {  # fields of released configs; billions of parameters, as their cards say
    "smolvlm": (
        {
            "scale_factor": 3,
            "text_config": {
                "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                "num_attention_heads": 32, "vocab_size": 49_280,
            },
            "vision_config": {**SIGLIP_SO, "image_size": 384, "patch_size": 14},
        },
        2.25,
    ),
    "paligemma": (
        {
            "projection_dim": 2304,
            "text_config": {
                "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 257_216,
                "num_image_tokens": 256,
            },
            "vision_config": {**SIGLIP_SO, "patch_size": 14, "projection_dim": 2304},
        },
        3.03,
    ),
    "dots_ocr": (
        {
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": False, "vision_config": {},
        },
        3.04,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RELEASED)
def test_released_models_have_as_many_parameters_as_their_cards_say(kind):
    """SmolVLM2 2.2B, PaliGemma 2 3B, dots.ocr; no field of theirs is left unread."""
    config, billions = RELEASED[kind]
    graph = read({"model_type": kind, **config}, kind)
    assert round(graph.num_parameters() / 1e9, 2) == billions
    assert graph.details.unread == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(NESTED, sorted(NESTED)[::4]))
def test_parameters_are_those_of_transformers(kind: str) -> None:
    """Tower, projector and language model to the parameter, with every feature that the tiny config has."""
    counted_alike(kind, copy.deepcopy(dict(DECLARED[kind].tiny)), "AutoModelForImageTextToText")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    """As many as the released checkpoint has."""
    assert load_model(name).num_parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", WITH_TOWERS)
def test_towers_of_shipped_text_models_have_the_published_parameters(name: str) -> None:
    """The text model of the catalogue with the tower of its release."""
    config, parameters = WITH_TOWERS[name]
    assert read({**config, "text_config": config_of(name)}, name).num_parameters() == parameters


@pytest.mark.parametrize(("kind", "tied"), [("qwen3_vl", True), ("mistral3", True), ("gemma3", False)])
def test_tables_are_tied_as_the_config_around_says(kind: str, tied: bool) -> None:
    """A field beside the sections counts for more than that in the text's."""
    tiny = DECLARED[kind].tiny
    text = {**tiny["text_config"], "tie_word_embeddings": not tied}
    assert (
        read({**tiny, "model_type": kind, "text_config": text, "tie_word_embeddings": tied}, kind).tied_embeddings
        is tied
    )


@pytest.mark.parametrize(("kind", "tied"), [("llava", True), ("qwen2_vl", True), ("qwen3_vl", False)])
def test_a_language_model_that_ties_its_tables_does_so_in_some_families(kind, tied):
    """As their classes read configs of before; LLaVA-OneVision 0.5B says so beside a "false" around it."""
    tiny = DECLARED[kind].tiny
    text = {**tiny["text_config"], "tie_word_embeddings": True}
    around = {**tiny, "model_type": kind, "text_config": text, "tie_word_embeddings": False}
    assert read(around, kind).tied_embeddings is tied


@pytest.mark.parametrize(
    ("part", "fields", "said"),
    [
        ("text_config", {"hidden_size": 64}, "vision_config: out_hidden_size = 32: allowed: 64, as hidden_size of"),
        ("text_config", {"num_hidden_layers": 1}, "num_hidden_layers = 1: allowed: at least the 2 of deepstack_visual"),
        ("vision_config", {"depth": 1}, r"deepstack_visual_indexes = \[0, 1\]: allowed: numbers below the 1 layers"),
        (
            "vision_config",
            {"deepstack_visual_indexes": 2},
            "deepstack_visual_indexes = 2: allowed: numbers below the 3",
        ),
    ],
)
def test_towers_that_do_not_fit_are_refused(part, fields, said):
    """Of another width than the language model, or with features of more layers than there are."""
    config = {**DECLARED["qwen3_vl"].tiny, "model_type": "qwen3_vl"}
    with pytest.raises(UserError, match=said):
        read({**config, part: {**config[part], **fields}}, "theirs")
