"""Words of tables for sharding, software and overlap: what they are read as, and what is said of it."""

from __future__ import annotations

import pytest

from simpar.validation.cells import Unmodelled
from simpar.validation.rows import case, read_measurements
from tests.validation.test_validate import ROW

MIXTURE = {
    "model_name": "Qwen3-30B-A3B", "n_layers": "", "hidden": "", "n_heads": "", "n_kv_heads": "", "ffn_hidden": "",
    "vocab": "", "tp": "1", "ep": "16", "dp": "16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "zero", "hsdp"),
    [
        ("zero_1", 1, None), ("ZeRO1", 1, None), ("dist. optimizer", 1, None), ("ZeRO-2", 2, None),
        ("ZeRO-1 within 4 ranks of a node, replicated between nodes", 1, 2), ("FSDP2", 3, 1), ("fsdp-v2", 3, 1),
        ("FSDP 2", 3, 4), ("full-shard", 3, None), ("SHARD_GRAD_OP", 2, None), ("HSDP", 3, 1), ("no-shard", 0, None),
        ("FSDP (ici_fsdp=-1)", 3, 1), ("FSDP (ici_fsdp 4 x dcn_fsdp 2)", 3, 1), ("DDP", 0, None),
        ("FSDP4", 3, 2), ("4-way FSDP inside a pod", 3, 2), ("FSDP2 degree 4", 3, 2), ("FSDP2 full shard", 3, 1),
        ("distributed optimizer (ZeRO-1)", 1, None), ("ZeRO-2-like FSDP", 2, None), ("DDP (no ZeRO)", 0, None),
    ],
)  # fmt: skip
def test_usual_words_for_sharding(words: str, zero: int, hsdp: int | None) -> None:
    """Eight replicas: a version of FSDP is no degree, and shards within four ranks have two copies."""
    plan = case({**ROW, "zero_stage_or_fsdp": words}).plan
    assert (plan["zero"], plan.get("hsdp")) == (zero, hsdp)


def test_deepspeed_shards_the_states_of_bf16_at_stage_0() -> None:
    """And keeps whole gradients in fp32; in fp16, where nothing is said, and elsewhere a stage is what it says."""
    row = {**ROW, "stack": "megatron-deepspeed", "zero_stage_or_fsdp": "0"}
    plan = case(row).plan
    assert (plan["zero"], plan["grad_dtype"], plan["reduce_dtype"]) == (1, "fp32", "fp32")
    for other in ({"precision": "fp16"}, {"precision": ""}, {"stack": "megatron"}):
        plan = case({**row, **other}).plan
        assert (plan["zero"], plan.get("grad_dtype")) == (0, None)


@pytest.mark.parametrize("word", ["nf4", "QLoRA", "bnb 4bit"])
def test_four_bits_are_those_of_frozen_weights(word: str) -> None:
    """Products beside them are in bf16; without adapters nothing would be trained."""
    plan = case({**ROW, "precision": word, "lora_rank": "64"}).plan
    assert (plan["precision"], plan["frozen_dtype"], plan["lora_rank"]) == ("bf16", "nf4", 64)
    with pytest.raises(Unmodelled, match="of frozen weights: lora_rank not published"):
        case({**ROW, "precision": word})


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("adamw_torch", {"optimizer": "adamw", "optimizer_kernels": "foreach"}),
        ("adamw_torch_fused", {"optimizer": "adamw", "optimizer_kernels": "fused"}),
        ("paged_adamw_8bit", {"optimizer": "paged_adamw_8bit"}), ("galore", {"optimizer": "galore"}),
    ],
)  # fmt: skip
def test_optimizers_by_the_names_of_transformers(word: str, said: dict[str, str]) -> None:
    """Torch's AdamW says how it runs, too."""
    plan = case({**ROW, "optimizer": word}).plan
    assert {name: plan.get(name) for name in said} == said
    assert "optimizer_kernels" in said or "optimizer_kernels" not in plan


@pytest.mark.parametrize("words", ["ZeRO-3, optimizer and parameters on the CPU", "ZeRO-3"])
def test_one_device_keeps_what_is_on_the_host(words: str) -> None:
    """Hooks of ZeRO-3 and states in host memory do not need a second device."""
    alone = {"n_gpus": "1", "gpus_per_node": "1", "dp": "1", "tp": "1", "global_batch_seqs": "8"}
    plan = case({**ROW, **alone, "zero_stage_or_fsdp": words}).plan
    away = "cpu" if "CPU" in words else None
    assert (plan["zero"], plan.get("offload_optimizer"), plan.get("offload_parameters")) == (3, away, away)


def test_slices_are_replicas() -> None:
    """Four slices of 256 TPUs, sharded inside each."""
    row = {
        **ROW, "gpu_type": "TPU v6e", "interconnect": "ICI; DCN between slices", "n_gpus": "1024", "dp": "1024",
        "tp": "1", "global_batch_seqs": "1024", "stack": "maxtext",
        "zero_stage_or_fsdp": "FSDP inside the slice, DP across slices",
    }  # fmt: skip
    assert case(row).plan["hsdp"] == 4


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        ("HF transformers + FSDP", "huggingface"), ("Axolotl", "huggingface"), ("paxml (jax)", "paxml"),
        ("Hugging Face Trainer with DeepSpeed", "deepspeed"),
    ],
)  # fmt: skip
def test_names_of_software_with_a_profile_are_the_profile(words: str, profile: str) -> None:
    """Measured runs of it support the row."""
    found = case({**ROW, "stack": words})
    assert (found.stack, found.stack_changes) == (profile, {})
    assert "nearest" not in found.read_as


def test_software_without_a_profile_is_the_nearest() -> None:
    """And keeps its own name, which is said."""
    found = case({**ROW, "stack": "Colossal-AI"})
    assert found.stack == "megatron"
    assert "stack megatron, the nearest to colossal-ai" in found.read_as


def test_names_of_nothing_known_are_reasons() -> None:
    """A misspelt name, and one without a word that tells its kind."""
    for name in ("megatorn", "ours"):
        with pytest.raises(Unmodelled, match=f"unknown stack '{name}'"):
            case({**ROW, "stack": name})


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ("EP overlap off", False), ("1F1B all-to-all overlap on", True), ("no MoE all-to-all overlap", False),
        ("tp overlap; EP overlap", True), ("no overlap of experts", False),
        ("shared expert overlap", None), ("no overlap; all-to-all", None), ("moe_shared_expert_overlap", None),
        ("overlap_moe_expert_parallel_comm=0", False), ("release 0.3.0 with EP overlap", True),
        ("--overlap-moe-expert-parallel-comm", True), ("overlap_moe_expert_parallel_comm: False", False),
        ("1F1B overlap of all-to-all: yes", True), ("EP communication not overlapped", False), ("EP a2a hidden", True),
        ("MoE all-to-all exposed", False), ("EP overlap N/A", None), ("w/o EP overlap", False),
        ("EP overlap on and TP overlap off", True), ("EP-overlap=0", False), ("tp overlap on an MoE", None),
    ],
)  # fmt: skip
def test_overlap_of_experts_is_on_or_off(words: str, beside: bool | None) -> None:
    """As its own clause says; other words are listed."""
    found = case({**ROW, **MIXTURE, "overlap_notes": words})
    assert found.plan.get("ep_overlap") is beside
    plain = "; all-to-all" in words  # of Megatron Core, which sorts routed tokens by Python unless told otherwise
    assert ("of overlap_notes not read" in found.read_as) == (beside is None and not plain)
    assert found.plan.get("fused_permutation") is (False if plain else None)


def test_a_column_goes_before_what_a_dispatcher_does_by_default() -> None:
    """Other software than Megatron Core is not read so either."""
    row = {**ROW, **MIXTURE, "overlap_notes": "all-to-all"}
    assert case({**row, "fused_permutation": "true"}).plan["fused_permutation"] is True
    assert "fused_permutation" not in case({**row, "stack": "torchtitan"}).plan


def test_degrees_that_contradict_the_devices_are_refused_with_both() -> None:
    """2 x 1 x 1 x 4 ranks are not 16 devices."""
    with pytest.raises(Unmodelled, match="tp x cp x pp x dp is not n_gpus: 8 and 16"):
        case({**ROW, "dp": "4"})


def test_a_time_and_a_rate_that_contradict_each_other_are_refused_with_both() -> None:
    """64 sequences of 4,096 tokens on 16 devices in 1.5 s are 10,923 tokens a second and device, not 5,461."""
    assert read_measurements({**ROW, "tokens_per_s_per_gpu": "10900"}).step_time_s == 1.5
    with pytest.raises(
        Unmodelled, match=r"iteration_time_s = 1\.5 and tokens_per_s_per_gpu = 5461, which is 3 s, contra"
    ):
        read_measurements({**ROW, "tokens_per_s_per_gpu": "5461"})
