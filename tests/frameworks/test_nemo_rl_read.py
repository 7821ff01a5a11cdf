"""NeMo-RL: the update of the policy in its YAML, with what that builds on, and in commands."""

import json

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.megatron_layers_said import predictions_in
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_words

BASE = {
    "grpo.num_prompts_per_step": 32, "policy.model_name": "Qwen/Qwen2.5-7B", "policy.train_global_batch_size": 256,
    "policy.train_micro_batch_size": 2, "policy.max_total_sequence_length": 4096, "cluster.gpus_per_node": 8,
    "cluster.num_nodes": 2, "policy.dtensor_cfg.enabled": True,
}  # fmt: skip
D, M = "policy.dtensor_cfg", "policy.megatron_cfg"
CORE = {
    f"{D}.enabled": False,
    f"{M}.enabled": True,
    f"{M}.tensor_model_parallel_size": 4,
    f"{M}.sequence_parallel": True,
}
APART = "policy.generation.colocated"
PACKED = {"policy.sequence_packing.enabled": True}


@pytest.mark.parametrize(
    ("changes", "finds"),
    [
        # automodel/setup.py: weights in fp32, products in the precision
        ({}, {"stack": "automodel", "zero": 3, "defer_grad_reduce": False, "dp": 16, "micro_batch": 2,
              "parameter_dtype": "fp32",
              "precision": "bf16", "recompute": "none"}),
        ({f"{D}.tensor_parallel_size": 4, f"{D}.sequence_parallel": True, f"{D}.activation_checkpointing": True},
         {"tp": 4, "dp": 4, "sequence_parallel": True, "recompute": "full"}),
        ({f"{D}.context_parallel_size": 2, f"{D}.cpu_offload": True}, {"cp": 2, "dp": 8, "offload_parameters": "cpu"}),
        ({f"{D}.lora_cfg.enabled": True, f"{D}.lora_cfg.dim": 32}, {"lora_rank": 32}),
        ({**PACKED, "policy.sequence_packing.train_mb_tokens": "${mul:${policy.max_total_sequence_length}, 4}"},
         {"micro_batch": 4}),
        (PACKED, {"micro_batch": 2}),
        ({f"{APART}.enabled": False, f"{APART}.resources.num_nodes": 1}, {"dp": 8}),
        # megatron/setup.py: gradients in bf16; recomputation is a switch of its own
        ({**CORE, f"{M}.recompute_granularity": "full"},
         {"stack": "megatron", "tp": 4, "dp": 4, "zero": 1, "grad_dtype": "bf16", "recompute": "none",
          "overlap_grad_reduce": True, "sequence_parallel": True}),
        ({**CORE, f"{M}.activation_checkpointing": True}, {"recompute": "full"}),
        ({**CORE, f"{M}.distributed_data_parallel_config.grad_reduce_in_fp32": True}, {"grad_dtype": "fp32"}),
        ({**CORE, f"{M}.optimizer.optimizer_cpu_offload": True, f"{M}.optimizer.optimizer_offload_fraction": 0.5},
         {"offload_optimizer": "cpu", "offload_ratio": 0.5}),
        ({**CORE, f"{M}.optimizer.optimizer_offload_fraction": 0.0, f"{M}.mtp_num_layers": 0}, {"precision": "bf16"}),
        ({**CORE, f"{M}.fp8_cfg.enabled": True}, {"precision": "fp8_blockwise"}),
        ({**CORE, f"{M}.peft.enabled": True, f"{M}.peft.target_modules": ["linear_qkv"]},
         {"lora_rank": 8, "lora_targets": ["q_proj", "k_proj", "v_proj"]}),
    ],
)  # fmt: skip
def test_configs(changes, finds):
    """The plan of the update, with every option accounted for; options of the other engine have no effect."""
    found = read(json.dumps(nest_names({**BASE, **changes})), "grpo.yaml", "nemo-rl")
    values = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: values.get(key) for key in finds} == finds
    assert (found.plan.model, found.plan.training) == ("qwen2.5-7b", {"seq_len": 4096, "global_batch": 256})
    account = load_reader("nemo-rl").words.sort(found.words.used, found.words.unread)
    assert (account.unknown, dict(account.deciding)) == ((), {})
    assert "A step is one update of the policy" in found.notes[0]


def test_configs_build_on_others_and_commands_change_them(tmp_path):
    """Files from where they lie, those of NeMo-RL's examples by name; a value in place of a section removes it."""
    (tmp_path / "base.yaml").write_text(json.dumps(nest_names({**BASE, "policy.optimizer.name": "torch.optim.SGD"})))
    child = tmp_path / "recipes" / "child.yaml"
    child.parent.mkdir()
    child.write_text("defaults: ../base.yaml\npolicy: {train_global_batch_size: 64, optimizer: null}\n")
    found = given_words([str(child)])
    assert (found.text.target, found.found.plan.optimizer) == ("nemo-rl", "adamw")
    assert found.found.plan.training["global_batch"] == 64
    command = f"uv run examples/run_grpo.py --config {child} policy.train_micro_batch_size=1 ++cluster.num_nodes=1"
    named = given_words([command])
    assert (named.text.target, named.found.plan.mesh.dp, named.found.plan.micro_batch) == ("nemo-rl", 8, 1)
    in_slurm = given_words([f'COMMAND="{command}" CONTAINER=a sbatch --nodes=1 --gres=gpu:8 ray.sub'])
    assert (in_slurm.text.target, in_slurm.launch.world_size) == ("nemo-rl", 8)
    alone = read("uv run examples/run_sft.py cluster.gpus_per_node=8", "train.sh", "nemo-rl")
    assert (alone.plan.model, alone.plan.training) == ("llama-3.2-1b", {"seq_len": 1024, "global_batch": 32})
    known = read(
        "defaults: ../dpo.yaml\npolicy: {model_name: Qwen/Qwen3-8B}\ndpo: {max_num_steps: 2}\n", "dpo.yaml", "nemo-rl"
    )
    assert (known.plan.model, known.plan.micro_batch) == ("qwen3-8b", 2)
    assert "dpo" in load_reader("nemo-rl").words.sort((), known.words.unread).deciding


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        (json.dumps(nest_names({**BASE, f"{D}.tensor_parallel_size": 3})), "a.yaml", "= 16: allowed: a multiple of 3"),
        ("defaults: nowhere.yaml\npolicy: {}\n", "a.yaml", "nowhere.yaml: no such file"),
        ("uv run examples/run_rm.py", "a.sh", "run_rm.py without --config: allowed: --config FILE.yaml"),
        (json.dumps(nest_names({**BASE, "policy.optimizer.name": "my.Thing"})), "a.yaml", "thing: allowed: adam"),
        ("grpo: {seed: 1}\n", "a.yaml", "no policy of NeMo-RL"),
        (json.dumps(nest_names({**BASE, "policy.precision": [1]})), "a.yaml", "precision = .1.: allowed: "),
    ],
)
def test_bad_input(text, name, told):
    """One line with the option and what is allowed."""
    with pytest.raises(UserError, match=told):
        read(text, name, "nemo-rl")


@pytest.mark.parametrize(
    ("model", "layers", "predicted", "decides"),
    [
        ("zai-org/GLM-5", 0, 0, False),
        ("zai-org/GLM-5", 1, 1, False),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 2, 2, False),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 5, 2, True),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 0, 2, True),
    ],
)
def test_layers_that_predict_further_tokens(model, layers, predicted, decides):
    """As many as the config says on Megatron-Core; a number that a family cannot have here decides."""
    changes = {**CORE, f"{M}.mtp_num_layers": layers, "policy.model_name": model}
    found = read(json.dumps(nest_names({**BASE, **changes})), "grpo.yaml", "nemo-rl")
    graph = read_config(found.config) if found.config else load_model(found.plan.model)
    told = load_reader("nemo-rl").words.sort(found.words.used, found.words.unread)
    assert (predictions_in(graph), f"{M}.mtp_num_layers" in told.deciding) == (predicted, decides)
