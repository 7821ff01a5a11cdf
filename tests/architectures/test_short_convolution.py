"""Short convolutions: LFM2's parameters, products and the plans that it allows."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import matmul_flop_per_token
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

TINY_MIXTURE = {**DECLARED["lfm2_moe"].tiny, "model_type": "lfm2_moe"}
PUBLISHED = {"lfm2-350m": 354_483_968, "lfm2-700m": 742_489_344, "lfm2-1.2b": 1_170_340_608}
"""Totals of the released checkpoints (safetensors indices on the Hugging Face hub)."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["lfm2", "lfm2_moe"])
def test_parameters_are_those_of_transformers(kind):
    """Convolutions, attention and experts to the parameter, also with biases and other kernels."""
    tiny = dict(DECLARED[kind].tiny)
    counted_alike(kind, tiny)
    counted_alike(kind, {**tiny, "conv_bias": True, "conv_L_cache": 5})


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    """The width of the MLP is adjusted as the config says."""
    assert load_model(name).num_parameters() == PUBLISHED[name]


def test_the_mixture_is_as_large_as_announced():
    """8.3 B in all, 1.5 B for each token [LFM2-8B-A1B model card]."""
    graph = load_model("lfm2-8b-a1b")
    assert (round(graph.num_parameters() / 1e9, 1), round(graph.num_active_parameters() / 1e9, 1)) == (8.3, 1.6)


def test_a_convolution_multiplies_by_its_two_projections():
    """Three times the width in, once out; no attention."""
    whole = read({**DECLARED["lfm2"].tiny, "model_type": "lfm2"}, "tiny")
    attends = read({**DECLARED["lfm2"].tiny, "model_type": "lfm2", "layer_types": ["full_attention"] * 3}, "tiny")
    h, kv = 32, 2 * 8
    grown = 2 * (2 * 4 * h * h - 2 * (2 * h * h + 2 * h * kv))
    assert matmul_flop_per_token(whole, 64) - matmul_flop_per_token(attends, 64) == grown


def test_plans_split_channels_by_heads():
    """Tensor, context and expert parallelism, and a pipeline."""
    training, graph = simpar.Training(seq_len=512, global_batch=16), read(TINY_MIXTURE, "tiny")
    plans = ({"tp": 2, "sequence_parallel": True}, {"cp": 2, "zero": 3}, {"pp": 2, "ep": 2})
    results = [simpar.simulate(graph, "dgx-h100", plan, training) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["conv"]}, "layer_types = .*: allowed: one for each of 3 layers"),
        ({"head_dim": 16}, "head_dim = 16: allowed: hidden_size / num_attention_heads"),
    ],
)
def test_what_the_family_does_not_have_is_refused(changes, words):
    """With the field and its value."""
    with pytest.raises(UserError, match=words):
        read({**DECLARED["lfm2"].tiny, "model_type": "lfm2", **changes}, "tiny")
