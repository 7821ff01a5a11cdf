"""Static memory to the byte, and the laws of allocation."""

from __future__ import annotations

import math

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.cost.memory.allocator import memory_risk, overhead_bytes, reserve
from simpar.cost.memory.terms import BETWEEN
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack, load_stack
from simpar.uncertainty.table import load_error_table
from simpar.units import GB, MIB
from tests.cost.account import stage_static_memory, static_memory

P = 10 * 10**9
N = 64


def static(stack: str | Stack = "megatron", **plan: object) -> tuple[int, int, int]:
    """(parameters, gradients, optimizer) bytes of 10 B parameters on 64 data-parallel ranks."""
    habits = load_stack(stack) if isinstance(stack, str) else stack
    held = static_memory(P, resolve(Plan(dp=N, **plan), habits), habits)
    return held.bytes_of("parameters"), held.bytes_of("gradients"), held.bytes_of("optimizer_states")


def test_ten_billion_parameters_of_the_textbook() -> None:
    """bf16 weights 20 GB, bf16 gradients 20 GB, fp32 moments 80 GB and master weights 40 GB: 16 bytes each."""
    parameters, gradients, optimizer = static(grad_dtype="bf16")
    assert (parameters, gradients, optimizer) == (20 * GB, 20 * GB, 120 * GB)


@pytest.mark.parametrize(
    ("zero", "grad_dtype", "bytes_each"),
    [
        (0, "bf16", 16), (0, "fp32", 18), (1, "bf16", 4 + 12 / N), (1, "fp32", 6 + 12 / N),
        (2, "bf16", 2 + 14 / N), (3, "bf16", 16 / N),
    ],
)  # fmt: skip
def test_zero_stages(zero: int, grad_dtype: str, bytes_each: float) -> None:
    """16P, 4P + 12P/N, 2P + 14P/N, 16P/N bytes [arXiv 1910.02054]; fp32 gradients add 2."""
    assert sum(static(zero=zero, grad_dtype=grad_dtype)) == pytest.approx(bytes_each * P, rel=1e-12)


def test_hsdp_shards_over_part_of_the_group() -> None:
    """With 4 replicas the shards are four times as large."""
    assert sum(static(zero=3, hsdp=4)) == pytest.approx(4 * sum(static(zero=3)), rel=1e-9)


@pytest.mark.parametrize(("optimizer", "states"), [("adamw", 8), ("sgd_momentum", 4), ("sgd", 0)])
def test_optimizer_states_in_fp32(optimizer: str, states: int) -> None:
    """Pure fp32 keeps no master copy: two moments, one, or none."""
    assert static(precision="fp32", optimizer=optimizer) == (4 * P, 4 * P, states * P)


def test_stack_that_stores_fp32_parameters() -> None:
    """FSDP2 as torchtitan uses it: (4 + 4 + 8) / N bytes."""
    assert sum(static("torchtitan", zero=3)) == pytest.approx(16 * P / N, rel=1e-9)


def test_reserved_exceeds_allocated_by_the_fragmentation() -> None:
    """Whole segments above static + moving x (1 + fragmentation); what stays all step leaves no gaps."""
    stack = load_stack("megatron")
    habits = stack.memory.allocator
    reserved = float(reserve(400 * MIB, 600 * MIB, habits, alternates=False).needed_bytes)
    assert reserved % (2 * MIB) == 0
    assert reserved == pytest.approx(400 * MIB + 600 * MIB * (1 + stack.memory.allocator.fragmentation), rel=0.003)


TRAINING = Training(seq_len=1024, global_batch=64)


def stage(model: str, stage_index: int, stack: str = "megatron", **plan: object) -> tuple[int, int]:
    """(parameter bytes, total bytes) of one pipeline rank."""
    habits = load_stack(stack)
    held = stage_static_memory(load_model(model), resolve(Plan(**plan), habits), TRAINING, habits, stage_index)
    return held.bytes_of("parameters"), held.total_bytes


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_stages_hold_the_whole_model(pp: int) -> None:
    """Untied, the parameters of all stages are the model's, at two bytes."""
    total = sum(stage("llama-3-8b", r, dp=1, pp=pp)[0] for r in range(pp))
    assert total == 2 * load_model("llama-3-8b").num_parameters()


@pytest.mark.parametrize(("pp", "copies"), [(1, 1), (4, 2)])
def test_tied_embeddings_live_on_both_ends(pp: int, copies: int) -> None:
    """Tied, the table is held once, and twice as soon as first and last stage are different ranks."""
    graph = load_model("gpt2-xl")
    table = graph.dims["vocab"] * graph.dims["hidden"]
    total = sum(stage("gpt2-xl", r, dp=1, pp=pp)[0] for r in range(pp))
    assert total == 2 * (graph.num_parameters() + (copies - 1) * table)


def test_tensor_parallel_ranks_repeat_the_norms() -> None:
    """Products, table and padded vocabulary are divided by tp, norms are not."""
    graph, tp = load_model("llama-3-8b"), 8
    hidden, layers = graph.dims["hidden"], len(graph.layers)
    padded = math.ceil(graph.dims["vocab"] / (128 * tp)) * 128 * tp - graph.dims["vocab"]
    norms = (2 * layers + 1) * hidden
    divided = graph.num_parameters() - norms + 2 * padded * hidden
    assert stage("llama-3-8b", 0, dp=1, tp=tp)[0] == 2 * (norms + divided // tp)


def test_virtual_stages_follow_the_schedule() -> None:
    """Under a V placement the first rank has the first and the last chunk: embedding and head."""
    graph = load_model("llama-3-8b")
    head = graph.dims["vocab"] * graph.dims["hidden"] + graph.dims["hidden"]
    v_shaped = stage("llama-3-8b", 0, dp=1, pp=4, schedule="zb-v")[0]
    looped = stage("llama-3-8b", 0, dp=1, pp=4, vpp=2)[0]
    assert v_shaped - looped == 2 * head


def test_fsdp_pads_the_first_dim_of_every_parameter() -> None:
    """On 3 ranks every tensor's rows are rounded up: a shard is more than a third, by less than a row each."""
    graph = load_model("llama-3-8b")
    parameters, _ = stage("llama-3-8b", 0, "torchtitan", dp=3, zero=3)
    exact = 4 * graph.num_parameters() / 3
    longest = 4 * max(graph.dims["ffn"], graph.dims["hidden"])
    assert exact < parameters < exact + 2 * len(graph.layers) * 4 * longest


def test_flat_shards_end_on_an_aligned_element() -> None:
    """A flat buffer is padded to lcm(N, 128) elements, so all ranks hold the same."""
    habits = load_stack("megatron")
    plan = resolve(Plan(dp=24, zero=1), habits)
    held = stage_static_memory(load_model("llama-3-8b"), plan, TRAINING, habits, 0)
    elements = held.bytes_of("optimizer_states") / 12
    assert elements % (128 // math.gcd(24, 128)) == 0
    assert 0 <= elements * 24 - load_model("llama-3-8b").num_parameters() < math.lcm(24, 128)


@pytest.mark.parametrize(("zero", "dp", "bytes_each"), [(0, 1, 18), (0, 8, 20), (1, 8, 10 + 14 / 8)])
def test_nanotron_after_a_step(zero: int, dp: int, bytes_each: float) -> None:
    """18 bytes a parameter alone, 20 with DDP's buckets; ZeRO-1 10 + 14/N with the copies of its gather.

    Source: the benchmark table of the Ultra-Scale Playbook, to 0.1 %.
    """
    _, total = stage("llama-3-8b", 0, "nanotron", zero=zero, dp=dp)
    parameters = load_model("llama-3-8b").num_parameters()
    assert total - 64 * MIB == pytest.approx(bytes_each * parameters, rel=1e-6)


def test_copies_are_gone_when_passes_peak() -> None:
    """What the parameter gather leaves counts after a step, but not beside activations."""
    habits = load_stack("nanotron")
    held = stage_static_memory(load_model("llama-3-8b"), resolve(Plan(dp=8, zero=1), habits), TRAINING, habits, 0)
    assert held.total_bytes - held.resident_bytes == held.bytes_of("transient", BETWEEN) > 0


def test_zero_2_of_fsdp_keeps_gathered_parameters() -> None:
    """Sharded fp32 parameters and states, and the gathered ones in bf16: 2 + 16/N."""
    habits = load_stack("torchtitan")
    plan = resolve(Plan(dp=N, zero=2, kind="fsdp"), habits)
    held = static_memory(P, plan, habits)
    assert held.resident_bytes - 64 * MIB == pytest.approx((2 + 16 / N) * P, rel=1e-9)


@pytest.mark.parametrize("zero", [2, 3])
def test_torch_s_pipelines_hold_whole_gradients(zero: int) -> None:
    """Parameters gathered in bf16 and gradients in fp32 for a whole step, fp32 shards of the rest: 2 + 4 + 12/N."""
    habits = load_stack("torchtitan")
    held = static_memory(P, resolve(Plan(dp=N, pp=2, zero=zero, kind="fsdp"), habits), habits)
    assert held.resident_bytes - 64 * MIB == pytest.approx((2 + 4 + 12 / N) * P, rel=1e-9)
    always = resolve(Plan(dp=N, pp=2, zero=zero, kind="fsdp"), load_stack("megatron"))
    assert static_memory(P, always, load_stack("megatron")).bytes_of("gradients") == pytest.approx(4 * P / N)


def test_overhead_counts_communicators() -> None:
    """A context, and a communicator per axis that has more than one rank; none on a CPU."""
    habits = load_stack("megatron")
    cluster = load_cluster("dgx-h100", 2)
    one = overhead_bytes(Layout().communicators, habits, cluster)
    assert one == habits.memory.allocator.context_bytes
    three = overhead_bytes(Layout(tp=2, dp=2, pp=4).communicators, habits, cluster)
    assert three - one == 3 * habits.memory.allocator.communicator_bytes
    assert overhead_bytes(Layout().communicators, habits, load_cluster("laptop-cpu", 1)) == 0


@pytest.mark.parametrize(
    ("hardware", "stack", "is_known"),
    [
        ("dgx-h100", "megatron", False), ("dgx-h100", "nanotron", True), ("rtx-4090-8", "megatron", True),
        ("a100-pcie-8", "fsdp", True),
    ],
)  # fmt: skip
def test_what_lies_outside_the_allocator_is_hardly_known_on_fast_links(
    hardware: str, stack: str, is_known: bool
) -> None:
    """Channels are as many as links are worth; some stacks ran out of memory as published."""
    risk = memory_risk(load_stack(stack), load_cluster(hardware, 2))
    assert risk.communicators == load_error_table().memory.communicators[0 if is_known else 1]
