"""Saved activations against the closed forms of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

import pytest

from simpar.cost.activations import RankDims, block_activations
from simpar.cost.stack import MemoryHabits, Stack, load_stack
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.plan import Numerics, Plan
from simpar.plan.sharding import sequence_dims, tensor_dims

S, B = 2048, 2
CLEAN = Stack(name="clean", description="no habits", memory=MemoryHabits())


def saved(model: str, stack: Stack, *, tp: int = 1, sp: bool = False, recompute: str = "none") -> float:
    """Saved bytes of one layer on one rank."""
    graph = load_model(model)
    plan = Plan(tp=tp, micro_batch=B, sequence_parallel=sp)
    training = Training(seq_len=S, global_batch=B)
    dims = RankDims(tensor_dims(graph, plan, training), sequence_dims(graph, plan, training))
    block = graph.blocks[graph.layers[0]]
    return float(block_activations(block, dims, stack, Numerics(), recompute).saved_bytes)


UNFUSED = CLEAN.model_copy(update={"fusion": load_stack("megatron-sc21").fusion})
HIDDEN, HEADS = 6144, 64
SBH = S * B * HIDDEN
SCORES = 5 * HEADS * S / HIDDEN


@pytest.mark.parametrize(
    ("tp", "sp", "recompute", "factor"),
    [
        (1, False, "none", 34 + SCORES),
        (8, False, "none", 10 + 24 / 8 + SCORES / 8),
        (8, True, "none", (34 + SCORES) / 8),
        (1, False, "selective", 34),
        (8, True, "selective", 34 / 8),
        (1, False, "full", 2),
        (8, True, "full", 2 / 8),
    ],
)
def test_gpt_layer(tp: int, sp: bool, recompute: str, factor: float) -> None:
    """S b h times 34 + 5as/h, and its tensor-parallel, sequence-parallel, selective and full variants."""
    assert saved("megatron-22b", UNFUSED, tp=tp, sp=sp, recompute=recompute) == pytest.approx(
        factor * SBH, rel=1e-9
    )


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (8, True)])
def test_llama_layer_with_flash_attention(tp: int, sp: bool) -> None:
    """8h + 2(q + 2kv) + 2q + 6f + 4a bytes a token, divided by tp under sequence parallelism."""
    h, q, kv, f, a = 4096, 4096, 1024, 14336, 32
    per_token = 8 * h + 2 * (q + 2 * kv) + 2 * q + 6 * f + 4 * a
    assert saved("llama-3-8b", CLEAN, tp=tp, sp=sp) == pytest.approx(per_token * S * B / tp, rel=1e-9)


def test_packed_qkv_pins_two_and_a_half_more() -> None:
    """A value saved as a view keeps the whole packed projection: + 2(q + k) bytes a token, 2.5 sbh for Llama 3 8B."""
    pinned = CLEAN.model_copy(update={"memory": MemoryHabits(pins_packed_qkv=True)})
    extra = saved("llama-3-8b", pinned) - saved("llama-3-8b", CLEAN)
    assert extra == pytest.approx(2.5 * S * B * 4096)


def test_eager_llama_keeps_49_sbh() -> None:
    """Hugging Face eager with SDPA: 49.0 s b h (fp32 copies in norms, the silu output kept)."""
    eager = CLEAN.model_copy(update={"memory": MemoryHabits(eager_copies=True)})
    assert saved("llama-3-8b", eager) / (S * B * 4096) == pytest.approx(49.0, abs=0.6)


def test_recompute_orders_memory() -> None:
    """Full keeps less than selective, selective less than none."""
    full, selective, none = (
        saved("megatron-22b", UNFUSED, recompute=r) for r in ("full", "selective", "none")
    )
    assert full < selective < none


def test_head_peak_follows_the_stack() -> None:
    """The loss holds ``logit_bytes`` per logit at its peak."""
    graph = load_model("llama-3-8b")
    plan, training = Plan(micro_batch=B), Training(seq_len=S, global_batch=B)
    dims = RankDims(tensor_dims(graph, plan, training), sequence_dims(graph, plan, training))
    stack = CLEAN.model_copy(update={"memory": MemoryHabits(logit_bytes=14.0)})
    held = block_activations(graph.head, dims, stack, Numerics())
    logits = S * B * graph.dims["vocab"]
    peak = float(held.saved_bytes + held.backward_workspace_bytes)
    assert peak == pytest.approx(14 * logits, rel=0.02)
