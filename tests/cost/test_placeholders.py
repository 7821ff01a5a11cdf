"""Empty weight gradients that stay: one of each shape of a layer's projections."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.cost.memory.static import placeholder_bytes
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.layout.sharding import rank_dims
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack
from tests.cost.account import stage_static_memory

TRAINING = Training(seq_len=4096, global_batch=8)


def kept(model: str, stack: str = "megatron", **plan: object) -> float:
    """Bytes of placeholders on a rank."""
    graph = load_model(model)
    return float(
        placeholder_bytes(graph, rank_dims(graph, Layout.of(Plan(**plan)), TRAINING).tensor, load_stack(stack))
    )


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_one_layer_of_projections_in_bf16(tp: int) -> None:
    """Llama 3 70B: packed query, key and value, output, gate and up, down; never the embedding or the head."""
    hidden, ffn, kv = 8192, 28672, 1024
    assert kept("llama-3-70b", tp=tp) == 2 * (hidden * (2 * hidden + 2 * kv) + 3 * hidden * ffn) / tp


def test_experts_share_one_of_their_shape() -> None:
    """Mixtral: attention, the router's and one expert's products, whatever number a rank holds."""
    few, many = (kept("mixtral-8x7b", ep=ep) for ep in (8, 2))
    assert few == many
    assert few == 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)


def test_they_are_in_the_account_of_a_rank() -> None:
    """Beside parameters, gradients and states, on every stage."""
    habits, graph = load_stack("megatron"), load_model("llama-3-70b")
    for stage in (0, 3):
        plan = resolve(Plan(tp=4, pp=4), habits)
        terms = stage_static_memory(graph, plan, TRAINING, habits, stage).terms
        assert [int(each.size_bytes) for each in terms if each.name == "empty weight gradients"] == [
            kept("llama-3-70b", tp=4)
        ]


def test_stacks_without_them() -> None:
    """Megatron's own layers hand over an empty tensor and drop it."""
    assert kept("llama-3-70b", "megatron-sc21") == 0.0
    assert kept("llama-3-70b", "torchtitan") == 0.0
