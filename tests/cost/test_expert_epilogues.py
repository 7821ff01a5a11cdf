"""What experts do beside their products or in their kernels: biases, clamps, activations, casts; counts of bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import Block
from simpar.architectures.training import Training
from simpar.cost.activations import block_activations
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.cost.products import OperatorTime
from simpar.hardware.device import load_device
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack, load_stack

TRAINING = Training(seq_len=4096, global_batch=64)
PLAN = Plan(ep=64, micro_batch=4)
KERNELS = KernelModel(load_device("gb300"))
STACK = load_stack("nemo")
COPIES, FFN, HIDDEN, LOCAL = 4 * 4096 * 4, 2880, 2880, 2


def fused(stack: Stack) -> Stack:
    """The stack with biases and clamps in the products' kernels."""
    return stack.model_copy(update={"fusion": stack.fusion.model_copy(update={"expert_epilogues": True})})


def layer() -> tuple[Block, RankDims]:
    """A layer of gpt-oss 120B on one of 64 ranks that share the experts."""
    graph = load_model("gpt-oss-120b")
    return graph.blocks[graph.layers[0]], rank_dims(graph, Layout.of(PLAN), TRAINING)


def times(stack: Stack) -> dict[str, OperatorTime]:
    """Times of the layer's operators by name."""
    block, dims = layer()
    return {each.name: each for each in operator_times(block.operators, dims, KERNELS, stack)}


def test_clamps_move_nine_passes_over_what_enters_the_activation() -> None:
    """Two halves read and written, joined; backward reads the input too. Nothing where the product's kernel does it."""
    clamp = times(STACK)["expert_clamp"]
    elements = COPIES * 2 * FFN
    latency_s = KERNELS.latency_s
    assert float(clamp.forward_s) - 3 * latency_s == pytest.approx(4 * 2 * elements / KERNELS.bandwidth)
    assert float(clamp.backward_input_s) - 3 * latency_s == pytest.approx(5 * 2 * elements / KERNELS.bandwidth)
    none = times(fused(STACK))["expert_clamp"]
    assert (none.forward_s, none.backward_input_s, none.forward_kernels) == (0.0, 0.0, 0)


def test_weighted_biases_move_68_bytes_an_element() -> None:
    """Of the last product's output: 28 forward, 40 backward, two kernels an expert and two more, then four and two."""
    own, other = times(STACK)["expert_down"], times(fused(STACK))["expert_down"]
    moved_s, latency_s = COPIES * HIDDEN / KERNELS.bandwidth, KERNELS.latency_s
    forward_s = float(own.forward_s - other.forward_s)
    backward_s = float(own.backward_input_s - other.backward_input_s)
    assert forward_s == pytest.approx(28 * moved_s + (2 * LOCAL + 2) * latency_s)
    assert backward_s == pytest.approx(40 * moved_s + (4 * LOCAL + 2) * latency_s)
    assert own.backward_weight_s == other.backward_weight_s


@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8"])
def test_epilogues_activate_and_cast(precision: str) -> None:
    """The activation has no kernel; the second product's input and the first's gradient need no cast of their own."""
    graph = load_model("qwen3-30b-a3b")
    dims = rank_dims(graph, Layout.of(PLAN), TRAINING)
    block, kernels = graph.blocks[graph.layers[-1]], replace(KERNELS, precision=precision)
    own, other = (
        {each.name: each for each in operator_times(block.operators, dims, kernels, stack)}
        for stack in (STACK, fused(STACK))
    )
    assert other["expert_activation"].forward_kernels == 0 < own["expert_activation"].forward_kernels
    casts = [
        own["expert_down"].forward_s - other["expert_down"].forward_s,
        own["expert_up"].backward_input_s - other["expert_up"].backward_input_s,
    ]
    assert all(float(cast) > 0 for cast in casts) == (precision != "bf16")
    assert own["expert_up"].forward_s == other["expert_up"].forward_s
    assert own["expert_down"].backward_input_s == other["expert_down"].backward_input_s
    ffn, width = graph.dims["expert_ffn"], 4 if precision == "fp8" else (2 + 2 * 33 / 32) / 0.75
    if precision != "bf16":
        rows = 4 * 4096 * 8
        cast_s = STACK.experts.overhead * (kernels.latency_s + width * rows * ffn / kernels.bandwidth)
        assert float(casts[0]) == pytest.approx(cast_s)


@pytest.mark.parametrize(("recompute", "kept"), [("none", 1), ("modules:moe_act", 0)])
def test_a_clamp_of_its_own_keeps_its_output(recompute: str, kept: int) -> None:
    """What it read and what the activation reads; recomputing the activation drops the latter."""
    block, dims = layer()
    sizes = [
        float(block_activations(block, dims, each, DecidedNumerics(), recompute).saved_bytes)
        for each in (STACK, fused(STACK))
    ]
    assert sizes[0] - sizes[1] == kept * COPIES * 2 * FFN * 2
