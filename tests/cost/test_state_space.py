"""The scan of state-space layers against published times of its kernels, and its laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.hybrid import hybrid
from simpar.architectures.mamba import Mamba
from simpar.architectures.training import Training
from simpar.architectures.transformer import Shape, Style
from simpar.cost.activations import block_activations
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.cost.state_space import BACKWARD, FORWARD, scan_time_s
from simpar.hardware.device import load_device
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.plan import Plan
from simpar.stacks.stack import MemoryHabits, Stack, load_stack
from simpar.units import MEGA, TERA

GRANITE = {"mamba_heads": 128, "mamba_head_dim": 64, "state": 128, "mamba_groups": 1, "chunk": 256, "batch": 1}


@pytest.mark.parametrize(
    ("tokens", "measured"), [(8192, 12.62), (16384, 12.92), (32768, 11.80), (65536, 11.07), (131072, 10.70)]
)
def test_forward_on_h100_is_as_fast_as_measured(tokens: int, measured: float) -> None:
    """Millions of tokens a second of mamba-ssm's kernels in the shape of Granite 4 (vLLM pull request 27299)."""
    kernels = KernelModel(load_device("h100-sxm-80gb"), sustained=False)
    seconds = float(scan_time_s({**GRANITE, "seq": tokens}, kernels, FORWARD))
    assert tokens / seconds / MEGA == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(
    ("device", "measured", "within"),
    [("a100-sxm-80gb", 102.5, 0.15), ("h200-sxm", 239.2, 0.10), ("gb200", 360.4, 0.12)],
)
def test_training_a_pure_mamba_is_as_fast_as_measured(device: str, measured: float, within: float) -> None:
    """TFLOP/s at six a parameter and token: hidden 2048, 48 layers, 4 x 4096 tokens (state-spaces/mamba issue 904)."""
    shape = Shape(vocab=50288, hidden=2048, ffn=0, layers=48, heads=1, kv_heads=1, head_dim=64)
    state = Mamba(heads=64, head_dim=64, state=128, groups=1, chunk=256)
    graph = hybrid("mamba-2", "M" * 48, shape, state, Style(gated=False, rotary=False, tied=True))
    kernels, stack = KernelModel(load_device(device)), load_stack("megatron")
    dims = {**graph.dims, "batch": 4, "seq": 4096, "context": 4096}
    seconds = 30 * graph.num_parameters() / kernels.bandwidth
    for block, count in ((graph.blocks["mamba"], 48), (graph.embedding, 1), (graph.head, 1)):
        for time in operator_times(block.operators, RankDims(dims, dims), kernels, stack):
            seconds += count * float(time.forward_s + time.backward_input_s + time.backward_weight_s)
    flop = 6.0 * graph.num_parameters() * 4 * 4096
    assert flop / seconds / TERA == pytest.approx(measured, rel=within)


def test_a_chunk_is_no_longer_than_the_sequence() -> None:
    """Chunks beyond the sequence change nothing."""
    kernels = KernelModel(load_device("h100-sxm-80gb"))
    short = {**GRANITE, "seq": 128}
    assert scan_time_s(short, kernels, FORWARD) == scan_time_s({**short, "chunk": 128}, kernels, FORWARD)


@pytest.mark.parametrize("counts", [FORWARD, BACKWARD])
def test_time_is_linear_in_tokens_and_heads(counts: Any) -> None:
    """Twice the tokens take twice as long, launches aside; arrays broadcast."""
    kernels = KernelModel(load_device("h100-sxm-80gb"))
    times = scan_time_s({**GRANITE, "seq": np.array([4096, 8192])}, kernels, counts)
    launches = counts.kernels * kernels.latency_s
    assert times[1] - launches == pytest.approx(2 * (times[0] - launches))
    halved = scan_time_s({**GRANITE, "seq": 4096, "mamba_heads": 64}, kernels, counts)
    assert halved < times[0]


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (4, False), (4, True)])
def test_kept_is_what_the_fused_kernels_keep(tp: int, sp: bool) -> None:
    """Per token 4h of the norm, the first product's output, and three tensors as wide as the inner layer."""
    stack = Stack(name="clean", description="no habits", memory=MemoryHabits())
    stack = replace_fusion(stack)
    graph, seq, batch = load_model("nemotron-3-nano"), 2048, 2
    plan = Plan(tp=tp, micro_batch=batch, sequence_parallel=sp)
    training = Training(seq_len=seq, global_batch=batch)
    dims = rank_dims(graph, Layout.of(plan), training)
    found = block_activations(graph.blocks["mamba"], dims, stack, DecidedNumerics()).saved_bytes
    hidden, inner, shared, heads = 2688, 4096, 1024, 64
    projected = 2 * inner + 2 * shared + heads
    assert found == batch * seq * (4 * hidden / (tp if sp else 1) + 2 * (projected + 3 * inner) / tp)


def replace_fusion(stack: Stack) -> Stack:
    """The stack with fused norms, which keep no statistics to speak of, that gathers inputs again."""
    fusion = stack.fusion.model_copy(update={"norm": True})
    overlap = stack.overlap.model_copy(update={"regather_input": True})
    return stack.model_copy(update={"fusion": fusion, "overlap": overlap})


def test_a_faster_rate_is_a_parameter_of_the_device() -> None:
    """Profiles may state the shares that their scans reach."""
    device = load_device("h100-sxm-80gb")
    slow = device.model_copy(update={"kernels": {**device.kernels, "scan_backward_efficiency": 0.018}})
    times = [scan_time_s({**GRANITE, "seq": 8192}, KernelModel(d), BACKWARD) for d in (device, slow)]
    assert times[0] < times[1] < 2 * times[0]
    assert replace(KernelModel(device), sustained=False).parameters["scan_forward_efficiency"] == 0.137


def test_a_product_kept_in_more_bits_takes_that_time() -> None:
    """In a 4-bit run a product kept in 16 bits costs what it costs there, and keeps its input as wide."""
    graph, stack = load_model("nemotron-3-super"), load_stack("megatron")
    dims = {**graph.dims, "batch": 1, "seq": 8192, "context": 8192, "load": 1}
    ranks = RankDims(dims, dims, dims)
    device = load_device("gb300")

    def seconds(block: str, name: str, precision: str) -> float:
        operators = graph.blocks[block].operators
        times = operator_times(operators, ranks, KernelModel(device, precision), stack)
        return next(float(time.forward_s) for time in times if time.name == name)

    assert seconds("mamba_wide", "in_proj", "nvfp4") == seconds("mamba", "in_proj", "bf16")
    assert seconds("mamba", "out_proj", "nvfp4") == seconds("mamba", "out_proj", "mxfp8")
    assert seconds("mamba", "in_proj", "nvfp4") < seconds("mamba", "in_proj", "fp8")
    kept = [
        float(block_activations(graph.blocks[name], ranks, stack, DecidedNumerics(precision="nvfp4")).saved_bytes)
        for name in ("mamba", "mamba_wide")
    ]
    assert kept[0] < kept[1]
