"""Configs are read strictly: what is missing or impossible is one clear line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.report.words import describe_certainty

LLAMA = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def test_unknown_family_suggests() -> None:
    """A misspelt model_type gets the nearest known one."""
    with pytest.raises(UserError, match="did you mean 'llama'"):
        read({**LLAMA, "model_type": "lama"}, "config.json")


@pytest.mark.parametrize("kind", ["jamba", "falcon_mamba", "zamba2"])
def test_what_is_not_modelled_says_so(kind: str) -> None:
    """Families with layers that no operator stands for are refused by name."""
    with pytest.raises(UserError, match="not modelled"):
        read({**LLAMA, "model_type": kind}, "config.json")


@pytest.mark.parametrize(("kind", "words"), [("jamba", "Mamba-1 state-space layers"), ("rwkv", "recurrent layers")])
def test_kinds_of_layers_that_are_not_modelled_are_named(kind, words):
    """The reason is what the layers are, not that the name is unknown."""
    with pytest.raises(UserError, match=f"model_type = '{kind}': {words} are not modelled"):
        read({"model_type": kind}, "x")


def test_more_experts_a_token_than_there_are() -> None:
    """A token cannot go to more experts than there are."""
    mixture = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}
    with pytest.raises(UserError, match="experts per token = 5: allowed: at most the 4 experts"):
        read(mixture, "config.json")


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, 10**12])
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_impossible_sizes(field: str, value: object) -> None:
    """Sizes are positive integers; the message names file, field and value."""
    with pytest.raises(UserError, match=rf"config.json: {field} = "):
        read({**LLAMA, field: value}, "config.json")


def test_missing_field_is_named() -> None:
    """A required field that is absent is named."""
    with pytest.raises(UserError, match="intermediate_size is missing"):
        read({key: value for key, value in LLAMA.items() if key != "intermediate_size"}, "config.json")


@pytest.mark.parametrize(("heads", "kv"), [(5, 5), (4, 3)])
def test_heads_must_divide(heads: int, kv: int) -> None:
    """Heads divide the hidden size, key-value heads divide heads."""
    with pytest.raises(UserError, match="does not divide"):
        read({**LLAMA, "num_attention_heads": heads, "num_key_value_heads": kv}, "config.json")


def test_multimodal_wrappers_hide_the_text_model() -> None:
    """The decoder of a wrapper is read from text_config."""
    assert read({"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "llama"}}).num_parameters() > 0


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "head_dim", "sliding_window", "n_embd"]),
        st.none() | st.integers(-2, 300) | st.text(max_size=3) | st.floats(allow_nan=True) | st.booleans(),
    ),
    st.sampled_from(sorted(DECLARED)),
)
def test_reader_never_fails_otherwise(changes: dict[str, object], family: str) -> None:
    """Any config either gives a model or one UserError, whatever stands in it."""
    try:
        assert read({**LLAMA, **changes, "model_type": family}, "config.json").num_parameters() > 0
    except UserError as error:
        assert str(error).startswith("config.json")


def test_windows_make_block_kinds() -> None:
    """Alternating attention gives two kinds of blocks, in order."""
    config = {**LLAMA, "model_type": "gemma2", "sliding_window": 16, "head_dim": 16}
    graph = read(config, "config.json")
    assert graph.layers == ("layer_window_16", "layer")


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("llama", {"architectures": 1.5}, "architectures = 1.5: allowed: a list of names of classes"),
        ("minimax_m3", {"layer_types": [[], "full_attention"]}, "layer_types = .*: allowed: one of full_attention"),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, "rope_parameters: rope_theta = 'x': allowed: a number"),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": []}},
            r"partial_rotary_factor = \[\]: allowed: a number",
        ),
    ],
)
def test_values_of_another_kind_are_refused(kind, fields, said):
    """With the field; they ended in an error of Python's."""
    with pytest.raises(UserError, match=said):
        read({**DECLARED[kind].tiny, "model_type": kind, **fields}, "theirs")


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("qwen3_vl", {"vision_config": {"deepstack_visual_indexes": [[0], 1]}}, "deepstack_visual_indexes = "),
        ("qwen2_5_vl", {"vision_config": {"fullatt_block_indexes": 1.5}}, "fullatt_block_indexes = 1.5: allowed: "),
        ("step3_text", {"moe_layers_enum": 3}, "moe_layers_enum = 3: allowed: numbers of layers"),
        ("dbrx", {"attn_config": "x"}, "attn_config = 'x': allowed: a mapping"),
        ("dbrx", {"ffn_config": [1]}, "ffn_config = .*: allowed: a mapping"),
        ("deepseek_v32", {"kv_lora_rank": None}, "kv_lora_rank = null: allowed: a positive integer"),
        ("glm_moe_dsa", {"indexer_types": 1.5}, "indexer_types = 1.5: allowed: full or shared"),
        ("granitemoehybrid", {"layer_types": True}, "layer_types = True: allowed: one of"),
        ("gpt_neo", {"attention_types": [[["global"], 10**12]]}, "attention_types = .*: allowed: pairs"),
        ("gpt_neo", {"attention_types": [[[[], "local"], 1]]}, "attention_types = .*: allowed: pairs"),
        ("gemma3n", {"intermediate_size": [[], []]}, "intermediate_size = "),
        ("ministral3", {"rope_parameters": {"mscale_all_dim": "x"}}, "mscale_all_dim = 'x': allowed: a number above 0"),
    ],
)  # fmt: skip
def test_values_of_no_kind_that_a_field_has_are_one_line(kind: str, change: dict[str, Any], message: str) -> None:
    """Lists in lists, numbers for lists, words for numbers: each names the field and what is allowed."""
    config = {**DECLARED[kind].tiny, "model_type": kind}
    for name, value in change.items():
        inner = config.get(name)
        config[name] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    with pytest.raises(UserError, match=message) as raised:
        read(config, "x")
    assert "\n" not in str(raised.value)


def test_reports_name_fields_that_are_not_understood() -> None:
    """A mechanism that nobody knows is not left out without a word."""
    training = simpar.Training(seq_len=32, global_batch=8)
    said = []
    for config in (LLAMA, {**LLAMA, "attention_type": "magic", "new_field": 7}):
        result = simpar.simulate(read(config, "own"), "dgx-h100", simpar.Plan(), training, with_timeline=False)
        said.append([each for each in describe_certainty(result) if "not understood" in each])
    named = "fields of the model's config that are not understood and play no part: attention_type, new_field"
    assert said == [[], [named]]
