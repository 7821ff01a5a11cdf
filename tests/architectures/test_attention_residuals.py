"""Attention residuals: the bank's rows, what layers keep of it, and what stages send."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read

MODEL = load_model("kimi-k3")
HIDDEN = 7168
LAYERS = [name for name in MODEL.layers if name.startswith("layer")]


def sources(layer: int, name: str) -> int:
    """Tensors that an operator of a layer of the language model weighs."""
    size = evaluate(MODEL.blocks[LAYERS[layer]].operator(name).contraction, MODEL.dims)
    return int(size) // HIDDEN


@pytest.mark.parametrize(
    ("layer", "before", "after"), [(0, 1, 2), (1, 2, 2), (12, 2, 3), (13, 3, 3), (84, 8, 9), (92, 9, 9)]
)
def test_a_row_joins_every_twelve_layers(layer: int, before: int, after: int) -> None:
    """Attention weighs the rows before its layer and the sum; the MLP also the row that the layer adds."""
    assert (sources(layer, "attention_pick"), sources(layer, "mlp_pick")) == (before, after)


def test_a_new_sum_begins_with_a_row() -> None:
    """The first layer of a period leaves the stream out of its sum."""
    first, second = (MODEL.blocks[LAYERS[at]].operator("attention_residual").inputs for at in (12, 13))
    assert first == ("out_proj",)
    assert second == ("input", "out_proj")


def test_the_bank_travels_with_the_stream() -> None:
    """Two stages of 2 layers, a period of 3: one row of 32 features beside the sum, 512 tokens, 16 microbatches."""
    text = {**DECLARED["kimi_k3"].tiny["text_config"], "model_type": "kimi_linear"}
    plan = {"pp": 2}
    result = simpar.simulate(read(text), "dgx-h100", plan, simpar.Training(seq_len=512, global_batch=64))
    assert result.communication["pp"].bytes_per_rank == 16 * (1 + 1) * 32 * 512 * 2


def test_a_stage_keeps_the_rows_that_it_receives() -> None:
    """Of stages of 2 layers, the second begins within a period of 3: one row of 32 x 512 features of 16 bits more.

    A stage that begins a period copies its rows and keeps the copy, as before.
    """
    text = {**DECLARED["kimi_k3"].tiny["text_config"], "model_type": "kimi_linear"}
    training = simpar.Training(seq_len=512, global_batch=64)
    graph = read(text)
    alone = replace(graph, facts={**graph.facts, "reads_passed": False})
    peaks = {}
    for given in (graph, alone):
        for pp, plan in ((2, {"pp": 2}), (1, {})):
            result = simpar.simulate(given, "dgx-h100", plan, training)
            peaks[given is graph, pp] = [stage.peak_bytes for stage in result.memory.stages]
    assert peaks[True, 1] == peaks[False, 1]
    assert [a - b for a, b in zip(peaks[True, 2], peaks[False, 2], strict=True)] == [0, 32 * 512 * 2]
