"""A config as transformers writes it is the same model as the one that was read: fields change names on the way."""

import json

import pytest

from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.gate import some
from tests.runtime.tiny_models import MODELS

transformers = pytest.importorskip("transformers")

OTHER_LAYERS = {
    "deepseek_v32": {"first_k_dense_replace": 0},
    "exaone_moe": {"first_k_dense_replace": 2},
    "glm_moe_dsa": {"first_k_dense_replace": 2},
    "kimi_linear": {"first_k_dense_replace": 2},
    "llama4_text": {"no_rope_layers": [1, 0, 0, 1], "moe_layers": [0]},
}
"""Fields that give layers other kinds than the usual ones, which the written config lists one by one."""
NOT_STATED = {
    "mistral3": {"text_config": {"sliding_window": None}},
    "musicflamingo": {
        "audio_config": {"model_type": "audioflamingo3_encoder"},
        "rope_parameters": {"rope_theta": 1200},
    },
}
"""What a part of the tiny config leaves to defaults of another model_type, and what its class does not go without."""
DIFFERENT = ("qwen3_vl_moe_text",)
"""The class ties the table of a part that the whole does not tie."""


def cases():
    """Every declared family whose config the installed library has, as it is and with other kinds of layers."""
    known = [kind for kind in DECLARED if kind in transformers.CONFIG_MAPPING and kind not in DIFFERENT]
    return list(OTHER_LAYERS.items()) + [(kind, {}) for kind in known]


def written(config):
    """The JSON of the config's class with every field, as ``save_pretrained`` of a whole model has it."""
    own = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    return json.loads(own.to_json_string(use_diff=False))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "fields"), some(cases(), 40, tuples=True))
def test_a_written_config_is_the_same_model(kind, fields):
    """The same blocks in the same order, with the same sizes."""
    tiny = {**MODELS.get(kind, DECLARED[kind].tiny), **fields, "model_type": kind}
    for part, stated in NOT_STATED.get(kind, {}).items():
        tiny[part] = {**tiny.get(part, {}), **stated}
    before, after = read(tiny, kind), read(written(tiny), kind)
    assert (after.layers, after.blocks, after.head) == (before.layers, before.blocks, before.head)
    assert after.num_parameters() == before.num_parameters()
    assert after.details.unbuilt == before.details.unbuilt
    if DECLARED[kind].details:
        assert after.details.norm_eps == before.details.norm_eps


def test_layers_of_gemma_4_differ_by_their_window_alone():
    """Heads of single layers are refused with what is allowed."""
    tiny = {**DECLARED["gemma4_text"].tiny, "model_type": "gemma4_text"}
    layers = {"2": {"head_dim": 16}, "5": {"head_dim": 8}}
    with pytest.raises(UserError, match=r"per_layer_config = .* allowed: the same head_dim and num_key_value_heads"):
        read({**tiny, "per_layer_config": layers}, "theirs")


def test_numbers_of_layers_are_checked():
    """A layer that the model does not have is named with the allowed ones."""
    tiny = {**DECLARED["llama4_text"].tiny, "model_type": "llama4_text", "moe_layers": [4]}
    with pytest.raises(UserError, match=r"theirs: moe_layers = \[4\]: allowed: a list of layers from 0 to 3"):
        read(tiny, "theirs")


def test_layers_of_gemma_4_are_numbered_with_and_without_zeros():
    """Files that transformers writes of its defaults say "05"."""
    tiny = {**DECLARED["gemma4_text"].tiny, "model_type": "gemma4_text"}
    one, two = ({key.format(at): {"head_dim": 16} for at in (2, 5)} for key in ("{}", "{:02d}"))
    plain, padded = (read({**tiny, "per_layer_config": each}, "theirs") for each in (one, two))
    assert plain.blocks == padded.blocks
