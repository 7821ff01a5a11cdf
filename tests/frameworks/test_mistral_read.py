"""mistral-finetune: its YAML as a plan."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words

CONFIG = {
    "data": {"instruct_data": "a.jsonl", "data": "", "eval_instruct_data": ""}, "model_id_or_path": "/models/7B",
    "lora": {"rank": 64}, "seq_len": 8192, "batch_size": 2, "num_microbatches": 4, "max_steps": 300,
    "optim": {"lr": 6e-5, "weight_decay": 0.1, "pct_start": 0.05}, "seed": 0, "log_freq": 1, "save_adapters": True,
    "run_dir": "/runs/1", "wandb": {"project": "", "offline": False},
}  # fmt: skip


def told(**changed):
    """What is read of the config with other values."""
    return read(yaml.safe_dump({**CONFIG, **changed}), "7B.yaml", "mistral-finetune")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"lora_rank": 64, "frozen_dtype": "bf16", "micro_batch": 2, "global_batch": 64, "recompute": "full",
              "zero": 3, "defer_grad_reduce": False, "attention_kernel": "flash2", "precision": "bf16"}),
        ({"lora": {}}, {"lora_rank": 16}),
        ({"lora": {"enable": False}}, {"lora_rank": None, "master_weights": True, "parameter_dtype": "bf16"}),
        ({"checkpoint": False, "batch_size": 1}, {"recompute": "none", "micro_batch": 1}),
    ],
)  # fmt: skip
def test_a_config_over_its_defaults(changed, expected):
    """Adapters of every product, checkpointing, whole sharding, packed documents."""
    found = told(**changed)
    values = {**found.plan.flat_values(), "global_batch": found.global_batch(8)}
    assert {key: values.get(key) for key in expected} == expected
    assert load_reader("mistral-finetune").words.sort(found.words.used, found.words.unread).is_understood
    assert [each.key for each in found.assumed] == ["documents.mean"]
    assert found.asks == {"model": "The model is /models/7B: give --model."}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seq_len": float("inf")}, r"7B.yaml:19: seq_len = inf: allowed: a positive integer"),
        ({"batch_size": float("nan")}, r"7B.yaml:1: batch_size = nan: allowed: a positive integer"),
        ({"lora": {"rank": "many"}}, "lora.rank = 'many'"),
        ({"lora": 5}, "lora = 5: allowed: a mapping"),
        ({"lora": "64"}, "lora = '64': allowed: a mapping, such as rank: 64"),
        ({"data": "a.jsonl"}, "no config of mistral-finetune"),
    ],
)
def test_what_it_has_not_is_refused(changed, message):
    """By file, option and value."""
    with pytest.raises(UserError, match=message):
        told(**changed)


def test_a_command_names_its_config(tmp_path, monkeypatch):
    """Behind the module; a missing one is said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7B.yaml").write_text(yaml.safe_dump(CONFIG))
    found = given_words(["--", "torchrun", "--nproc-per-node", "2", "-m", "train", "7B.yaml"])
    assert (found.text.target, found.launch.world_size) == ("mistral-finetune", 2)
    with pytest.raises(UserError, match=r"12B\.yaml: no such file"):
        given_words(["--", "torchrun", "--nproc-per-node", "2", "-m", "train", "12B.yaml"])
