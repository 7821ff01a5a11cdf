"""One number by hand for every term of a rank's memory: whole bytes, as its definition counts them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simpar.architectures.graph import AttentionPattern, Block, ModelGraph, Operator, Weight, term
from simpar.architectures.mixture import Mixture, mixture
from simpar.architectures.training import Training
from simpar.cost.activations import block_activations
from simpar.cost.memory.allocator import held_outputs_bytes, most_moving_bytes, reserve
from simpar.cost.memory.bound import Flight
from simpar.cost.memory.routed import experts_risk_bytes
from simpar.cost.memory.static import cast_term, held_memory, parameter_terms
from simpar.cost.memory.terms import PASSES, HeldBlocks, ParameterGroup, Term
from simpar.cost.memory.widths import Widths, kept_widths, parameter_widths
from simpar.cost.offload import DRIVES, FLAT, PINNED, SUMS, host_memory, host_notes, update_bytes
from simpar.cost.optimizers import moment_bytes
from simpar.hardware.device import load_device
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.plan import Plan
from simpar.stacks.stack import AllocatorHabits, Stack
from simpar.units import MIB

P, N = 1280, 4
"""Parameters of a rank, and the data-parallel ranks that share them: 320 each."""
MEMORY = {"bucket_bytes": 4.0, "gather_copies": True, "gather_buffers": 2, "allocator": {"workspace_bytes": 100.0}}


def stack(**parts: object) -> Stack:
    """A stack with bf16 parameters, fp32 gradients and states, master weights, and all that there is beside."""
    return Stack.model_validate({"name": "by hand", "description": "all terms", "memory": MEMORY, **parts})


def layout_of(of: Stack, **plan: object) -> Layout:
    """The layout of a plan on a stack."""
    return Layout.of(resolve(Plan(**plan), of))


def terms(of: Stack, *, accumulates: bool = True, **plan: object) -> dict[str, float]:
    """Bytes by name, with how long they live where that is not always; nothing of terms without bytes."""
    layout = layout_of(of, **{"dp": N, **plan})
    part = ParameterGroup(P, P // layout.shards, P * moment_bytes(layout))
    found: tuple[Term, ...] = parameter_terms([part], layout, of, residual_bytes=1000.0, accumulates=accumulates)
    return {
        f"{each.name} {each.alive}".removesuffix(" always"): float(each.size_bytes) for each in found if each.size_bytes
    }


REST = {"library workspaces": 100}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # 2 bytes stored, 4 of gradient and 4 of a bucket beside it, 4 of master weight and 8 of moments
        ({}, {"stored": 2 * P, "gradients": 4 * P, "buckets apart": 4 * P, "states": 12 * P}),
        # a rank's fourth of the states; the gather behind the update leaves 2 bytes of all and of the rank's share
        (
            {"zero": 1},
            {"stored": 2 * P, "gradients": 4 * P, "buckets apart": 4 * P, "states": 12 * 320,
             "copies of gathered parameters between": 2 * (P + 320)},
        ),
        (
            {"zero": 2},
            {"stored": 2 * P, "gradients": 4 * 320, "buckets apart": 4 * P, "states": 12 * 320,
             "copies of gathered parameters between": 2 * (P + 320)},
        ),
        ({"zero": 3}, {"stored": 2 * 320, "gradients": 4 * 320, "states": 12 * 320}),
        # two replicas of two shards each
        ({"zero": 3, "hsdp": 2}, {"stored": 2 * 640, "gradients": 4 * 640, "states": 12 * 640}),
        # under ZeRO-2 of FSDP parameters stay gathered through all passes
        (
            {"zero": 2, "data_parallel": {"kind": "fsdp", "zero": 2}},
            {"stored": 2 * 320, "gradients": 4 * 320, "states": 12 * 320, "gathered for all passes passes": 2 * P,
             "copies of gathered parameters between": 2 * (P + 320)},
        ),
        # one rank has no bucket to send
        ({"dp": 1}, {"stored": 2 * P, "gradients": 4 * P, "states": 12 * P}),
        # parameter servers keep the states
        ({"sync": "asp", "servers": 1}, {"stored": 2 * P, "gradients": 4 * P, "buckets apart": 4 * P}),
        # sequence parallelism: two buffers of a residual stream of 1,000 bytes
        ({"dp": 1, "tp": 2}, {"stored": 2 * P, "gradients": 4 * P, "states": 12 * P, "gathered rows": 2000}),
        # half of the states, and of the gradients that wait for them, are on the host
        (
            {"dp": 1, "offload_optimizer": "cpu", "offload_ratio": 0.5, "offload_gradients": True},
            {"stored": 2 * P, "gradients": 4 * P / 2, "states": 12 * P / 2},
        ),
        ({"zero": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu", "offload_gradients": False},
         {"gradients": 4 * 320}),
        # DiLoCo's outer optimizer: the parameters at the beginning of a round and a momentum, 4 bytes each
        (
            {"sync": "diloco", "sync_every": 8},
            {"stored": 2 * P, "gradients": 4 * P, "buckets apart": 4 * P, "states": 20 * P},
        ),
    ],
)  # fmt: skip
def test_terms_of_parameters(plan: dict[str, object], expected: dict[str, float]) -> None:
    """Parameters, gradients, buckets, states, copies and buffers of 1,280 parameters on four ranks."""
    assert terms(stack(), **plan) == {**expected, **REST}


@pytest.mark.parametrize(
    ("numerics", "plan", "waiting"),
    [
        # 1,280 in fp32, the dtype of their reduction, in place of a fourth of them
        ({}, {"zero": 3}, 4 * (P - 320)),
        ({}, {"zero": 2}, 4 * (P - 320)),
        ({}, {"zero": 3, "hsdp": 2}, 4 * (P - 640)),
        # in bf16, beside shards that add up in fp32
        ({"reduce_dtype": "bf16"}, {"zero": 3}, 2 * P - 4 * 320),
        # half of the shards leave for the host
        (
            {},
            {"zero": 3, "offload_optimizer": "cpu", "offload_ratio": 0.5, "offload_gradients": True},
            4 * P - 4 * 320 / 2,
        ),
        # nothing is sharded, nothing reduced, or all of it behind the last backward
        ({}, {"zero": 1}, 0),
        ({}, {"zero": 3, "dp": 1}, 0),
        ({}, {"zero": 3, "hsdp": 4}, 0),
        ({}, {"zero": 3, "overlap_grad_reduce": False}, 0),
    ],
)
def test_gradients_that_wait_for_the_last_microbatch(
    numerics: dict[str, object], plan: dict[str, object], waiting: float
) -> None:
    """Whole ones during all passes of several microbatches, and shards in the update; of one microbatch none."""
    of = stack(numerics=numerics)
    usual, deferred = terms(of, **plan), terms(of, **plan, defer_grad_reduce=True)
    name = "whole until the last microbatch passes"
    assert deferred == {**usual, **({name: waiting} if waiting else {})}
    assert terms(of, accumulates=False, **plan, defer_grad_reduce=True) == terms(of, accumulates=False, **plan)


def test_widths() -> None:
    """Stored in fp32 nothing has a master copy; parameter servers keep the states of their workers."""
    layout, wide = layout_of(stack(), dp=2), stack(numerics={"parameter_dtype": "fp32"})
    assert kept_widths(layout, stack()) == Widths(stored=2, gradient=4, compute=2, master=4, moments=8)
    assert kept_widths(layout, stack()).states == 12
    assert (kept_widths(layout, wide).stored, kept_widths(layout, wide).master) == (4, 0)
    served = layout_of(stack(), dp=2, sync="asp", servers=1)
    assert (parameter_widths(served, stack()).states, kept_widths(served, stack()).states) == (0, 12)


def test_the_allocator_rounds_to_segments_of_2_mib() -> None:
    """10 MiB that stay, 20 that move: with gaps of 5 % and 10 % of churn 33, so 34, and 5 freed ones on top, so 40.

    First steps need 20 % more of what moves and nothing of what is freed: 37, so 38. Without churn 36, and 32 + 9.
    """
    habits = AllocatorHabits(fragmentation=0.05, churn=0.1, settling=0.2)
    result = reserve(10.0 * MIB, 20.0 * MIB, habits, held_bytes=5.0 * MIB)
    assert (result.needed_bytes / MIB, result.reserved_bytes / MIB) == (38, 40)
    quiet = reserve(10.0 * MIB, 20.0 * MIB, habits, alternates=False, held_bytes=9.0 * MIB)
    assert (quiet.needed_bytes / MIB, quiet.reserved_bytes / MIB) == (36, 42)


def test_what_lives_on_the_host() -> None:
    """Of 1,000 parameters half of whose states are away: 12 bytes of states, 4 of gradients; 2 of all parameters.

    AdamW reads a gradient, a parameter and two moments, 16 bytes, writes the last three, 12, and a copy of 2.
    """
    layout = layout_of(stack(), dp=2, zero=3, offload_optimizer="cpu", offload_parameters="cpu", offload_ratio=0.5)
    held = host_memory(layout, stack(), 1000.0, 0.0, 77.0)
    assert (held.optimizer_bytes, held.gradients_bytes, held.parameters_bytes) == (6000.0, 2000.0, 2000.0)
    assert (held.activations_bytes, held.nvme_bytes, held.memory_bytes) == (77.0, 0.0, 10_077.0)
    drives = layout_of(stack(), dp=2, zero=3, offload_optimizer="nvme", offload_parameters="nvme")
    away = host_memory(drives, stack(), 1000.0, 0.0, 0.0)
    assert (away.nvme_bytes, away.memory_bytes) == (14_000.0, 4_000.0)
    assert update_bytes(layout, stack()) == 30.0


BF16 = {"grad_dtype": "bf16", "reduce_dtype": "bf16", "moment_dtype": "bf16", "master_weights": False}
BOTH = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}


@pytest.mark.parametrize(
    ("kind", "numerics", "moved", "states", "gradients", "parameters", "update"),
    [
        # torchtune: the shard is what torch's AdamW changes; all four in bf16; three read and written, one read
        ("fsdp", BF16, BOTH, 4, 2, 2, 2 + 2 * 6),
        # torchao's CPUOffloadOptimizer: the parameter is on the device, and a pinned copy of it beside the moments
        ("fsdp", BF16, {"offload_optimizer": "cpu"}, 6, 2, 0, 2 + 2 * 6),
        # torchtitan, Accelerate, Trainer: one fp32 shard, which devices fetch in fp32
        ("fsdp", {"parameter_dtype": "fp32"}, BOTH, 8, 4, 4, 4 + 2 * 12),
        # bf16 shards with master weights: both are there, and the first is written again
        ("fsdp", {}, BOTH, 12, 4, 2, 4 + 2 * 12 + 2),
        # moments in bf16 beside fp32 master weights
        ("fsdp", {"moment_dtype": "bf16"}, BOTH, 4 + 4, 4, 2, 4 + 2 * 8 + 2),
        # flat states without master weights: a copy of the bf16 partition, and of its gradient
        ("ddp", BF16 | {"update": {"flat": True}}, BOTH, 2 + 4, 2 + 2, 2, 2 + 2 * 6 + 2),
        # DeepSpeed's ZeRO-3: partitions of bf16 gradients as they arrive beside the fp32 ones of the update
        ("ddp", {"grad_dtype": "bf16", "update": {"flat": True}}, BOTH, 12, 4 + 2, 2, 4 + 2 * 12 + 2),
    ],
)
def test_the_host_keeps_the_dtypes_of_the_plan(
    kind: str, numerics: dict[str, object], moved: dict[str, str], states: float, gradients: float, parameters: float,
    update: float,
) -> None:  # fmt: skip
    """Bytes a parameter of states, gradients and parameters on the host, and that its update moves there."""
    of = stack(data_parallel=kind, numerics=numerics)
    layout = layout_of(of, dp=2, zero=3, offload_gradients=True, **moved)
    held = host_memory(layout, of, 1000.0, 0.0, 0.0)
    each = (held.optimizer_bytes, held.gradients_bytes, held.parameters_bytes)
    assert each == (1000.0 * states, 1000.0 * gradients, 1000.0 * parameters)
    assert update_bytes(layout, of) == update


@pytest.mark.parametrize("zero", [1, 2])
def test_the_host_keeps_buffers_of_deepspeed(zero: int) -> None:
    """A cast copy of what was updated is sent, 2 bytes; between microbatches sums of bf16 gradients wait, 2 more.

    fp32 copy and moments, 12, the gradient of the update, 4: 18 and 20 bytes. What it does not count is said.
    """
    of = stack(data_parallel="ddp", numerics={"grad_dtype": "bf16", "update": {"flat": True}})
    layout = layout_of(of, dp=2, zero=zero, offload_gradients=zero == 2, offload_optimizer="cpu")
    for several, bytes_each in ((False, 18.0), (True, 20.0)):
        held = host_memory(layout, of, 1000.0, 0.0, 0.0, accumulates=several)
        assert (held.parameters_bytes, held.memory_bytes) == (2000.0, 1000.0 * bytes_each)
        notes = host_notes(layout, of, accumulates=several)
        assert notes == [FLAT, *([SUMS] if several and zero == 2 else [])]
    sharded = layout_of(stack(), dp=2, zero=3, offload_optimizer="nvme", offload_parameters="cpu")
    assert host_notes(sharded, stack(), accumulates=True) == [PINNED, DRIVES]
    assert host_notes(layout_of(stack(), dp=2), stack(), accumulates=True) == []


def test_outputs_that_a_stream_still_holds() -> None:
    """Three partial sums; where the host is held up, as many as get ahead: 1F1B of 4 has 4, 3, 2, 1 in flight.

    Beyond two microbatches in flight the queue fills by thirds: 2/3, 1/3, 0 and 0 of the three.
    """
    of = stack(memory={"allocator": {"held_outputs": 3.0}})
    layout, training = layout_of(of, dp=1, pp=4), Training(seq_len=16, global_batch=8)
    assert held_outputs_bytes(layout, training, of, 0, 100.0) == 300.0
    held = [held_outputs_bytes(layout, training, of, rank, 100.0, held_up=True) for rank in range(4)]
    assert held == pytest.approx([200.0, 100.0, 0.0, 0.0])


def test_routed_tokens_on_the_fullest_of_two_ranks() -> None:
    """4 layers hold 12 microbatches' copies; h = f = 64, 1,024 tokens to 2 experts each: C = 2,048 copies of h.

    Saved: what arrives, gate and up, and the product, 2 (h + 2 f + f) = 8 h bytes a copy. Layers vary independently:
    12 x 8 h / sqrt(4). Beside them, while experts' outputs come back, the gradient's copies and two exchange buffers of
    combine: 6 h. Dice alone, the fullest of two ranks has M sqrt(1 / C) more, M = max of two normals: mean 1/sqrt(pi),
    variance 1 - 1/pi, less the 1/2 of their mean.
    """
    sizes = Mixture(experts=8, topk=2, expert_ffn=64)
    end = Block("end", ())
    dims = {"hidden": 64, "batch": 2, "seq": 512, **sizes.dims}
    graph = ModelGraph("by hand", dims, {"layer": MIXTURE}, ("layer",) * 4, end, end, tied_embeddings=False)
    local = {**dims, "experts": 4}
    one = np.ones(1, dtype=np.int64)
    flight = Flight(
        (("layer", "none"),), 0 * one, one[None] * 4, one[None] * 12, one, np.stack([one] * 2), np.stack([one] * 2),
        np.stack([0 * one] * 2), np.stack([one > 0] * 2), one > 0, one < 0,
    )  # fmt: skip
    rank = RankDims(local, local, {**local, "load": 1.0})
    habits = (Layout(dp=2, ep=2), Stack(name="none", description=""))
    mean, deviation = experts_risk_bytes(graph, flight, rank, habits, 0 * one, (0.0, 0.0))
    routed = 2048 * 64 * math.sqrt((12 * 8) ** 2 / 4 + 6**2)
    assert float(mean[0]) == pytest.approx(routed / math.sqrt(math.pi * 2048), rel=1e-5)
    assert float(deviation[0]) == pytest.approx(routed * math.sqrt((0.5 - 1 / math.pi) / 2048), rel=1e-4)


MIXTURE = Block("layer", tuple(mixture("input", Mixture(experts=8, topk=2, expert_ffn=64))))
T, C, H = 1024, 2048, 64
"""Tokens, their copies (two each) and features, of tokens and of experts."""


@pytest.mark.parametrize(("keeps", "more"), [(False, 0), (True, 2 * H * C + 4 * H * T)])
def test_activations_of_a_mixture(keeps: bool, more: int) -> None:
    """Kept: the input, fp32 logits of 8 experts, and of a copy its input, gate and up, and their product: 2 x 4 h.

    ``keeps_outputs``: what experts return, and what the router reads in fp32. Workspaces, while combine runs: its
    output and two exchange buffers of copies; backward the residual's gradient, its own, the copies' and both buffers.
    """
    local = {"hidden": H, "batch": 2, "seq": 512, **Mixture(experts=8, topk=2, expert_ffn=64).dims}
    of = Stack.model_validate({"name": "", "description": "", "experts": {"keeps_outputs": keeps}})
    found = block_activations(MIXTURE, RankDims(local, local, {**local, "load": 1.0}), of, DecidedNumerics())
    assert found.saved_bytes == 2 * H * T + 4 * 8 * T + 8 * H * C + more
    assert found.forward_workspace_bytes == 2 * H * T + 2 * 2 * H * C
    assert found.backward_workspace_bytes == 2 * H * T + 2 * H * T + 2 * H * C + 2 * 2 * H * C


def attention_block(name: str = "qkv") -> Block:
    """A fused projection of 1,024 features to queries, keys and values of as many, and flash attention."""
    qkv = term("heads", "head_dim", times=3)
    weights = (Weight("weight", term("hidden", "heads", "head_dim", times=3)),)
    tokens = term("batch", "seq")
    project = Operator(
        name, "matmul", tokens, qkv, "tensor", contraction=term("hidden"), weights=weights, inputs=("input",),
        saves=("input",),
    )  # fmt: skip
    attend = Operator(
        "attention", "attention", tokens, term("heads", "head_dim"), "tensor", inputs=(name,),
        attention=AttentionPattern(), saves=(name, "attention", "lse"),
    )  # fmt: skip
    return Block("layer", (project, attend))


def test_workspaces_of_attention() -> None:
    """In units of 1,024 x 1,024: kept are x, q, k, v and the result, 2 (1 + 3 + 1), and 4 bytes a row and head.

    Backward, beside the residual's gradient (2): of attention those of its result (2) and of q, k, v (6), and an fp32
    sum of the query's (4), 14 in all. An empty gradient of the projection (6), beside its own (6 + 2), makes it 16.
    Transformer Engine keeps one for the run instead, but not for the output projection of the model.
    """
    local = {
        "hidden": 1024, "batch": 2, "seq": 512, "heads": 16, "kv_heads": 16, "head_dim": 64, "context": 512,
        "blocks": 1, "gathered": 1, "ulysses": 1,
    }  # fmt: skip
    unit, results = 2**20, {}
    for fused, engine in ((False, False), (True, False), (True, True)):
        of = Stack.model_validate({
            "name": "", "description": "", "numerics": {"gradient_accumulation_fusion": fused},
            "memory": {"transformer_engine": engine},
        })  # fmt: skip
        results[fused, engine] = block_activations(attention_block(), RankDims(local, local), of, DecidedNumerics())
    plain = results[False, False]
    assert plain.saved_bytes == 10 * unit + 4 * 1024 * 16
    assert [each.backward_workspace_bytes / unit for each in results.values()] == [14, 16, 14]
    head = Block("head", attention_block("lm_head").operators[:1])
    alone = block_activations(head, RankDims(local, local), of, DecidedNumerics())
    assert alone.backward_workspace_bytes / unit == 6


@pytest.mark.parametrize(
    ("plan", "numerics", "memory", "expected"),
    [
        ({}, {"parameter_dtype": "fp32"}, {"cast_weights": True}, 2000),
        ({}, {}, {"cast_weights": True}, 0),  # stored as they are read
        ({}, {"parameter_dtype": "fp32"}, {}, 0),
        ({"precision": "fp8"}, {"parameter_dtype": "fp32"}, {"cast_weights": True}, 0),  # cast each time
    ],
)
def test_narrow_copies_of_matrices(
    plan: dict[str, object], numerics: dict[str, object], memory: dict[str, object], expected: int
) -> None:
    """2 bytes of 1,000 elements that are stored in 4, kept through all passes; none of what a gather narrows."""
    of = stack(numerics=numerics, memory=memory)
    layout = layout_of(of, **{"dp": 2, **plan})
    assert float(cast_term(layout, of, 1000, sharded=False).size_bytes) == expected
    assert float(cast_term(layout, of, 1000, sharded=True).size_bytes) == 0


@pytest.mark.parametrize(("zero", "dp", "copies"), [(0, 2, 1), (1, 2, 1), (2, 2, 0), (3, 2, 0), (3, 1, 1)])
def test_narrow_copies_are_of_whole_parameters(zero: int, dp: int, copies: int) -> None:
    """From ZeRO-2 of FSDP on parameters are gathered narrow, where several ranks share them: 2 x 3 x 1,024^2 bytes."""
    of = stack(numerics={"parameter_dtype": "fp32"}, memory={"cast_weights": True})
    layout = layout_of(of, dp=dp, zero=zero)
    end = Block("end", ())
    dims = {"hidden": 1024, "batch": 2, "seq": 512, "heads": 16, "head_dim": 64, "vocab": 1024}
    graph = ModelGraph("by hand", dims, {"layer": attention_block()}, ("layer",), end, end, tied_embeddings=False)
    held = held_memory(
        graph, HeldBlocks(((attention_block(), 1),), 0, 0), dims, layout, of, load_device("h100-sxm-80gb")
    )
    assert held.bytes_of("parameters", PASSES) == copies * 2 * 3 * 1024**2


def test_what_may_move_within_a_limit() -> None:
    """Of 21 MiB whole segments are 20; 8 stay, and gaps of 20 % leave 10 of the other 12."""
    habits = AllocatorHabits(fragmentation=0.2, churn=0.5)
    assert most_moving_bytes(8 * MIB, 21.0 * MIB, habits, alternates=False) == pytest.approx(10 * MIB)
