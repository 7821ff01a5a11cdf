"""Blocks as a ModelGraph."""

import pytest

from simpar.architectures.encoders import left_out_of
from simpar.architectures.families import DECLARED
from simpar.architectures.families.family import TINY
from simpar.architectures.graph import Operator, term
from simpar.architectures.hf_config import read
from simpar.tracing.blocks import Traced
from simpar.tracing.graph import _fits, _like, _model_dims, _Scopes, _towers, trace_library

PRODUCT = Operator("p", "matmul", term("batch", "seq"), term("hidden"), "tensor", term("hidden"))


def block(dims, passes=(), operators=(PRODUCT,)):
    """A traced block with some dims."""
    return Traced(operators, dims, passes, "layers", "")


def test_layers_of_the_training_and_of_a_length_of_their_own_differ():
    """Dims that agree fit only where both have a length of their own, or neither."""
    assert _fits({"hidden": 8}, {"hidden": 8, "heads": 2})
    assert not _fits({"hidden": 8}, {"hidden": 16})
    assert not _fits({"hidden": 8, "seq": 4}, {"hidden": 8})
    assert not _fits({"hidden": 8}, {"hidden": 8, "seq": 4})


def test_other_sizes_have_a_scope():
    """One a set of sizes, under the name of the list or a number; lengths of the model are not taken along."""
    scopes = _Scopes({"hidden": 8, "heads": 2, "vocab": 100})
    assert scopes.of(block({"hidden": 8}), is_layer=True) == ""
    assert scopes.of(block({"hidden": 16}), is_layer=True) == "layers"
    assert scopes.of(block({"hidden": 16}), is_layer=False) == "layers"
    assert scopes.of(block({"hidden": 32}), is_layer=True) == "layers_"
    assert scopes.of(block({"hidden": 64}), is_layer=False) == "part3"
    assert scopes.own["layers"] == {"hidden": 16, "heads": 2}


def test_layers_that_are_alike_pass_as_much():
    """The last of a row, behind which nothing is read, counts as those before it."""
    most = term("batch", "memory")
    alike = _like([block({"hidden": 8}, most), block({"hidden": 8}), block({"hidden": 16})])
    assert [each.passes for each in alike] == [most, most, ()]


def test_dims_of_the_model_are_those_of_most_of_it():
    """Counted by products and attention, of the training's length if any is."""
    ends = block({"hidden": 8})
    few, many = block({"hidden": 8, "ffn": 32}), block({"hidden": 16, "ffn": 64}, operators=(PRODUCT,) * 3)
    found = _model_dims([ends, few, many, ends])
    assert (found["hidden"], found["ffn"], found["heads"], found["positions"]) == (16, 64, 1, 0)
    pictures = block({"hidden": 16, "seq": 4}, operators=(PRODUCT,) * 3)
    assert _model_dims([ends, few, pictures, ends])["hidden"] == 8


def test_layers_with_experts_have_the_dims_of_the_model():
    """Experts are divided by the mesh of the model, not in a scope."""
    ends, few = block({"hidden": 8}), block({"hidden": 16, "ffn": 4, "experts": 4})
    many = block({"hidden": 16, "ffn": 64}, operators=(PRODUCT,) * 3)
    assert _model_dims([ends, few, many, ends])["ffn"] == 4


@pytest.mark.filterwarnings("ignore")
def test_towers_that_text_reads_nothing_of_are_left_out():
    """The graph is that of the language model, and says how many parameters it leaves out."""
    pytest.importorskip("transformers")
    config = {**DECLARED["qwen3_vl"].tiny, "model_type": "qwen3_vl"}
    graph = trace_library(config, "", "seen", 16, "")
    whole, text = read(config).num_parameters(), read({**config, "images_per_sequence": 0}).num_parameters()
    assert graph.num_parameters() == text
    assert f"without {whole - text:,} parameters of vision_config" in graph.facts["notes"][0]


@pytest.mark.filterwarnings("ignore")
def test_a_language_model_within_another_says_what_it_leaves_out():
    """Where the class of the text has no tower at all, as behind a speech encoder."""
    pytest.importorskip("transformers")
    config = {
        "model_type": "voxtral", "hidden_size": 32, "text_config": {**TINY, "head_dim": 8, "model_type": "llama"},
        "audio_config": {"model_type": "voxtral_encoder", "hidden_size": 32, "num_hidden_layers": 1},
    }  # fmt: skip
    graph = trace_library(config, "", "heard", 16, "")
    assert graph.num_parameters() == read({**TINY, "model_type": "llama"}).num_parameters()
    assert "LlamaForCausalLM of transformers" in graph.facts["notes"][0]
    assert "(text only: it has no audio_config)" in graph.facts["notes"][0]
    assert left_out_of(graph) == graph.assumed == ("text only: audio_config left out",)


def test_towers_of_parts_are_named_with_their_part():
    """The encoder of a pair may have one of its own (T5Gemma 2)."""
    assert _towers({"vision_config": {"hidden_size": 1}, "audio_config": None}) == ["vision_config"]
    nested = {"encoder": {"text_config": {}, "vision_config": {"hidden_size": 1}}, "decoder": {"vocab_size": 2}}
    assert _towers(nested) == ["encoder.vision_config"]
