"""Modules of the transformers library by their configs."""

import pytest

from simpar.errors import UserError
from simpar.tracing import library
from simpar.tracing.library import make_module, require_library

WHY = "model = own.json: model_type = 'x' is of no declared family"
LLAMA = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
WRAPPED = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}}


@pytest.fixture
def torch():
    """Torch, where it and the library are installed."""
    pytest.importorskip("transformers")
    return pytest.importorskip("torch")


def made(torch, config, class_name=""):
    """The class and the inputs that a config gives."""
    with torch.device("meta"):
        module, inputs = make_module(config, class_name, WHY)
    return type(module).__name__, inputs


def test_what_is_missing_is_named(monkeypatch):
    """In one line that says how to install it; what is installed is not imported."""
    monkeypatch.setattr(library, "installed", lambda: ("", "5.24.0"))
    with pytest.raises(UserError, match=r"no declared family; torch would capture it: pip install '.\[torch\]'"):
        require_library(WHY)
    monkeypatch.setattr(library, "installed", lambda: ("2.13", "5.24.0"))
    require_library(WHY)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_tied_as_the_whole_says(torch, tied):
    """What the part for text says of it counts for nothing, as where the whole is made."""
    text = {**LLAMA, "tie_word_embeddings": not tied}
    whole = {**WRAPPED, "model_type": "llava_next", "text_config": text, "tie_word_embeddings": tied}
    with torch.device("meta"):
        module, _ = make_module(whole, "", WHY)
    assert (module.lm_head.weight is module.model.embed_tokens.weight) is tied


@pytest.mark.slow
def test_the_class_of_a_config(torch):
    """The one for causal language models, of the text's part where there is one, or the one that is asked for."""
    assert made(torch, LLAMA) == ("LlamaForCausalLM", None)
    assert made(torch, {**LLAMA, "auto_map": {"AutoModelForCausalLM": "own--code.Model"}})[0] == "LlamaForCausalLM"
    assert made(torch, WRAPPED)[0] == "LlamaForCausalLM"
    assert made(torch, LLAMA, "LlamaForSequenceClassification")[0] == "LlamaForSequenceClassification"
    sound = {"model_type": "whisper", "num_mel_bins": 8, "max_source_positions": 16}
    heard = made(torch, sound, "WhisperForConditionalGeneration")[1]
    assert heard["input_features"].shape == (1, 8, 32)
    assert heard["decoder_input_ids"].shape == (1, 64)
    assert made(torch, sound)[0] == "WhisperForConditionalGeneration", "the causal class is the decoder alone"
    assert made(torch, {"model_type": "vit", "image_size": 32}, "ViTModel")[1]["pixel_values"].shape == (1, 3, 32, 32)
    name, inputs = made(torch, {"model_type": "t5", "num_layers": 1, "architectures": ["T5ForConditionalGeneration"]})
    assert name == "T5ForConditionalGeneration"
    assert sorted(inputs) == ["decoder_input_ids", "input_ids"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "class_name", "message"),
    [
        ({"model_type": "lama"}, "", r"family; did you mean .*has no class for it either: allowed: a newer tra"),
        (LLAMA, "LlamaForCausalLMs", r"has no model class LlamaForCausalLMs; did you mean 'LlamaForCausalLM'"),
        (
            {"model_type": "wav2vec2"},
            "Wav2Vec2Model",
            r"reads input_values, of which no size is known: allowed: --model",
        ),
        (
            {"model_type": "clip_vision_model"},
            "",
            r"for CLIPVisionConfig; allowed: --model-class CLIPVision\w+ or CLIP",
        ),
    ],
    ids=["type", "class", "no size", "no language"],
)
def test_what_the_library_has_not_is_refused(torch, config, class_name, message):
    """With why it was asked, in one line."""
    with pytest.raises(UserError, match=message) as raised:
        made(torch, config, class_name)
    assert str(raised.value).startswith(WHY)


def test_null_fields_that_a_class_reads_are_named(torch):
    """Those on the line that fails; the class and the kind of error behind them."""
    config = {**LLAMA, "model_type": "chameleon"}
    with pytest.raises(UserError, match="config field vocabulary_map null, without which ChameleonModel of transform"):
        made(torch, config)


def test_what_a_class_needs_when_training_is_given(torch):
    """Beside tokens, where it says so."""
    text = {**LLAMA, "model_type": "molmo2_text", "head_dim": 8, "num_key_value_heads": 4}
    name, inputs = made(torch, {"model_type": "molmo2", "text_config": text})
    assert name == "Molmo2ForConditionalGeneration"
    assert inputs.keys() == {"input_ids", "mm_token_type_ids"}
