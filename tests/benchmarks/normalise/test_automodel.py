"""Rows of NeMo Automodel: what they leave open is as in the recipes that its table names."""

from __future__ import annotations

import pytest

from benchmarks.normalise.stacks import stack_of
from tests.benchmarks.normalise.published import case

ROW = {
    "source": "NeMo Automodel performance summary", "model_name": "Llama3 8B (LoRA)", "n_layers": "32",
    "hidden": "4096", "n_heads": "32", "n_kv_heads": "8", "ffn_hidden": "14336", "vocab": "128256", "seq_len": "4096",
    "gpu_type": "H100 SXM 80GB", "n_gpus": "1", "tp": "1", "pp": "1", "micro_batch": "2", "global_batch_seqs": "32",
    "precision": "BF16", "stack": "megatron", "notes": "LoRA; kernel opts: TE + triton",
}  # fmt: skip
ON_NODE = {**ROW, "n_gpus": "8", "tp": "2", "zero_stage_or_fsdp": "FSDP 4"}


def test_recipes_adapt_all_projections_of_whole_sequences() -> None:
    """Adapters of rank 16 at all seven products of a layer, and sequences that no document ends in."""
    found = case(ROW)
    assert (found.stack, found.plan["lora_rank"], found.plan["recompute"]) == ("automodel", 16, "none")
    assert len(found.plan["lora_targets"]) == 7  # type: ignore[arg-type]
    assert found.training.documents is None


def test_recipes_of_several_devices_recompute_all_layers() -> None:
    """And a reader is told so; what a row prints counts."""
    found = case(ON_NODE)
    assert found.plan["recompute"] == "full"
    assert "all layers recomputed" in found.read_as
    assert case({**ON_NODE, "recompute": "none"}).plan["recompute"] == "none"


@pytest.mark.parametrize(
    ("notes", "experts", "changes"),
    [
        ("kernel opts: TE + DeepEP", "256", {"fusion.attention": "flash"}),
        ("kernel opts: TE + triton", "", {"fusion.attention": "flash", "fusion.activation": False}),
        ("kernel opts: TE + triton + fsdp2_prefetch", "", {"fusion.attention": "flash", "fusion.rope": True}),
        ("kernel opts: -", "", {"fusion.activation": False, "fusion.norm": False}),
        ("kernel opts: -", "256", {}),
    ],
)
def test_what_is_not_compiled_and_not_replaced_runs_operator_by_operator(
    notes: str, experts: str, changes: dict[str, object]
) -> None:
    """Attention and norms are Transformer Engine's where a row says so, other kernels fused where recipes compile."""
    row = {**ROW, "notes": notes, "n_experts": experts}
    assert stack_of(row) == ("automodel", changes)


@pytest.mark.parametrize(
    ("name", "said"), [("Llama3 70B", False), ("Llama3 70B 2-node (LoRA)", False), ("Qwen2.5 32B (LoRA)", None)]
)
def test_recipes_whose_whole_gradients_would_not_fit_reduce_every_microbatch(name: str, said: bool | None) -> None:
    """Those that say ``defer_fsdp_grad_sync: false``; others are as the framework has it."""
    assert case({**ON_NODE, "model_name": name}).plan.get("defer_grad_reduce") is said
