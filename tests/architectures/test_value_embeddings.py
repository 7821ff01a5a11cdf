"""Value embeddings: tables and gates of some layers, by hand, and plans on them."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.flops import matmul_flop_per_token
from simpar.architectures.graph import ModelGraph, evaluate
from simpar.architectures.hf_config import read

CONFIG = {
    "model_type": "nanochat", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SEQ = 64


def model(**more: Any) -> ModelGraph:
    """A tiny nanochat: two key-value heads of 8 features."""
    return read({**CONFIG, **more}, "tiny")


def test_parameters_are_tables_and_gates() -> None:
    """Layers 0, 2 and 4 of 5, the last among them: V k d for a table and 12 k for its gate."""
    plain, embedded = model(), model(value_embeddings=True)
    assert embedded.num_parameters() - plain.num_parameters() == 3 * (96 * 2 * 8 + 12 * 2)
    assert ["value_embedding" in name for name in embedded.layers] == [True, False, True, False, True]
    even = model(value_embeddings=True, num_hidden_layers=4)
    assert ["value_embedding" in name for name in even.layers] == [False, True, False, True]


def test_flop_are_those_of_the_gates() -> None:
    """2 g k a token and layer: 2 x 12 x 2 in three layers, 2 x 32 x 2 with wider gates."""
    plain = matmul_flop_per_token(model(), SEQ)
    assert matmul_flop_per_token(model(value_embeddings=True), SEQ) - plain == pytest.approx(3 * 2 * 12 * 2)
    wide = model(value_embeddings=True, value_gate_features=32)
    assert matmul_flop_per_token(wide, SEQ) - plain == pytest.approx(3 * 2 * 32 * 2)


def test_one_kernel_adds_to_the_values() -> None:
    """It reads values and embedding, k d each, and k gates, and writes k d; what it read but the values is kept."""
    block = model(value_embeddings=True).blocks["layer_value_embedding"]
    added, dims = block.operator("value_sum"), model(value_embeddings=True).dims
    assert evaluate(added.contraction, dims) == 2 * 16 + 2
    assert evaluate(added.columns, dims) == 16
    assert added.saves == ("value_embedding", "value_gate")
    assert "value_sum" in block.operator("attention").inputs


def test_tensor_parallelism_divides_the_tables() -> None:
    """By heads: on each of two ranks 18 B for half of 3 x (96 x 16 + 24) parameters more, and plans answer."""
    training = simpar.Training(seq_len=SEQ, global_batch=64)
    plans = ({}, {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"zero": 3}, {"cp": 2})
    held = {}
    for embedded in (False, True):
        graph = model(value_embeddings=embedded)
        results = [simpar.simulate(graph, "dgx-h100", plan, training, with_timeline=False) for plan in plans]
        held[embedded] = [result.memory.static_memory_bytes for result in results[:2]]
    more = [embedded - plain for embedded, plain in zip(held[True], held[False], strict=True)]
    assert more[0] == pytest.approx(18 * 3 * (96 * 16 + 24), rel=0.01)
    assert more[1] == pytest.approx(more[0] / 2, rel=0.01)
