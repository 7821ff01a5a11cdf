"""What one tensor-parallel rank sees."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.layout.layout import Layout
from simpar.layout.sharding import SHARDED_DIMS, rank_dims
from simpar.plan.plan import Plan

TRAINING = Training(seq_len=8192, global_batch=64)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_sharded_dims_are_divided_and_the_others_whole(tp):
    """Heads, key-value heads and ffn are divided by tp; hidden and head_dim are not."""
    graph = load_model("llama-3-8b")
    dims = rank_dims(graph, Layout.of(Plan(tp=tp)), TRAINING).tensor
    for name in set(SHARDED_DIMS) & set(dims) - {"vocab"}:
        assert dims[name] * tp == graph.dims[name]
    assert (dims["hidden"], dims["head_dim"]) == (graph.dims["hidden"], graph.dims["head_dim"])


def test_rows_of_another_tower_are_shared_out():
    """Of 1,500 frames each of 4 context-parallel ranks has 375, whose keys others need; of 448 tokens of text 112."""
    dims = rank_dims(load_model("whisper-tiny"), Layout.of(Plan(cp=4)), Training(seq_len=448, global_batch=8)).tensor
    assert (dims["memory"], dims["encoder.seq"], dims["seq"], dims["encoder.context"]) == (375, 375, 112, 1500)


def test_experts_are_shared_out_and_their_ffn_divided():
    """16 experts on 4 ranks are 4 each; two ranks of an expert hold half its ffn; routing keeps all of them."""
    graph = load_model("tiny-mixture")
    dims = rank_dims(graph, Layout.of(Plan(tp=2, dp=2, ep=4, etp=2)), TRAINING).tensor
    assert (dims["experts"], dims["num_experts"], dims["expert_ffn"], dims["shared_ffn"]) == (4, 16, 64, 64)


def test_routed_tokens_are_those_of_the_ranks_that_share_an_expert():
    """With sequence parallelism a rank routes its own rows and works on those of its etp peers; else on all rows."""
    graph = load_model("tiny-mixture")
    rows = {
        etp: rank_dims(graph, Layout.of(Plan(tp=4, dp=1, ep=ep, etp=etp, sequence_parallel=True)), TRAINING).expert[
            "seq"
        ]
        for etp, ep in ((1, 4), (2, 2), (4, 1))
    }
    assert rows == {1: 2048, 2: 4096, 4: 8192}
    assert rank_dims(graph, Layout.of(Plan(tp=4, dp=1)), TRAINING).expert["seq"] == 8192


def test_key_value_heads_are_copied_below_one():
    """16 ranks share 8 key-value heads by keeping one each."""
    assert rank_dims(load_model("llama-3-8b"), Layout.of(Plan(tp=16)), TRAINING).tensor["kv_heads"] == 1


def test_the_vocabulary_is_padded_as_megatron_does():
    """Under tensor parallelism the vocabulary becomes a multiple of 128 x tp; without, it stays."""
    graph = load_model("gpt2")
    assert rank_dims(graph, Layout.of(Plan()), TRAINING).tensor["vocab"] == 50257
    assert rank_dims(graph, Layout.of(Plan(tp=2)), TRAINING).tensor["vocab"] == 50432 // 2
    assert rank_dims(graph, Layout.of(Plan(tp=4)), TRAINING).tensor["vocab"] == 50688 // 4


def test_sequence_parallelism_shares_the_rows_of_region_sequence():
    """Region "sequence" has 1/tp of the rows under sequence parallelism, region "tensor" always all."""
    graph = load_model("llama-3-8b")
    with_it = Layout(tp=4, sequence_parallel=True, micro_batch=2)
    without = Layout(tp=4, micro_batch=2)
    assert rank_dims(graph, with_it, TRAINING).sequence["seq"] == 8192 // 4
    assert rank_dims(graph, without, TRAINING).sequence == rank_dims(graph, without, TRAINING).tensor
    for layout in (with_it, without):
        assert rank_dims(graph, layout, TRAINING).tensor["seq"] == 8192
        assert rank_dims(graph, layout, TRAINING).sequence["context"] == 8192
        assert rank_dims(graph, layout, TRAINING).sequence["batch"] == 2
