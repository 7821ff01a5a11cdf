"""nanotron's configs: the models that they state, and their words."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.architecture import architecture
from simpar.frameworks.nanotron_read import WORDS
from simpar.verbs import check

SIZES = {
    "is_qwen2_config": True, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 1000,
}  # fmt: skip
ATTENTION = 4 * 256 * 256
TABLES = 2 * 1000 * 256


def imported(model, **parallelism):
    """What is read of a config with other fields of its model."""
    config = {
        "parallelism": {"dp": 2, "pp": 1, "tp": 1, **parallelism}, "model": {"model_config": {**SIZES, **model}},
        "tokens": {"sequence_length": 64, "micro_batch_size": 1},
    }  # fmt: skip
    return read(yaml.safe_dump(config), "config.yaml", "nanotron")


@pytest.mark.parametrize(
    ("model", "products"),
    [
        ({}, 3 * 256 * 768),
        ({"is_qwen2_config": False, "is_llama_config": True}, 3 * 256 * 768),
        ({"attention_bias": True}, 3 * 256 * 768),
        ({"moe_config": {"num_experts": 8, "top_k": 1, "moe_intermediate_size": 512}}, 8 * 3 * 256 * 512 + 8 * 256),
        ({"moe_config": {"num_experts": 8}}, 8 * 3 * 256 * 1408 + 8 * 256),  # as wide as its default
        ({"moe_config": {"num_experts": 8, "enable_shared_expert": True}}, 8 * 3 * 256 * 1408 + 3 * 256 * 5632),
        ({"moe_num_experts": 4, "num_experts_per_tok": 1}, 4 * 3 * 256 * 768 + 4 * 256),
    ],
)
def test_a_model_is_built_of_its_fields(model, products):
    """As many parameters as its products have, but for norms, biases and a gate."""
    found = imported(model)
    assert found.plan.model is None
    count = read_config(found.config).num_parameters()
    assert count == pytest.approx(TABLES + 12 * (ATTENTION + products), rel=0.002)
    assert "built from the config" in found.notes[0]


def test_windows_and_other_models():
    """Windows are those of all layers; Mamba is refused, and fields that are not all there is leave the model open."""
    assert architecture(read_config(imported({"sliding_window_size": 20}).config)).windows == (20,) * 12
    with pytest.raises(UserError, match="Mamba-1 is not modelled"):
        imported({"is_qwen2_config": False, "is_mamba_config": True})
    found = imported({"moe_num_experts": 4, "moe_glu": False})
    assert (found.config, "give --model" in found.asks["model"]) == (None, True)


@pytest.mark.parametrize(
    ("words", "heads"),
    [({"grouped_query": True, "num_kv_heads": 4}, 4), ({"multi_query": True}, 1), ({"num_kv_heads": 4}, 36)],
)
def test_starcoder_2(words, heads):
    """Its words for heads of keys, an MLP of four widths, one table, and a dropout that no other model there has."""
    sizes = {
        "is_starcoder2_config": True, "hidden_size": 4608, "num_hidden_layers": 32, "num_attention_heads": 36,
        "vocab_size": 49152, "max_position_embeddings": 4096, "activation_function": "gelu", "resid_pdrop": 0,
    }  # fmt: skip
    config = {"parallelism": {"dp": 2, "pp": 1, "tp": 1}, "model": {"model_config": {**sizes, **words}},
              "tokens": {"sequence_length": 4096, "micro_batch_size": 1}}  # fmt: skip
    found = read(yaml.safe_dump(config), "config.yaml", "nanotron")
    graph = read_config(found.config)
    assert (graph.dims["kv_heads"], graph.dims["ffn"], graph.tied_embeddings) == (heads, 4 * 4608, True)
    assert set(architecture(graph).windows) == {None}  # the released model's has 4,096 tokens
    assert found.dropout == {"attention": 0.1, "hidden": 0.0}
    assert WORDS.sort(found.words.used, found.words.unread).unknown == ()
    config["model"]["model_config"] |= {"sliding_window_size": 4096}
    shipped = read(yaml.safe_dump(config), "config.yaml", "nanotron").plan.model
    assert shipped == ("starcoder2-7b" if heads == 4 else None)


def test_the_last_of_two_sections_counts(tmp_path):
    """As PyYAML reads nanotron's own example, and said; a check of it takes the file for no config of a model."""
    text = yaml.safe_dump({
        "parallelism": {"dp": 2, "pp": 1, "tp": 1}, "tokens": {"sequence_length": 64, "micro_batch_size": 1},
        "model": {"model_config": {**SIZES, "moe_config": {"num_experts": 8}}},
    }, default_flow_style=True, width=10_000)  # fmt: skip
    twice = text.replace("moe_config:", "moe_config: {num_experts: 4},\n moe_config:")
    found, once = read(twice, "config.yaml", "nanotron"), read(text, "config.yaml", "nanotron")
    assert found.config == once.config
    assert "config.yaml:2: moe_config appears twice; the last counts, as read by PyYAML." in found.notes
    (tmp_path / "config.yaml").write_text(twice)
    checked = check([str(tmp_path / "config.yaml")], hardware="dgx-h100", gpus=2)
    assert checked.result.step_time_s > 0


def test_a_shipped_model_has_its_head_tied_as_said():
    """SmolLM2 135M has one table; with two, the same sizes are another model."""
    small = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152,
    }  # fmt: skip
    assert "smollm2-135m" in imported({**small, "tie_word_embeddings": True}).plan.model
    found = imported({**small, "tie_word_embeddings": False})
    assert found.plan.model is None
    assert read_config(found.config).num_parameters() == 134_515_008 + 49152 * 576


def test_words_are_sorted():
    """What the stack does anyhow is used, other values decide."""
    plain = {"_attn_implementation": "flash_attention_2", "rope_theta": 1e4, "z_loss_enabled": False}
    found = imported(plain, tp_recompute_allgather=True).words
    account = WORDS.sort(found.used, found.unread)
    assert (account.deciding, account.unknown) == ({}, ())
    found = imported({"_attn_implementation": "sdpa", "_use_doc_masking": True}, tp_recompute_allgather=False).words
    names = {name.rpartition(".")[2] for name in WORDS.sort(found.used, found.unread).deciding}
    assert names == {"_attn_implementation", "_use_doc_masking", "tp_recompute_allgather"}
