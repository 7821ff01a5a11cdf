"""DeepSeek V4: parameters as transformers counts them and as published, kinds of layers, what is refused."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from tests.architectures.counted import counted_alike

TRAINING = simpar.Training(seq_len=512, global_batch=16)
TINY = DECLARED["deepseek_v4"].tiny


def tiny(**more):
    """The tiny model, changed."""
    return read({**TINY, "model_type": "deepseek_v4", **more})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes", [{}, {"compress_ratios": None, "num_hash_layers": 3}])
def test_parameters_are_those_of_transformers(changes):
    """Every kind of layer, as listed and by default."""
    counted_alike("deepseek_v4", {**TINY, **changes})


@pytest.mark.parametrize(
    ("name", "parameters", "biases", "active"),
    [("deepseek-v4-flash", 284_332_230_231, 40 * 256, 13e9), ("deepseek-v4-pro", 1_572_997_179_491, 58 * 384, 49e9)],
)
def test_published_sizes(name, parameters, biases, active):
    """The class's own count with the biases that choose experts; 284B-A13B and 1.6T-A49B without the token table."""
    graph = load_model(name)
    assert graph.num_parameters() == parameters + biases
    table = evaluate((((1, ("vocab", "hidden"))),), graph.dims)
    assert graph.num_active_parameters() - table == pytest.approx(active, rel=0.025)


def test_kinds_of_layers():
    """Flash has two layers with a window alone, Pro two compressed ones; the first three have tables of experts."""
    flash, pro = (load_model(f"deepseek-v4-{name}").layers for name in ("flash", "pro"))
    assert flash[:4] == ("layer_hash_window", "layer_hash_window", "layer_hash_sparse_4", "layer_compressed_128")
    assert pro[:4] == ("layer_hash_compressed_128", "layer_hash_compressed_128", "layer_hash_sparse_4", flash[3])
    assert (len(flash), len(pro), flash[-1], pro[-1]) == (44, 62, "prediction", "prediction")
    graph = load_model("deepseek-v4-flash")
    assert [len(graph.blocks[name].operator("router").weights) for name in flash[2:4]] == [1, 2]


def test_words_and_numbers_say_the_same():
    """Kinds of layers, and tokens of a key."""
    words = ["sliding_attention", "heavily_compressed_attention", *["compressed_sparse_attention"] * 2]
    assert tiny(compress_ratios=None, layer_types=words).layers == tiny().layers
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    names = tiny(compress_ratios=None, layer_types=words, compress_rates=rates).layers
    assert names == ("layer_hash_window", "layer_compressed_64", "layer_sparse_8", "layer_sparse_8")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("compress_ratios", [0, 2, 4, 4], r"compress_ratios = \[0, 2, 4, 4\]: allowed: one of 0, 4, 128 for each of 4"),
        ("mlp_layer_types", ["moe"], "mlp_layer_types = .*: allowed: one of hash_moe, moe for each of 4 layers"),
        ("num_key_value_heads", 2, "num_key_value_heads = 2: allowed: 1"),
        ("o_groups", 3, "o_groups = 3 does not divide 4 attention heads"),
    ],
)
def test_other_layers_are_refused(field, value, said):
    """In one line with the field and what is allowed."""
    with pytest.raises(simpar.UserError, match=said):
        tiny(**{field: value})


def test_a_prediction_layer_works_on_every_stream():
    """One product with each of two streams, beside the next token's."""
    block = tiny(num_nextn_predict_layers=1).blocks["prediction"]
    state, token = (block.operator(f"join_{name}") for name in ("state", "embedding"))
    dims = {"batch": 1, "seq": 8, "streams": 2}
    assert (evaluate(state.rows, dims), evaluate(token.rows, dims)) == (16, 8)


def test_plans_do_the_same_work():
    """Expert, context, tensor and pipeline parallelism, with a layer that predicts a further token."""
    plans = ({"ep": 4, "cp": 2}, {"tp": 2, "sequence_parallel": True, "ep": 2}, {"pp": 2, "zero": 1})
    results = [simpar.simulate(tiny(num_nextn_predict_layers=1), "dgx-h100", plan, TRAINING) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
