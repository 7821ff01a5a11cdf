"""AMD Primus on Megatron-Bridge: overrides that are handed to recipes, facts of public experiments."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

from .test_primus_titan import experiment

SHAPE = {"global_batch_size": 8, "micro_batch_size": 1, "seq_length": 8192, "train_iters": 200, "log_interval": 1}
LAYOUT = {
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None, "sequence_parallel": False, "use_megatron_fsdp": False,
}  # fmt: skip
TUNED = {"packed_sequence": False, "finetune_lr": 5e-6, "precision_config": "bf16_mixed", "comm_overlap_config": None}


def imported(model, **overrides):
    """What is read, and the account of its words."""
    found = read(experiment(model, "megatron_bridge", **overrides), "experiment.yaml", "primus")
    return found, load_reader("primus").words.sort(found.words.used, found.words.unread)


def test_full_training_of_qwen():
    """AMD-AGI/Primus fd1eeab, .../MI300X/qwen3_32b_sft_posttrain.yaml: all layers recomputed, no overlap."""
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1, "peft": "none"}
    found, account = imported("qwen3_32b.yaml", **SHAPE, **LAYOUT, **TUNED, **full)
    plan = found.plan
    assert (plan.model, plan.stack, plan.mesh.tp, plan.micro_batch) == ("qwen3-32b", "nemo", 2, 1)
    assert (plan.training, plan.memory.recompute) == ({"seq_len": 8192, "global_batch": 8}, "full")
    assert (plan.data_parallel.zero, plan.data_parallel.overlap_grad_reduce) == (1, False)
    assert (plan.numerics.precision, plan.tuning.lora_rank) == ("bf16", None)
    assert not account.unknown
    assert not account.deciding
    assert any("takes no recompute_granularity, recompute_method" in note for note in found.notes)
    assert "recompute_granularity" in account.used


def test_pre_training_of_qwen():
    """AMD-AGI/Primus fd1eeab, .../MI300X/qwen3_8b_pretrain.yaml: 64 sequences of 2,048, no layer recomputed."""
    overrides = {**SHAPE, **LAYOUT, "tensor_model_parallel_size": 1, "global_batch_size": 64, "seq_length": 2048}
    said = {"flavor": "qwen3_8b_pretrain_config", "dataset": None, "mock": True, "enable_primus_turbo": False}
    found, account = imported("qwen3_8b.yaml", **overrides, **said)
    plan = found.plan
    assert (plan.model, plan.memory.recompute, plan.data_parallel.overlap_grad_reduce) == ("qwen3-8b", "none", True)
    assert plan.training == {"seq_len": 2048, "global_batch": 64}
    assert account.is_understood


@pytest.mark.parametrize(
    ("model", "asked", "zero", "rank", "deciding"),
    [
        ("llama31_70b", {"tensor_model_parallel_size": 8, "peft": "lora", "peft_dim": 16}, 0, 16, set()),
        ("llama31_70b", {"tensor_model_parallel_size": 8, "peft": "none"}, 1, None, {"pipeline_model_parallel_size"}),
        ("llama31_70b", {"peft_dim": 8}, 0, 16, {"tensor_model_parallel_size", "peft_dim"}),
        ("llama3_8b", {"tensor_model_parallel_size": 1, "packed_sequence": True}, 0, 8, {"packed_sequence"}),
        ("qwen3_8b", {"peft": "lora"}, 1, 32, set()),
    ],
)
def test_what_a_recipe_may_set_itself_decides(model, asked, zero, rank, deciding):
    """Llama's recipes have a layout of their own, and adapters whose states are whole on every rank."""
    found, account = imported(f"{model}.yaml", **{**SHAPE, **LAYOUT, **TUNED, **asked})
    assert (found.plan.data_parallel.zero, found.plan.tuning.lora_rank) == (zero, rank)
    assert set(account.deciding) == deciding
    assert not account.unknown


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("zebra_llama_1B", {}, "model = zebra_llama_1B: a recipe of Primus or Megatron-Bridge that is not read"),
        ("mamba_130M", {"flavor": "mamba2_130m_pretrain_config"}, "flavor = mamba2_130m_pretrain_config: a recipe"),
        ("qwen3_8b", {"tensor_model_parallel_size": None}, "tensor_model_parallel_size is missing: qwen3_8b_fine"),
        ("qwen3_8b", {"peft": "dora"}, "peft = dora: allowed: LoRA"),
        ("", {}, "model = none: a recipe"),
    ],
)
def test_other_recipes_are_refused_by_name(model, change, words):
    """Hybrids of Primus' own, and what a recipe has from a file that is not here."""
    with pytest.raises(UserError, match=words):
        imported(model and f"{model}.yaml", **{**SHAPE, **LAYOUT, **change})
