"""Rows of one layer: its passes alone, compared with forward and backward of the notes."""

from __future__ import annotations

import pytest

from simpar.validation.layers import layer_time_s
from simpar.validation.table import outcome
from tests.validation.test_validate import ROW

LAYER = {
    **ROW, "n_layers": "1", "model_name": "one layer", "gpu_type": "A100 SXM 80GB", "n_gpus": "8", "tp": "8", "dp": "1",
    "global_batch_seqs": "4", "micro_batch": "4", "zero_stage_or_fsdp": "", "iteration_time_s": "",
    "layer_forward_s": "0.0077", "layer_backward_s": "0.0119",
}  # fmt: skip


def test_a_row_of_one_layer_is_compared_with_its_passes() -> None:
    """Neither embedding, head and update nor the number of layers count, and fits are not compared."""
    assert layer_time_s(LAYER) == pytest.approx(0.0196)
    assert layer_time_s(ROW) is None
    one, three = (outcome(2, {**LAYER, "n_layers": layers}) for layers in ("1", "3"))
    assert one.measured is not None
    assert one.measured.step_time_s == pytest.approx(0.0196)
    assert one.measured.fits is None
    assert one.prediction is not None
    assert three.prediction is not None
    assert one.prediction.step_time_s == pytest.approx(three.prediction.step_time_s, rel=0.02)
    whole = outcome(2, {**LAYER, "layer_forward_s": "", "iteration_time_s": "1"})
    assert whole.prediction is not None
    assert one.prediction.step_time_s < whole.prediction.step_time_s
    assert one.read_as.endswith("one layer")
