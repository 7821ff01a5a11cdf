"""ArcticTraining: its YAML on DeepSpeed, and commands that hand on words of DeepSpeed's launcher."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_text
from tests.gate import some

BASE = {
    "type": "sft", "micro_batch_size": 2, "gradient_accumulation_steps": 4, "data.sources": ["a"],
    "model.name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "model.attn_implementation": "flash_attention_2",
    "data.max_length": "8_192", "deepspeed.zero_optimization.stage": 3, "optimizer.lr": 1e-5,
}  # fmt: skip
LORA = {"model.peft_config.peft_type": "Lora", "model.peft_config.r": 16,
        "model.peft_config.target_modules": ["q_proj", "v_proj"], "model.peft_config.lora_alpha": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "finds"),
    some([
        ({}, {"stack": "deepspeed", "zero": 3, "micro_batch": 2, "precision": "bf16", "recompute": "full",
              "attention_kernel": "flash2", "optimizer_kernels": "fused", "moment_dtype": None}),
        ({"model.disable_activation_checkpoint": True}, {"recompute": "none"}),
        ({"model.type": "liger"}, {"fused_kernels": "norm+activation+rope", "loss_chunks": 16}),
        ({"sequence_parallel_size": 8, "deepspeed.seq_parallel_communication_data_type": "bf16"},
         {"cp": 8, "cp_method": "ulysses"}),
        ({"activation_checkpoint_cpu_offload": True}, {"offload_activations": 1.0}),
        ({"optimizer.type": "cpu_adam", "deepspeed.zero_optimization.offload_optimizer.device": "cpu"},
         {"offload_optimizer": "cpu"}),
        (LORA, {"lora_rank": 16, "lora_targets": ["q_proj", "v_proj"], "lora_dropout": 0.0}),
    ], 3, tuples=True),
)  # fmt: skip
def test_configs(values, finds):
    """What its sections become, with every word accounted for."""
    found = read(yaml.safe_dump(nest_names({**BASE, **values})), "run.yml", "arctic-training")
    said = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: said.get(key) for key in finds} == finds
    assert (found.plan.model, found.plan.training, found.per_replica) == ("llama-3.1-8b", {"seq_len": 8192}, 8)
    assert load_reader("arctic-training").words.sort(found.words.used, found.words.unread).is_understood


@pytest.mark.parametrize(
    ("values", "word"),
    [({"tiled_mlp_compute": True}, "tiled_mlp_compute"), ({"expert_parallel_size": 8}, "expert_parallel_size")],
)
def test_words_that_decide(values, word):
    """What is not modelled is named."""
    found = read(yaml.safe_dump(nest_names({**BASE, **values})), "run.yml", "arctic-training")
    account = load_reader("arctic-training").words.sort(found.words.used, found.words.unread)
    assert (list(account.deciding), account.unknown) == ([word], ())


@pytest.mark.parametrize(
    ("kind", "why"), [("dpo", "preferences and rewards are not modelled"), ("swiftkv", "others train something else")]
)
def test_other_types_are_refused(kind, why):
    """By name, as what they train is not the next token."""
    with pytest.raises(UserError, match=f"type = {kind}: allowed: sft, causal; {why}"):
        read(yaml.safe_dump(nest_names({**BASE, "type": kind})), "run.yml", "arctic-training")


def test_its_program_starts_deepspeed(tmp_path, monkeypatch):
    """Words behind the config are those of its launcher."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text(yaml.safe_dump(nest_names(BASE)))
    for words, nodes, devices in (("", 1, None), ("--num_gpus 1", 1, 1), ("--num_nodes 2 --num_gpus 8", 2, 8)):
        found = given_text(f"arctic_training run.yml {words}\n", "job.sh")
        assert (found.text.target, found.launch.nodes, found.launch.per_node) == ("arctic-training", nodes, devices)
