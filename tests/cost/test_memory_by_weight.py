"""Weights that are gathered and reduced one at a time, as XLA does, by figures computed by hand."""

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.layout.decide import decide
from simpar.layout.sharding import dims_of
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack

H, F, LAYER = 4096, 11008, 4 * 4096**2 + 3 * 4096 * 11008
TRAINING = {"seq_len": 16, "global_batch": 8}


def test_largest_weight_of_a_layer():
    """Llama 7B: gate and up count apart, so that one of them is H x F of 4 H^2 + 3 H F + 2 H parameters."""
    model = load_model("llama-7b")
    layout = decide(Plan(zero=3), Workload(model, simpar.Training(**TRAINING), 8, 8), load_stack("maxtext"))
    dims = dims_of(model, layout, simpar.Training(**TRAINING)).tensor
    share = model.blocks[model.layers[0]].largest_share(dims)
    assert share == pytest.approx(H * F / (LAYER + 2 * H), rel=1e-12)
    assert model.head.largest_share(dims) == pytest.approx(32000 / 32001, rel=1e-12)  # beside a norm


def test_one_weight_at_a_time_is_whole():
    """A layer, the one ahead of it, and a whole gradient in bf16 shrink to their largest weight."""
    found = {}
    for by_weight in (True, False):
        stack = load_stack("maxtext")
        stack = stack.model_copy(update={"buckets": stack.buckets.model_copy(update={"by_weight": by_weight})})
        plan = {"zero": 3, "micro_batch": 1, "recompute": "full"}
        (stage,) = simpar.simulate("llama-7b", "dgx-h100", plan, TRAINING, stack=stack).memory.stages
        found[by_weight] = stage.transient_bytes
    # two buffers for gathered layers and two for gradients: three or four of them at the peak, one may be the head
    layers = (found[False] - found[True]) / (2 * LAYER * (1 - H * F / LAYER))
    assert 3 <= layers <= 4
    assert found[True] > 3 * 2 * H * F
