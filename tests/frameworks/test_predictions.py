"""Layers that predict further tokens, where launches train transformers' models."""

import pytest

from simpar.architectures.catalogue import config_of
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks import load_reader, read
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


RECIPE = """
def mine_pretrain_config():
    cfg = ConfigContainer(
        model=AutoBridge.from_hf_pretrained("{hub}").to_megatron_provider(load_weights=False),
        train=TrainingConfig(micro_batch_size=1, global_batch_size=64), mixed_precision="bf16_mixed",
    )
    cfg.model.seq_length = 4096
    {line}
    return cfg
"""


@pytest.mark.parametrize(
    ("hub", "line", "size", "value"),
    [
        ("Qwen/Qwen3-30B-A3B", "num_layers = 24", "layers", 24),
        ("Qwen/Qwen3-30B-A3B", "hidden_size = 4096", "hidden", 4096),
        ("Qwen/Qwen3-30B-A3B", "num_attention_heads = 16", "heads", 16),
        ("Qwen/Qwen3-30B-A3B", "num_query_groups = 8", "kv_heads", 8),
        ("Qwen/Qwen3-30B-A3B", "num_moe_experts = 64", "num_experts", 64),
        ("Qwen/Qwen3-30B-A3B", "moe_ffn_hidden_size = 1536", "expert_ffn", 1536),
        ("Qwen/Qwen3-30B-A3B", "moe_router_topk = 2", "topk", 2),
        ("Qwen/Qwen3-30B-A3B", "kv_channels = 256", "head_dim", 256),
        ("Qwen/Qwen3-30B-A3B", "vocab_size = 32000", "vocab", 32000),
        ("Qwen/Qwen3-8B", "ffn_hidden_size = 8192", "ffn", 8192),
        ("deepseek-ai/DeepSeek-V3", "q_lora_rank = 768", "q_rank", 768),
    ],
)
def test_a_bridge_recipe_of_other_sizes_than_the_hubs(hub, line, size, value):
    """Half of the layers was answered as the whole model, under OK."""
    found = read(RECIPE.format(hub=hub, line=f"cfg.model.{line}"), "mine.py", "megatron-bridge")
    graph = read_config(found.config)
    dims = {**graph.dims, "layers": sum(kind not in graph.auxiliary for kind in graph.layers)}
    assert (found.plan.model, dims[size]) == (None, value)
    field = f"model.{line.partition(' ')[0]}"
    assert field in found.words.used
    assert field not in found.words.unread
    assert any(f"where the text says {field} {value}" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "decides"),
    [
        ("num_layers = 48", set()),
        ("vocab_size = 152064", set()),  # with padding
        ("ffn_hidden_size = 6144", set()),  # of layers without experts, which it has none of
        ("moe_shared_expert_intermediate_size = 768", {"model.moe_shared_expert_intermediate_size"}),
    ],
)
def test_what_the_hubs_model_has_or_cannot_have(line, decides):
    """Its own sizes change nothing; shared experts, which its family has not, decide."""
    text = RECIPE.format(hub="Qwen/Qwen3-30B-A3B", line=f"cfg.model.{line}")
    found = read(text, "mine.py", "megatron-bridge")
    assert (found.plan.model, found.config) == ("qwen3-30b-a3b", None)
    words = load_reader("megatron-bridge").words.sort(found.words.used, found.words.unread)
    assert {*words.deciding} == decides


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        ("actor.megatron.override_transformer_config.num_layers=4", True),
        ("actor.megatron.override_transformer_config.num_layers=48", False),
        ("actor.megatron.override_transformer_config.moe_router_topk=2", True),
        ("actor.megatron.override_transformer_config.moe_router_topk=8", False),
        ("model.override_config.num_hidden_layers=4", True),
        ("model.override_config.model_config.num_hidden_layers=4", True),
        ("model.override_config.max_position_embeddings=4096", False),
    ],
)
def test_a_policy_of_other_sizes_than_its_folders(words, decides):
    """They are laid over the config of the folder; four layers of 48 were answered as the whole model, under OK."""
    model = (
        "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.actor.strategy=megatron "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1"
    )
    found = read(f"{VERL} {model} +actor_rollout_ref.{words}", "the command", "verl")
    deciding = load_reader("verl").words.sort(found.words.used, found.words.unread).deciding
    assert {*deciding} == ({f"actor_rollout_ref.{words.partition('=')[0]}"} if decides else set())
