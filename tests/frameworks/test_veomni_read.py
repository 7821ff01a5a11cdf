"""VeOmni: the YAML of its tasks on texts, of today's and of earlier releases, and commands that name one."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_text
from tests.gate import some

BASE = {
    "model.model_path": "Qwen/Qwen3-8B", "data.train_path": "texts", "data.max_seq_len": 4096,
    "train.accelerator.fsdp_config.fsdp_mode": "fsdp2", "train.global_batch_size": 64, "train.micro_batch_size": 2,
}  # fmt: skip
EARLIER = {
    "model.model_path": "Qwen/Qwen3-8B", "model.attn_implementation": "flash_attention_2", "data.max_seq_len": 4096,
    "train.data_parallel_mode": "fsdp2", "train.enable_mixed_precision": True, "train.lr": 1e-5,
    "train.enable_gradient_checkpointing": False, "train.ulysses_parallel_size": 4, "train.global_batch_size": 64,
    "train.rmpad_with_pos_ids": True, "train.save_steps": 10,
}  # fmt: skip
ACCELERATOR = "train.accelerator."


@pytest.mark.parametrize(
    ("values", "finds"),
    some([
        # parameters in fp32, products in bf16, gradients reduced in fp32 (MixedPrecisionConfig)
        ({}, {"stack": "fsdp", "zero": 3, "micro_batch": 2, "precision": "bf16", "reduce_dtype": "fp32",
              "parameter_dtype": None, "recompute": "full", "fused_kernels": "norm+activation+rope",
              "loss_chunks": 32}),
        ({f"{ACCELERATOR}fsdp_config.mixed_precision.enable": False},
         {"parameter_dtype": "bf16", "moment_dtype": "bf16"}),
        ({f"{ACCELERATOR}fsdp_config.reshard_after_forward": False}, {"zero": 2}),
        ({f"{ACCELERATOR}fsdp_config.fsdp_mode": "ddp"}, {"stack": "ddp", "zero": 0}),
        ({f"{ACCELERATOR}ulysses_size": 4}, {"cp": 4, "cp_method": "ulysses"}),
        ({f"{ACCELERATOR}dp_replicate_size": 2}, {"hsdp": 2}),
        ({f"{ACCELERATOR}offload.enable_activation": True}, {"offload_activations": 1.0, "loss_chunks": 32}),
        ({"train.gradient_checkpointing.enable": False}, {"recompute": "none"}),
        ({"model.ops_implementation.cross_entropy_loss_implementation": "eager"}, {"loss_chunks": None}),
        ({"model.ops_implementation.rms_norm_implementation": "eager"}, {"fused_kernels": "activation+rope"}),
        ({"train.optimizer.type": "muon"}, {"optimizer": "muon"}),
    ], 3, tuples=True),
)  # fmt: skip
def test_configs(values, finds):
    """What its sections become, with every word accounted for."""
    found = read(yaml.safe_dump(nest_names({**BASE, **values})), "train.yaml", "veomni")
    said = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: said.get(key) for key in finds} == finds
    assert (found.plan.model, found.plan.training) == ("qwen3-8b", {"seq_len": 4096, "global_batch": 64})
    assert load_reader("veomni").words.sort(found.words.used, found.words.unread).is_understood
    assert [each.key for each in found.assumed] == ["documents.mean"]


def test_configs_of_earlier_releases():
    """Flat names, no kernels of Liger, and words as the file spells them."""
    found = read(yaml.safe_dump(nest_names(EARLIER)), "train.yaml", "veomni")
    plan = found.plan
    assert (plan.stack, plan.mesh.cp, plan.memory.recompute) == ("fsdp", 4, "none")
    assert (plan.execution.fused_kernels, plan.execution.loss_chunks) == ("none", None)
    assert set(found.words.used) | set(found.words.unread) == set(EARLIER)
    assert load_reader("veomni").words.sort(found.words.used, found.words.unread).is_understood


def test_adapters_beside_shards_in_fp32():
    """``lora_config``; FSDP keeps the frozen weights as it keeps all parameters."""
    told = {"model.lora_config.rank": 64, "model.lora_config.lora_modules": ["q_proj", "v_proj"]}
    found = read(yaml.safe_dump(nest_names({**BASE, **told})), "train.yaml", "veomni")
    assert (found.plan.tuning.lora_rank, found.plan.tuning.lora_targets) == (64, ("q_proj", "v_proj"))
    assert (found.plan.tuning.frozen_dtype, found.plan.execution.parameter_dtype) == ("fp32", None)
    assert load_reader("veomni").words.sort(found.words.used, found.words.unread).is_understood


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({f"{ACCELERATOR}tp_size": 2}, "train.accelerator.tp_size: allowed: 1"),
        ({"data.data_type": "dpo"}, "data.data_type = dpo: allowed: plaintext, conversation; others"),
        ({"model.lora_config.lora_modules": ["router"]}, "model.lora_config.lora_modules = "),
    ],
)
def test_what_is_refused(values, words):
    """In one line, with the option and its value."""
    with pytest.raises(UserError) as error:
        read(yaml.safe_dump(nest_names({**BASE, **values})), "train.yaml", "veomni")
    assert words in str(error.value)


def test_a_command_with_flags_over_its_config(tmp_path, monkeypatch):
    """As torchrun or its train.sh starts the task on texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3.yaml").write_text(yaml.safe_dump(nest_names(BASE)))
    for start in ("torchrun --nproc-per-node 8", "NPROC_PER_NODE=8 bash train.sh"):
        found = given_text(f"{start} tasks/train_text.py qwen3.yaml --train.micro_batch_size 4\n", "job.sh")
        assert (found.text.target, found.found.plan.micro_batch, found.launch.per_node) == ("veomni", 4, 8)


@pytest.mark.parametrize(("value", "decides"), [(True, False), (False, True)])
def test_parameters_that_stay_between_microbatches(value, decides):
    """``reshard_after_backward`` is on by default: off, it decides."""
    word = f"{ACCELERATOR}fsdp_config.reshard_after_backward"
    found = read(yaml.safe_dump(nest_names({**BASE, word: value})), "train.yaml", "veomni")
    account = load_reader("veomni").words.sort(found.words.used, found.words.unread)
    assert (word in account.deciding) is decides


@pytest.mark.parametrize(
    ("model", "frozen"), [("Qwen/Qwen2.5-VL-7B-Instruct", (True, True)), ("Qwen/Qwen3-8B", (False, False))]
)
def test_a_tower_that_is_left_as_it_is(model, frozen):
    """A tower and its merger are one module, which a switch freezes; models of text have none."""
    for is_on in (True, False):
        text = yaml.safe_dump(nest_names({**BASE, "model.model_path": model, "train.freeze_vit": is_on}))
        tuning = read(text, "train.yaml", "veomni").plan.tuning
        assert (tuning.frozen_tower, tuning.frozen_connector) == (frozen if is_on else (False, False))
