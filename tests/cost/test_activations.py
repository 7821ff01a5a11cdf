"""Saved activations against the closed forms of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.architectures.tuning import add_adapters
from simpar.cost.activations import block_activations
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.hardware.device import load_device
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.choices.tuning import Tuning
from simpar.plan.plan import Plan
from simpar.stacks.stack import MemoryHabits, Overlap, Stack, StackNumerics, load_stack
from simpar.units import GB

S, B = 2048, 2
CLEAN = Stack(name="clean", description="no habits", memory=MemoryHabits())


BF16 = DecidedNumerics()


def saved(
    model: str,
    stack: Stack,
    *,
    tp: int = 1,
    sp: bool = False,
    recompute: str = "none",
    numerics: DecidedNumerics = BF16,
) -> float:
    """Saved bytes of one layer on one rank."""
    graph = load_model(model)
    plan = Plan(tp=tp, micro_batch=B, sequence_parallel=sp)
    training = Training(seq_len=S, global_batch=B)
    dims = rank_dims(graph, Layout.of(plan), training)
    block = graph.blocks[graph.layers[0]]
    return float(block_activations(block, dims, stack, numerics, recompute).saved_bytes)


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
        (1, False, "modules:core_attn", 34),
        (8, True, "modules:core_attn", 34 / 8),
        (1, False, "full", 2),
        (8, True, "full", 2 / 8),
    ],
)
def test_gpt_layer(tp: int, sp: bool, recompute: str, factor: float) -> None:
    """S b h times 34 + 5as/h, and its tensor-parallel, sequence-parallel, selective and full variants."""
    assert saved("megatron-22b", UNFUSED, tp=tp, sp=sp, recompute=recompute) == pytest.approx(factor * SBH, rel=1e-9)


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (8, True)])
def test_llama_layer_with_flash_attention(tp: int, sp: bool) -> None:
    """8h + 2(q + 2kv) + 2q + 6f + 4a bytes a token, divided by tp under sequence parallelism."""
    h, q, kv, f, a = 4096, 4096, 1024, 14336, 32
    per_token = 8 * h + 2 * (q + 2 * kv) + 2 * q + 6 * f + 4 * a
    assert saved("llama-3-8b", CLEAN, tp=tp, sp=sp) == pytest.approx(per_token * S * B / tp, rel=1e-9)


@pytest.mark.parametrize(
    ("precision", "width"), [("fp8", 1), ("nvfp4", 0.5 + 1 / 16), ("mxfp4", 0.5 + 1 / 32), ("mxfp8", 1 + 1 / 32)]
)
def test_casts_that_narrow_products_keep(precision: str, width: float) -> None:
    """Inputs of qkv, gate and down as cast, scales included; the attention result for itself and for its projection."""
    memory = CLEAN.memory.model_copy(update={"transformer_engine": True})
    casting = CLEAN.model_copy(update={"memory": memory})
    h, f = 4096, 14336
    less = (2 - width) * (h + h + f) - width * h
    cast = DecidedNumerics(precision=precision)
    change = saved("llama-3-8b", CLEAN, numerics=cast) - saved("llama-3-8b", casting, numerics=cast)
    assert change == pytest.approx(S * B * less)
    assert saved("llama-3-8b", casting) == saved("llama-3-8b", CLEAN)


def test_packed_qkv_pins_two_and_a_half_more() -> None:
    """A value saved as a view keeps the whole packed projection: + 2(q + k) bytes a token, 2.5 sbh for Llama 3 8B."""
    pinned = CLEAN.model_copy(update={"memory": MemoryHabits(pins_packed_qkv=True)})
    extra = saved("llama-3-8b", pinned) - saved("llama-3-8b", CLEAN)
    assert extra == pytest.approx(2.5 * S * B * 4096)
    assert saved("deepseek-v3", pinned) == saved("deepseek-v3", CLEAN)  # no projection has all three
    assert saved("gpt3-175b", pinned) == saved("gpt3-175b", CLEAN)  # learned positions: queries and keys are views, too


def test_dropout_of_adapters_keeps_a_copy_for_each_projection() -> None:
    """Seven projections: 3 bytes an element of each input; 2 less of the inputs that adapters alone keep.

    The output of attention is kept by attention itself; the inputs of q, k, v, of gate and up, and of down are not.
    """
    graph = load_model("llama-3-8b")
    tuned = add_adapters(graph, rank=16, targets=Tuning().lora_targets, frozen_layers=0, frozen_dtype="bf16")
    drops = CLEAN.model_copy(update={"fusion": CLEAN.fusion.model_copy(update={"adapter_dropout": True})})
    plan, training = Plan(micro_batch=B), Training(seq_len=S, global_batch=B)
    dims, block = rank_dims(tuned, Layout.of(plan), training), tuned.blocks[tuned.layers[0]]
    plain, dropped = (block_activations(block, dims, each, BF16).saved_bytes for each in (CLEAN, drops))
    hidden, ffn = 4096, 14336
    assert dropped - plain == S * B * (3 * (6 * hidden + ffn) - 2 * (2 * hidden + ffn))


def test_a_product_that_is_computed_again_is_not_kept() -> None:
    """2f bytes a token less; backward holds them while it runs, and its kernel writes them."""
    again = CLEAN.model_copy(update={"memory": MemoryHabits(gate="inputs")})
    graph, f = load_model("llama-3-8b"), 14336
    plan, training = Plan(micro_batch=B), Training(seq_len=S, global_batch=B)
    dims, block = rank_dims(graph, Layout.of(plan), training), graph.blocks[graph.layers[0]]
    kept, not_kept = (block_activations(block, dims, stack, DecidedNumerics()) for stack in (CLEAN, again))
    assert kept.saved_bytes - not_kept.saved_bytes == 2 * f * S * B
    assert not_kept.backward_workspace_bytes >= (2 * f + 2 * f + 4 * f) * S * B  # it, its gradient, both inputs'
    kernels = KernelModel(load_device("h100-sxm-80gb"))
    kept_times, again_times = (
        {each.name: each for each in operator_times(block.operators, dims, kernels, stack)} for stack in (CLEAN, again)
    )
    longer = again_times["activation"].backward_input_s - kept_times["activation"].backward_input_s
    assert longer == pytest.approx(2 * f * S * B / kernels.bandwidth)
    assert again_times["mlp_down"] == kept_times["mlp_down"]


def test_eager_llama_keeps_49_sbh() -> None:
    """Hugging Face eager with SDPA: 49.0 s b h (fp32 copies in norms, the silu output kept)."""
    eager = CLEAN.model_copy(update={"memory": MemoryHabits(eager_copies=True, gate="all")})
    assert saved("llama-3-8b", eager) / (S * B * 4096) == pytest.approx(49.0, abs=0.6)


def test_recompute_orders_memory() -> None:
    """Full keeps less than selective, selective less than none."""
    full, selective, none = (saved("megatron-22b", UNFUSED, recompute=r) for r in ("full", "selective", "none"))
    assert full < selective < none


def dims_of(model: str, *, tp: int = 1, sp: bool = False) -> RankDims:
    """Both regions' dims of one rank."""
    graph, training = load_model(model), Training(seq_len=S, global_batch=B)
    plan = Plan(tp=tp, micro_batch=B, sequence_parallel=sp)
    return rank_dims(graph, Layout.of(plan), training)


def test_keeping_the_gathered_input_costs_4_sbh_unsharded() -> None:
    """Without gathering again, the inputs of the two column-parallel products stay whole: 4 sbh, not 4 sbh / t."""
    keeps = CLEAN.model_copy(update={"overlap": Overlap(regather_input=False)})
    again, whole = (saved("llama-3-8b", stack, tp=8, sp=True) for stack in (CLEAN, keeps))
    assert whole - again == pytest.approx(4 * S * B * 4096 * (1 - 1 / 8))
    assert saved("llama-3-8b", keeps) == saved("llama-3-8b", CLEAN)


def test_nanotron_keeps_16h_and_8f() -> None:
    """A fused norm, and the gate's activation apart from its product: 8h + 2(q + 2kv) + 2q + 8f + 4a bytes a token."""
    per_token = 8 * 4096 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 8 * 14336 + 4 * 32
    assert saved("llama-3-8b", load_stack("nanotron")) == pytest.approx(per_token * S * B)


def test_selective_by_operator_keeps_every_other_product() -> None:
    """Input, attention output and its statistics, and products 1, 3, 5 and 7: query, value, gate, down.

    Source: torchtitan, activation checkpointing mode "selective", option "op".
    """
    habits = CLEAN.model_copy(update={"memory": MemoryHabits(selective="operators")})
    h, q, kv, f, a = 4096, 4096, 1024, 14336, 32
    per_token = 2 * h + 2 * q + 4 * a + 2 * (q + kv + f + h)
    kept = saved("llama-3-8b", habits, recompute="selective")
    assert kept == pytest.approx(per_token * S * B)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", ["megatron-22b", "llama-3-8b"])
def test_what_is_kept_and_recomputed_is_everything(model: str, recompute: str) -> None:
    """Saved and recomputed bytes add up to what no recompute saves."""
    graph, dims = load_model(model), dims_of(model)
    block = graph.blocks[graph.layers[0]]
    held = block_activations(block, dims, UNFUSED, DecidedNumerics(), recompute)
    everything = block_activations(block, dims, UNFUSED, DecidedNumerics()).saved_bytes
    assert held.saved_bytes + held.recomputed_bytes == pytest.approx(everything)


def test_the_loss_by_the_book() -> None:
    """14 bytes a logit in plain PyTorch, 6 with a bf16 loss, 1.6 in eight chunks."""
    peaks = [MemoryHabits(logit_bytes=size).loss_bytes(GB)[1] for size in (14.0, 6.0, 1.6)]
    assert peaks == [14 * GB, 6 * GB, 1.6 * GB]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("stack", ["megatron", "megatron-sc21", "nanotron", "torchtitan"])
def test_arrays_give_what_scalars_give(stack: str, recompute: str) -> None:
    """Dims may be arrays: a thousand layouts are evaluated like one."""
    graph, habits, degrees = load_model("llama-3-8b"), load_stack(stack), (1, 2, 4, 8)
    single = [dims_of("llama-3-8b", tp=t, sp=t > 1) for t in degrees]
    columns = [
        {name: np.array([region[name] for region in regions]) for name in regions[0]}
        for regions in zip(*((d.tensor, d.sequence) for d in single), strict=True)
    ]
    for block in (graph.embedding, graph.blocks[graph.layers[0]], graph.head):
        bulk = block_activations(block, RankDims(*columns), habits, DecidedNumerics(), recompute)
        for index, dims in enumerate(single):
            one = block_activations(block, dims, habits, DecidedNumerics(), recompute)
            for field in ("saved_bytes", "recomputed_bytes", "forward_workspace_bytes", "backward_workspace_bytes"):
                value = np.broadcast_to(getattr(bulk, field), (len(degrees),))[index]
                assert value == pytest.approx(float(getattr(one, field)), rel=1e-12)


def test_head_peak_follows_the_stack() -> None:
    """The loss holds ``logit_bytes`` per logit at its peak, fused accumulation an empty gradient of the head."""
    graph = load_model("llama-3-8b")
    plan, training = Plan(micro_batch=B), Training(seq_len=S, global_batch=B)
    dims = rank_dims(graph, Layout.of(plan), training)
    stack = CLEAN.model_copy(update={"memory": MemoryHabits(logit_bytes=14.0)})
    held = block_activations(graph.head, dims, stack, DecidedNumerics())
    logits = S * B * graph.dims["vocab"]
    peak = float(held.saved_bytes + held.backward_workspace_bytes)
    empty = 2 * graph.dims["vocab"] * graph.dims["hidden"]
    assert peak == pytest.approx(14 * logits + empty, rel=0.02)
    apart = stack.model_copy(update={"numerics": StackNumerics(gradient_accumulation_fusion=False)})
    held = block_activations(graph.head, dims, apart, DecidedNumerics())
    assert float(held.saved_bytes + held.backward_workspace_bytes) == pytest.approx(14 * logits, rel=0.02)


def test_checkpoints_of_modules_keep_the_inputs_of_each() -> None:
    """Automodel's two norms, attention and MLP keep 4 x 2 bytes a feature; its mixtures' layers are wrapped whole."""
    automodel = load_stack("automodel")
    one = S * B * 4096 * 2
    assert saved("llama-3-8b", automodel, recompute="full") == 4 * one
    assert saved("llama-3-8b", load_stack("torchtitan"), recompute="full") == one
    assert saved("mixtral-8x7b", automodel, recompute="full") == one
