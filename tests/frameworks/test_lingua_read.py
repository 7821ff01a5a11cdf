"""Lingua: its YAML, commands that name one, and what it takes where nothing is said."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words


def config(**sections):
    """A config of Lingua with some values changed."""
    result = {
        "name": "7b", "steps": 100_000, "grad_acc_steps": 2, "optim": {"lr": 1.0e-3, "weight_decay": 0.1},
        "distributed": {"fsdp_type": "full_shard", "compile": True, "model_dtype": "bf16", "tp_size": 1},
        "model": {"dim": 4096, "n_layers": 32, "n_heads": 32, "ffn_dim_multiplier": 1.0, "multiple_of": 256},
        "data": {"batch_size": 2, "seq_len": 4096, "n_views": 2,
                 "tokenizer": {"name": "tiktoken", "path": "tokenizers/cl_toplang_128k.tiktoken"}},
        "logging": {"freq": 1},
    }  # fmt: skip
    for section, values in sections.items():
        result[section] = {**result[section], **values} if isinstance(values, dict) else values
    return yaml.safe_dump(result)


def test_a_config():
    """An MLP of 8/3 of the features in whole multiples; parameters stay gathered; a batch of every rank."""
    found = read(config(), "llama_7B.yaml", "lingua")
    assert found.config is not None
    asked = {"intermediate_size": 11008, "vocab_size": 128256, "num_key_value_heads": 32, "head_dim": 128}
    assert {key: found.config[key] for key in asked} == asked
    values = found.plan.flat_values()
    assert (values["zero"], values["micro_batch"], values["recompute"], found.per_replica) == (2, 2, "none", 4)
    assert load_reader("lingua").words.sort(found.words.used, found.words.unread).is_understood


def test_a_command(tmp_path):
    """Words of the command over the config, without those of stool; the config lies beside."""
    (tmp_path / "a.yaml").write_text(config())
    command = (
        f"python -m lingua.stool script=apps.main.train config={tmp_path}/a.yaml nodes=4 data.batch_size=1 qos=low"
    )
    result = given_words(command.split())
    assert (result.text.target, result.found.plan.micro_batch) == ("lingua", 1)
    account = load_reader("lingua").words.sort(result.found.words.used, result.found.words.unread)
    assert account.is_understood


def test_no_shards_and_shards_of_a_node():
    """Replicas keep all; ranks that share the states in groups are a word that decides."""
    assert read(config(distributed={"fsdp_type": "no_shard"}), "a.yaml", "lingua").plan.data_parallel.zero == 0
    found = read(config(distributed={"dp_shard": 8}, model={"vocab_size": 32000}), "a.yaml", "lingua")
    assert found.config is not None
    assert found.config["vocab_size"] == 32000
    account = load_reader("lingua").words.sort(found.words.used, found.words.unread)
    assert [*account.deciding] == ["distributed.dp_shard"]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"conv_size": 4}}, r"model\.conv_size: a model of another app than main"),
        ({"model": {"n_heads": None}}, r"model\.n_heads: missing; allowed: n_heads or head_dim"),
        ({"data": {"tokenizer": {"name": "sp", "path": "mine.model"}}}, "the words of data.tokenizer sp mine.model"),
        ({"distributed": {"fsdp_type": "zero"}}, "distributed.fsdp_type = .zero.: allowed: full_shard, no_shard"),
    ],
)
def test_what_is_refused(sections, said):
    """Other apps' models, and what the config leaves open."""
    with pytest.raises(UserError, match=said):
        read(config(**sections), "a.yaml", "lingua")
