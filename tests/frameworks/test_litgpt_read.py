"""LitGPT: its configs and commands as a plan."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read

LORA = {
    "checkpoint_dir": "checkpoints/meta-llama/Meta-Llama-3-8B", "precision": "bf16-true", "devices": 1,
    "lora_r": 32, "lora_key": True, "lora_mlp": False, "data": {"class_path": "litgpt.data.Alpaca2k"},
    "train": {"global_batch_size": 8, "micro_batch_size": 2, "max_seq_length": 512, "epochs": 2},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-4}},
}  # fmt: skip
COMMAND = "litgpt finetune_full --config full.yaml --devices 4"


def config(**values):
    """What is read of the config with other values."""
    return read(json.dumps({**LORA, **values}), "lora.json", "litgpt")


def understood(found):
    """Whether every word is."""
    return load_reader("litgpt").words.sort(found.words.used, found.words.unread).is_understood


def test_adapters_and_what_stands_beside_them():
    """Projections by their switches, of which two are on; 4 bits on one device, with bitsandbytes' optimizer."""
    found = config()
    values = found.plan.flat_values()
    assert (found.plan.model, values["lora_rank"], values["dp"], values["zero"]) == ("llama-3-8b", 32, 1, 0)
    assert values["lora_targets"] == ["q_proj", "k_proj", "v_proj"]
    assert (values["micro_batch"], found.plan.training) == (2, {"global_batch": 8, "seq_len": 512})
    assert (values["frozen_dtype"], values["recompute"], values["optimizer"]) == ("bf16", "none", "adamw")
    assert understood(found)
    quantized = config(quantize="bnb.nf4").plan.flat_values()
    assert (quantized["frozen_dtype"], quantized["optimizer"]) == ("nf4", "paged_adamw")
    assert config(precision=None).plan.flat_values()["frozen_dtype"] == "fp32"  # mixed: widened products alone
    assert not understood(config(lora_head=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantize": "bnb.nf4", "devices": 2}, "quantize = bnb.nf4: allowed: one device"),
        ({"lora_key": False, "lora_query": False, "lora_value": False}, "at least one of lora_query"),
        ({"precision": "8-true"}, "precision = '8-true': allowed: bf16-true"),
        ({"optimizer": "galore_torch.GaLoreAdamW8bit"}, "optimizer = galore_torch"),
    ],
)
def test_what_it_does_not_run_is_refused(changes, message):
    """By the option and its value."""
    with pytest.raises(UserError, match=message):
        config(**changes)


def test_a_command_lies_over_its_config(tmp_path):
    """Several devices are FSDP with recomputation; parameters of 16 bits have no copies."""
    full = {key: value for key, value in LORA.items() if not key.startswith("lora_")}
    (tmp_path / "full.yaml").write_text(json.dumps({**full, "devices": 8}))
    found = read(f"{COMMAND} --train.micro_batch_size 1 --data Alpaca", str(tmp_path / "job.sh"), "litgpt")
    values = found.plan.flat_values()
    assert (values["dp"], values["zero"], values["recompute"], values["micro_batch"]) == (4, 3, "full", 1)
    assert (values["parameter_dtype"], values["master_weights"]) == ("bf16", False)
    assert "lora_rank" not in values
    assert understood(found)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("litgpt finetune_lora tiiuae/falcon-7b", {"model": "falcon-7b", "dp": 1, "global_batch": 16, "lora_rank": 8}),
        ("litgpt finetune lora tiiuae/falcon-7b --devices 2", {"model": "falcon-7b", "dp": 2, "lora_rank": 8}),
        ("litgpt finetune meta-llama/Llama-3.1-8B", {"model": "llama-3.1-8b", "lora_rank": 8}),
        ("litgpt pretrain tiny-llama-1.1b --num_nodes 2 --train.max_seq_length 2048",
         {"model": "tinyllama-1.1b", "dp": None, "hsdp": 2, "zero": 3, "defer_grad_reduce": True,
          "micro_batch": 4, "global_batch": 512,
          "fused_kernels": "compiled"}),
    ],
)  # fmt: skip
def test_commands_without_a_config(command, expected):
    """Defaults of what is done; pretraining takes all devices, and replicas over nodes."""
    plan = read(command, "job.sh", "litgpt").plan
    values = {**plan.flat_values(), "model": plan.model, **(plan.training or {})}
    assert {key: values.get(key) for key in expected} == expected


def test_other_commands_are_none_of_it():
    """Adapters of other kinds are refused; what trains nothing is not known."""
    for does, reader in {"generate": None, "serve": None, "evaluate": None, "finetune_adapter": "litgpt"}.items():
        words = ["litgpt", does, "a"]
        assert next((name for name in READERS if load_reader(name).starts(words)), None) == reader
    with pytest.raises(UserError, match="litgpt finetune_adapter: allowed: finetune,"):
        read("litgpt finetune_adapter a", "job.sh", "litgpt")
    sized = {**LORA, "model_config": {"n_layer": 12}}
    assert read(json.dumps(sized), "a.json", "litgpt").plan.model is None
