"""Weights in the bits of products: bytes of Llama 3 70B's projections, by how they are held."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.cost.memory.static import StaticMemory
from simpar.hardware.device import load_device
from simpar.layout.action_table import schedule_of
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout, apply_execution_choices
from simpar.plan.plan import Plan
from simpar.program.blocks.rank_view import RankView
from simpar.program.job import TrainingJob
from simpar.program.structure.stages import StageBuilder
from simpar.stacks.stack import load_stack

TRAINING = Training(seq_len=4096, global_batch=16)
HIDDEN, FFN, KV, LAYERS = 8192, 28672, 1024, 80
PROJECTIONS = LAYERS * (HIDDEN * (2 * HIDDEN + 2 * KV) + 3 * HIDDEN * FFN)  # 68.451 B
SCALES = 1 + 1 / 32, 1 + 4 / 128**2
"""Bytes of a weight of MXFP8 (a byte for 32) and of blocks of 128 x 128 (four bytes each), scale included."""


def account(stack: str, device: str = "h100-sxm-80gb", model: str = "llama-3-70b", **plan: object) -> StaticMemory:
    """That of the first rank."""
    habits = load_stack(stack)
    layout = Layout.of(resolve(Plan(**plan), habits))
    job = TrainingJob(
        load_model(model), TRAINING, layout, apply_execution_choices(habits, layout), KernelModel(load_device(device))
    )
    return StageBuilder(RankView.of(job), schedule_of(layout, TRAINING).rank_of_stage).static_memory(0)


def parameters(stack: str, device: str = "h100-sxm-80gb", **plan: object) -> float:
    """Bytes of all parameters of a rank."""
    return float(account(stack, device, **plan).bytes_of("parameters"))


@pytest.mark.parametrize(
    ("precision", "device", "copies"),
    [
        ("bf16", "h100-sxm-80gb", 0.0),
        ("fp8", "h100-sxm-80gb", 2.0),  # rows, and a transpose
        ("fp8", "b200-sxm", 1.0),  # tensor cores read either layout
        ("fp8", "rtx-pro-6000", 2.0),  # of Blackwell, but not of compute capability 10
        ("mxfp8", "b200-sxm", 2 * SCALES[0]),
        ("fp8_blockwise", "h100-sxm-80gb", 2 * SCALES[1]),
        ("nvfp4", "b200-sxm", 2 * (0.5 + 1 / 16)),
    ],
)
def test_copies_of_casts_stay_beside_16_bits(precision: str, device: str, copies: float) -> None:
    """Of projections alone, divided by tensor parallelism: neither tables nor norms are cast."""
    for tp in (1, 8):
        plan = {"precision": precision, "tp": tp, "dp": 2, "zero": 1}
        kept = parameters("megatron", device, **plan) - parameters("megatron", device, **plan, quantized_weights="none")
        assert kept == copies * PROJECTIONS / tp


@pytest.mark.parametrize(
    ("precision", "device", "held"),
    [
        ("fp8", "h100-sxm-80gb", 2.0),
        ("fp8", "gb200", 1.0),
        ("mxfp8", "gb200", 2 * SCALES[0]),
        ("fp8_blockwise", "h100-sxm-80gb", 2 + 2 * SCALES[1]),  # which NeMo's precision does not store
        ("nvfp4", "gb200", 2 * (0.5 + 1 / 16)),
    ],
)
def test_parameters_in_8_bits_have_no_16_bit_copy(precision: str, device: str, held: float) -> None:
    """As NeMo's precisions hold them, against 2 bytes."""
    plan = {"precision": precision, "tp": 4, "dp": 2, "zero": 1}
    more = parameters("nemo", device, **plan) - parameters("nemo", device, **plan, quantized_weights="none")
    assert more == (held - 2) * PROJECTIONS / 4


@pytest.mark.parametrize(
    ("kind", "precision", "whole", "sharded"),
    [("cached", "fp8", 2.0, 2.0), ("stored", "fp8", 0.0, 1.0), ("stored", "mxfp8", 0.0, 2 * SCALES[0])],
)
def test_shards_hold_one_layout_where_the_other_has_no_scales(
    kind: str, precision: str, whole: float, sharded: float
) -> None:
    """Under FSDP, against 2 bytes of a shard; copies of casts are of whole weights."""
    plan = {"precision": precision, "dp": 8, "zero": 3}
    wide, found = (parameters("megatron", **plan, quantized_weights=each) for each in ("none", kind))
    assert found - wide == pytest.approx(whole * PROJECTIONS + (sharded - 2) * PROJECTIONS / 8, abs=1)


def test_experts_are_cast_as_well_and_routers_are_not() -> None:
    """Mixtral on two expert-parallel ranks: four experts a layer, attention whole, on Hopper 2 bytes more each."""
    ffn, hidden = 14336, 4096
    more = [
        parameters("megatron", model="mixtral-8x7b", precision="fp8", ep=2, dp=2, zero=1, quantized_weights=kind)
        for kind in ("none", "cached")
    ]
    each = hidden * (2 * hidden + 2 * 1024) + 4 * 3 * hidden * ffn
    assert more[1] - more[0] == 2 * 32 * each


def test_gradients_and_states_do_not_depend_on_it() -> None:
    """The optimizer updates fp32 parameters of its own."""
    for category in ("gradients", "optimizer_states"):
        sizes = {
            account("megatron", precision="fp8", tp=8, dp=2, zero=1, quantized_weights=kind).bytes_of(category)
            for kind in ("none", "cached", "stored")
        }
        assert len(sizes) == 1


def test_stacks_that_cast_for_every_product_keep_nothing() -> None:
    """Those of torchao, and of torch itself."""
    for stack in ("torchtitan", "automodel", "huggingface"):
        low, wide = (parameters(stack, precision=name, dp=8, zero=3) for name in ("fp8", "bf16"))
        assert low == wide
