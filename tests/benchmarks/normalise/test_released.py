"""Rows without sizes: the released model behind the name, and its recipe's words."""

from __future__ import annotations

import pytest

from benchmarks.normalise.mixtures import overlap_words
from benchmarks.normalise.released import entry, recipe_words, unsized
from tests.benchmarks.normalise.published import case

ROW = {
    "source": "Megatron-Bridge performance summary", "model_name": "Nemotron_3_Nano", "seq_len": "8192",
    "gpu_type": "GB300", "gpus_per_node": "4", "n_gpus": "8", "precision": "MXFP8", "tp": "1", "pp": "1", "ep": "8",
    "micro_batch": "4", "global_batch_seqs": "512", "stack": "megatron",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Nemotron_3_Nano", 31.6), ("Nemotron_3_Super", 120.7), ("Nemotron_3_Ultra", 549.3), ("nemotronh_56b", 56.3),
        ("Qwen2.5 7B (LoRA)", 7.6), ("Qwen2.5 32B 2-node (LoRA)", 32.8), ("GPT3-5B", 5.1),
    ],
)  # fmt: skip
def test_a_name_stands_for_its_released_sizes(name: str, billions: float) -> None:
    """Where a row says nothing of sizes, its model is the released one."""
    graph = unsized({"model_name": name})
    assert graph is not None
    assert graph.num_parameters() / 10**9 == pytest.approx(billions, rel=0.015)


def test_sizes_of_the_row_come_first() -> None:
    """A row with sizes of its own is read by those; unknown names stay unknown."""
    assert unsized({**ROW, "hidden": "2048"}) is None
    assert unsized({**ROW, "n_layers": "16"}) is None, "a pattern of unlike layers"
    shorter = unsized({**ROW, "model_name": "Llama 3.1 8B", "n_layers": "16"})
    assert shorter is not None
    assert len(shorter.layers) == 16
    assert unsized({"model_name": "MaxText-256B"}) is None
    assert entry({"model_name": "nemotron-15b"}) is None


def test_a_hybrid_s_row_becomes_a_case() -> None:
    """Layers, experts and their ranks come together."""
    found = case(ROW)
    assert len(found.graph.layers) == 52
    assert found.plan["ep"] == 8
    assert found.plan["token_dispatch"] == "per_node"
    assert found.stack_changes["launch.graphs"] == ("attention", "mamba", "router")


def test_a_silent_row_follows_its_recipe() -> None:
    """What is printed of overlap counts, then the recipe."""
    assert "hybridep" in recipe_words(ROW)
    assert overlap_words({**ROW, "overlap_notes": "no CUDA graph"}) == "no cuda graph"
    assert overlap_words({**ROW, "model_name": "Nemotron_3_Ultra"}) == "dispatcher hybridep"


def test_what_runs_beside_what_is_taken_by_its_word() -> None:
    """Neither gradients of replicas nor exchanges of tensor parallelism, where a row says so."""
    entry = case({**ROW, "overlap_notes": "no TP/DP overlap; fp32 grad reduce"})
    assert entry.stack_changes["overlap.tensor_backward"] is False
    assert entry.plan["overlap_grad_reduce"] is False


@pytest.mark.parametrize(
    ("words", "captured"),
    [
        ("CUDA graph transformer_engine ['attn', 'moe_router', 'moe_preprocess']", ("attention", "router")),
        ("CUDA graph transformer_engine ['attn', 'mamba', 'moe_router']", ("attention", "mamba", "router")),
        ("CUDA graph full_iteration []", ("step",)), ("CUDA graph local full_iteration", ("step",)),
        ("CUDA graph none full_iteration", None), ("no CUDA graph", None), ("overlap", None),
        ("CUDA graph", ("attention", "mamba", "mlp", "router")), ("paged stash; full CG; HybridEP", ("step",)),
        ("MXFP8; partial CG", ("attention", "mamba", "mlp", "router")), ("router/preprocess CG", ("router",)),
    ],
)  # fmt: skip
def test_graphs_capture_what_their_scope_names(words: str, captured: tuple[str, ...] | None) -> None:
    """No implementation, no graphs, whatever scope follows."""
    changes = case({**ROW, "overlap_notes": words}).stack_changes
    assert changes.get("launch.graphs") == captured
