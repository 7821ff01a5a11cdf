"""Layers that predict further tokens, where launches train transformers' models."""

import pytest

from simpar.architectures.catalogue import config_of
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks import read
from simpar.frameworks.megatron_layers_said import predictions_in

TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 1 --bf16 --max_length 512"
VERL = (
    "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=16 data.train_batch_size=128 "
    "data.max_prompt_length=512 data.max_response_length=512 actor_rollout_ref.actor.ppo_mini_batch_size=128 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
)


@pytest.mark.parametrize(
    ("model", "made"), [("deepseek-v3", "DeepseekV3ForCausalLM"), ("glm-4.5-air", "Glm4MoeForCausalLM")]
)
@pytest.mark.parametrize(
    ("command", "reader"),
    [
        (f"{TRAINER} --model_name_or_path {{}}", "transformers"),
        (f"{VERL} actor_rollout_ref.model.path={{}}", "verl"),
        (f"{VERL} actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.model.path={{}}", "verl"),
    ],
)
def test_transformers_builds_none(model, made, command, reader):
    """It passes over their weights, which its classes tell."""
    layers = config_of(model)["num_hidden_layers"]
    passed_over = getattr(pytest.importorskip("transformers"), made)._keys_to_ignore_on_load_unexpected
    assert any(f".{layers}." in pattern for pattern in passed_over)  # layers count from 0
    found = read(command.format(model), "the command", reader)
    assert predictions_in(read_config(found.config)) == 0
    assert found.config["num_hidden_layers"] == layers
    assert any(f"{model} with 0 layers that predict further tokens" in note for note in found.notes)


def test_families_that_cannot_be_without_them_are_noted():
    """Nemotron 3 Super has two in its pattern."""
    found = read(f"{TRAINER} --model_name_or_path nemotron-3-super", "the command", "transformers")
    assert found.plan.model == "nemotron-3-super"
    assert any("which transformers does not build" in note for note in found.notes)


def test_megatron_builds_them():
    """An actor on Megatron-Core has what its own words say."""
    found = read(
        f"{VERL} actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.model.path=deepseek-v3",
        "the command",
        "verl",
    )
    assert found.plan.model == "deepseek-v3"
