"""What one tensor-parallel rank sees."""

from __future__ import annotations

import pytest

from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.sharding import SHARDED_DIMS, sequence_dims, tensor_dims

TRAINING = Training(seq_len=8192, global_batch=64)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_sharded_dims_are_divided_and_the_others_whole(tp):
    """Heads, key-value heads and ffn are divided by tp; hidden and head_dim are not."""
    graph = load_model("llama-3-8b")
    dims = tensor_dims(graph, Plan(tp=tp), TRAINING)
    for name in set(SHARDED_DIMS) - {"vocab"}:
        assert dims[name] * tp == graph.dims[name]
    assert (dims["hidden"], dims["head_dim"]) == (graph.dims["hidden"], graph.dims["head_dim"])


def test_key_value_heads_are_copied_below_one():
    """16 ranks share 8 key-value heads by keeping one each."""
    assert tensor_dims(load_model("llama-3-8b"), Plan(tp=16), TRAINING)["kv_heads"] == 1


def test_the_vocabulary_is_padded_as_megatron_does():
    """Under tensor parallelism the vocabulary becomes a multiple of 128 x tp; without, it stays."""
    graph = load_model("gpt2")
    assert tensor_dims(graph, Plan(), TRAINING)["vocab"] == 50257
    assert tensor_dims(graph, Plan(tp=2), TRAINING)["vocab"] == 50432 // 2
    assert tensor_dims(graph, Plan(tp=4), TRAINING)["vocab"] == 50688 // 4
    assert tensor_dims(graph, Plan(tp=2), TRAINING, vocab_multiple=1)["vocab"] == 50258 // 2


def test_sequence_parallelism_shares_the_rows_of_region_sequence():
    """Region "sequence" has 1/tp of the rows under sequence parallelism, region "tensor" always all."""
    graph = load_model("llama-3-8b")
    with_it, without = Plan(tp=4, sequence_parallel=True, micro_batch=2), Plan(tp=4, micro_batch=2)
    assert sequence_dims(graph, with_it, TRAINING)["seq"] == 8192 // 4
    assert sequence_dims(graph, without, TRAINING) == tensor_dims(graph, without, TRAINING)
    for plan in (with_it, without):
        assert tensor_dims(graph, plan, TRAINING)["seq"] == 8192
        assert sequence_dims(graph, plan, TRAINING)["context"] == 8192
        assert sequence_dims(graph, plan, TRAINING)["batch"] == 2
