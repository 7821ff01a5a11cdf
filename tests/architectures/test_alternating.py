"""Gemma 3n: streams that are predicted and corrected, a branch of low rank, keys of other layers, sparse gates."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import find_model, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import matmul_flop_per_token, shape_dims
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

TINY = DECLARED["gemma3n_text"].tiny
PUBLISHED = {"gemma-3n-e2b": (5.44, 4_435_182_688, 10), "gemma-3n-e4b": (7.85, 6_835_235_568, 15)}
"""Billions of the released checkpoints, what transformers' class has without the towers, layers that read others'."""


def tiny(**more):
    """A tiny text model, the last three layers of six of which read the keys of others."""
    return read({**TINY, "model_type": "gemma3n_text", **more}, "tiny")


@pytest.mark.filterwarnings("ignore")
def test_parameters_are_those_of_transformers():
    """With shared keys, embeddings by layer, maps and the branch of low rank."""
    counted_alike("gemma3n_text", dict(TINY))


@pytest.mark.parametrize("name", PUBLISHED)
def test_released_models_are_as_large_as_without_their_towers(name):
    """Both have the same towers, of 0.98 B, and weights for keys and values that no layer uses."""
    published, exact, shared = PUBLISHED[name]
    assert load_model(name).num_parameters() == exact
    unused = shared * (2 * 2048 * 2 * 256 + 256)
    assert published - (exact + unused) / 1e9 == pytest.approx(0.983, abs=0.005)
    assert find_model(f"google/gemma-3n-{name[-3:].upper()}-it") == name


def test_flop_of_products_are_those_of_the_closed_form():
    """Attention, MLP, maps, the branch of low rank and the layer's embedding; products of streams at the ends."""
    h, ffn, heads, keys, width, n, rank, own, layers = 32, 48, 4, 2, 8, 4, 4, 4, 6
    each = h * heads * width * 2 + 3 * h * ffn + 2 * h * n + n**3 + n**2 + 2 * h * rank + 2 * h * own
    made = 2 * h * keys * width  # keys and values, in three layers
    ends = 2 * (n - 1) * h * h + h * own * layers + h * 96
    assert matmul_flop_per_token(tiny(), 64) == 2 * (layers * each + 3 * made + ends)


def test_all_streams_travel_between_layers():
    """With keys and embeddings beside them; gates of sparse layers take one more pass."""
    graph = tiny()
    dims = shape_dims(graph, 16)
    sent = [graph.blocks[name].output_elements(dims) for name in graph.layers]
    beside = [evaluate(graph.blocks[name].passes, dims) for name in graph.layers]
    assert [both - part for both, part in zip(sent, beside, strict=True)] == [16 * 4 * 32] * 6
    sparse = ["mlp_sparsity" in [op.name for op in graph.blocks[name].operators] for name in graph.layers]
    assert sparse == [True] + [False] * 5


def test_every_kind_of_plan_answers():
    """Tensor and sequence parallelism, a pipeline, shards."""
    training = simpar.Training(seq_len=512, global_batch=16)
    for plan in ({"tp": 2, "sequence_parallel": True}, {"pp": 2, "zero": 1}, {"zero": 3}):
        assert simpar.simulate(tiny(), simpar.Cluster("dgx-h100"), simpar.Plan(**plan), training).fits


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"intermediate_size": [48] * 5 + [64]}, "allowed: one width for all layers"),
        ({"activation_sparsity_pattern": [0.95, 1.0]}, "0 up to below 1 for each of 6 layers"),
        ({"altup_num_inputs": 1}, "altup_num_inputs = 1: allowed: 2 and more"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers = 7: allowed: layers of each kind before them"),
    ],
)
def test_what_the_family_does_not_have_is_refused(changes, words):
    """With the field and its value."""
    with pytest.raises(UserError, match=words):
        tiny(**changes)
