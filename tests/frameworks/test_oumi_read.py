"""Oumi: its YAML, its commands, and the devices that they start."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_text, given_words
from tests.gate import some

FULL = {
    "model.model_name": "meta-llama/Llama-3.1-8B-Instruct", "model.model_max_length": 8192,
    "model.torch_dtype_str": "bfloat16", "model.attn_implementation": "sdpa", "training.trainer_type": "TRL_SFT",
    "training.per_device_train_batch_size": 2, "training.enable_gradient_checkpointing": True,
    "training.optimizer": "adamw_torch_fused", "training.save_steps": 800,
}  # fmt: skip
FSDP = {"fsdp.enable_fsdp": True, "fsdp.auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
LORA = {"training.use_peft": True, "peft.lora_r": 16, "peft.lora_target_modules": ["q_proj", "v_proj"]}
DEEPSPEED = {"deepspeed.enable_deepspeed": True, "deepspeed.zero_stage": "ZERO_3", "deepspeed.precision": "BF16"}


def config(**values):
    """A config with options by their dotted names, whose dots are two underscores."""
    return yaml.safe_dump(nest_names({**FULL, **{key.replace("__", "."): told for key, told in values.items()}}))


@pytest.mark.parametrize(
    ("values", "finds"),
    some([
        ({}, {"stack": "ddp", "micro_batch": 2, "recompute": "full", "parameter_dtype": "bf16",
              "moment_dtype": "bf16"}),
        (FSDP, {"stack": "huggingface", "zero": 3, "recompute": "full", "parameter_dtype": "bf16"}),
        ({**FSDP, "fsdp.sharding_strategy": "SHARD_GRAD_OP"}, {"zero": 2}),
        ({**FSDP, "fsdp.cpu_offload": True}, {"offload_parameters": "cpu"}),
        # mixed precision wants weights in fp32 (TrainingConfig.__post_init__)
        ({"model.torch_dtype_str": "float32", "training.mixed_precision_dtype": "BF16"},
         {"precision": "bf16", "parameter_dtype": None, "moment_dtype": None}),
        ({"model.torch_dtype_str": "float32"}, {"precision": "fp32"}),
        (LORA, {"lora_rank": 16, "lora_targets": ["q_proj", "v_proj"], "frozen_dtype": "bf16", "lora_dropout": 0.0}),
        ({**LORA, "peft.q_lora": True, "peft.bnb_4bit_compute_dtype": "bfloat16"}, {"frozen_dtype": "nf4"}),
        ({**LORA, "peft.q_lora": True, "peft.q_lora_bits": 8}, {"frozen_dtype": "int8"}),
        ({**LORA, "training.use_peft": False}, {"lora_rank": None}),
        (DEEPSPEED, {"stack": "deepspeed", "zero": 3, "moment_dtype": None}),
        ({**DEEPSPEED, "deepspeed.offload_optimizer.device": "CPU"}, {"offload_optimizer": "cpu"}),
        ({"model.enable_liger_kernel": True}, {"fused_kernels": "norm+activation+rope", "loss_chunks": 16}),
        ({"model.enable_liger_kernel": True, "training.compile": True},
         {"fused_kernels": "compiled", "loss_chunks": 16}),
    ], 3, tuples=True),
)  # fmt: skip
def test_configs(values, finds):
    """What its sections become, with every word accounted for."""
    found = read(yaml.safe_dump(nest_names({**FULL, **values})), "train.yaml", "oumi")
    said = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: said.get(key) for key in finds} == finds
    assert (found.plan.model, found.plan.training, found.per_replica) == ("llama-3.1-8b", {"seq_len": 8192}, 2)
    assert load_reader("oumi").words.sort(found.words.used, found.words.unread).is_understood


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({**LORA, "peft.q_lora": True}, "peft.bnb_4bit_compute_dtype"),  # fp32 where nothing is said
        ({**LORA, "peft.lora_modules_to_save": ["lm_head"]}, "peft.lora_modules_to_save"),
        ({"data.train.collator_name": "vision_language_sft"}, "data.train.collator_name"),
        ({"model.freeze_layers": ["model.layers.0"]}, "model.freeze_layers"),
    ],
)
def test_words_that_decide(values, word):
    """What is not modelled is named as the file spells it."""
    found = read(yaml.safe_dump(nest_names({**FULL, **values})), "train.yaml", "oumi")
    account = load_reader("oumi").words.sort(found.words.used, found.words.unread)
    assert (set(account.deciding), account.unknown) == ({word}, ())


@pytest.mark.parametrize(
    ("command", "nodes", "devices", "sequence"),
    [
        ("oumi distributed torchrun -m oumi train -c train.yaml", 1, None, 8192),
        ("CUDA_VISIBLE_DEVICES=0,1 oumi distributed torchrun -m oumi train -c train.yaml", 1, 2, 8192),
        ("oumi train --config oumi://train.yaml --model.model_max_length 4096", 1, 1, 4096),
        ("torchrun --nproc-per-node 4 -m oumi train -c train.yaml model.model_max_length=1024", 1, 4, 1024),
        ("oumi distributed accelerate launch --use_fsdp -m oumi train -c train.yaml", 1, None, 8192),
    ],
)
def test_commands(command, nodes, devices, sequence, tmp_path, monkeypatch):
    """All devices of a node behind ``oumi distributed``, one process behind ``oumi train`` alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(config())
    found = given_text(f"{command}\n", "job.sh")
    assert (found.text.target, found.launch.nodes, found.launch.per_node) == ("oumi", nodes, devices)
    assert found.found.plan.training == {"seq_len": sequence}
    assert found.found.plan.data_parallel.zero == (3 if "use_fsdp" in command else 0)


def test_a_task_of_skypilot_says_its_nodes(tmp_path, monkeypatch):
    """They are what ``oumi distributed`` tells torchrun; shards of HYBRID_SHARD are those of a node."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(config(**{**FSDP, "fsdp.sharding_strategy": "HYBRID_SHARD"}))
    task = {"num_nodes": 2, "resources": {"accelerators": "A100:4"},
            "run": "oumi distributed torchrun -m oumi train -c train.yaml"}  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(task))
    found = given_words(["job.yaml"])
    assert (found.launch.nodes, found.launch.per_node) == (2, 4)
    assert found.found.in_copies(found.found.plan, 8, 2).data_parallel.hsdp == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (config(training__trainer_type="TRL_DPO"), "training.trainer_type = 'TRL_DPO': allowed: trl_sft, hf, oumi"),
        (config(deepspeed__enable_deepspeed=True, deepspeed__zero_stage="ZERO_4"), "deepspeed.zero_stage = 'ZERO_4'"),
        ("model: {}\ntraining: {}\n", "no config of Oumi"),
    ],
)
def test_what_is_refused(text, words):
    """In one line, with the option and its value."""
    with pytest.raises(UserError) as error:
        read(text, "train.yaml", "oumi")
    assert words in str(error.value)


def test_other_commands_of_its_program():
    """They train nothing here."""
    with pytest.raises(UserError, match="oumi launch up: allowed: oumi train -c FILE"):
        given_text("oumi launch up -c job.yaml\n", "job.sh")
