"""Rows of one layer, and runs that recomputed or narrowed what they do not print: the least that fits is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.as_published import layer_time_s, predict_published, recompute_to_fit
from benchmarks.normalise.stacks import EIGHT_BIT_RATE
from simpar.validation.predict import predict
from simpar.validation.rows import case, read_measurements
from simpar.validation.table import outcomes_of
from tests.benchmarks.normalise import published
from tests.validation.test_validate import ROW

LARGE = {**ROW, "seq_len": "32768", "global_batch_seqs": "16", "tp": "1", "dp": "16"}
"""A step whose activations alone are beyond an H100."""
ADAPTERS = {
    **ROW, "model_name": "Llama-2-70B LoRA", "n_layers": "80", "hidden": "8192", "n_heads": "64", "n_kv_heads": "8",
    "ffn_hidden": "28672", "seq_len": "8192", "gpu_type": "B200", "n_gpus": "8", "precision": "fp8", "tp": "1",
    "dp": "8", "global_batch_seqs": "16", "micro_batch": "2", "stack": "nemo",
    "source": "MLPerf", "notes": "LoRA rank 16, attention projections",
}  # fmt: skip
LAYER = {
    **ROW, "n_layers": "1", "model_name": "one layer", "gpu_type": "A100 SXM 80GB", "n_gpus": "8", "tp": "8", "dp": "1",
    "global_batch_seqs": "4", "micro_batch": "4", "zero_stage_or_fsdp": "", "iteration_time_s": "",
    "layer_forward_s": "0.0077", "layer_backward_s": "0.0119",
}  # fmt: skip


def test_the_fewest_layers_are_recomputed_with_which_it_fits() -> None:
    """One less does not fit; the report says how many, and that the printed settings do not."""
    entry = case(LARGE)
    printed = predict(entry)
    assert not printed.fits
    ran, prediction = recompute_to_fit(entry, printed, read_measurements(LARGE))
    again = str(ran.plan["recompute"])
    count = 32 if again == "full" else int(again.partition("full*")[2].partition(",")[0])
    assert prediction.fits
    assert prediction.step_time_s > printed.step_time_s
    fewer = f"layers:full*{count - 1},none*{33 - count}"
    assert not predict(replace(entry, plan={**entry.plan, "recompute": fewer})).fits
    (shown,) = outcomes_of([LARGE], predicted=predict_published)
    assert f"{count} of 32 layers recomputed" in shown.read_as
    assert shown.prediction is not None
    assert not shown.prediction.fits
    assert shown.prediction.step_time_s == prediction.step_time_s


@pytest.mark.parametrize(
    "said", [{"peak_mem_gib": "70"}, {"status": "oom"}, {"recompute": "selective"}, {"seq_len": "4096"}]
)
def test_what_is_said_or_fits_stays(said: dict[str, str]) -> None:
    """Peaks that were logged, runs that failed, settings of recomputation, and what there is room for."""
    row = {**LARGE, **said}
    entry = case(row)
    printed = predict(entry)
    assert recompute_to_fit(entry, printed, read_measurements(row)) == (entry, printed)


def test_inputs_of_activations_are_narrowed_where_that_costs_less_than_layers() -> None:
    """Frozen weights of 70B take 64 GiB in 8 bits, activations of two sequences more than a B200 has."""
    entry = published.case(ADAPTERS)
    assert entry.plan["frozen_dtype"] == "fp8"
    assert "frozen weights and attention in 8 bits" in entry.read_as
    printed = predict(entry)
    ran, _ = recompute_to_fit(entry, printed, read_measurements(ADAPTERS))
    assert ran.stack_changes["memory.gate_inputs"] == "fp8"
    assert str(ran.plan["recompute"]).startswith("layers:full*")
    assert "inputs of activations kept in 8 bits, for it does not fit as printed" in ran.read_as
    narrow = predict(replace(entry, stack_changes={**entry.stack_changes, "memory.gate_inputs": "fp8"}))
    saved = 80 * 2 * 8192 * 2 * 28672
    assert printed.peak_allocated_bytes - narrow.peak_allocated_bytes == pytest.approx(saved, rel=0.02)
    assert 1.01 < narrow.step_time_s / printed.step_time_s < 1.04
    assert "frozen_dtype" not in published.case({**ADAPTERS, "precision": "bf16"}).plan
    assert "frozen_dtype" not in published.case({**ADAPTERS, "source": "a table"}).plan


def test_adapters_of_a_contest_attend_in_8_bits_where_no_ranks_share_a_sequence() -> None:
    """It is quicker; AMD's, other precisions and other tables are left as they are."""
    entry = published.case(ADAPTERS)
    assert entry.stack_changes == {"fusion.attention_rate.others": EIGHT_BIT_RATE}
    assert "frozen weights and attention in 8 bits" in entry.read_as
    assert predict(entry).step_time_s < predict(replace(entry, stack_changes={})).step_time_s
    for other in ({"cp": "2", "dp": "4"}, {"gpu_type": "MI325X"}, {"precision": "bf16"}, {"source": "a paper"}):
        assert not published.case({**ADAPTERS, **other}).stack_changes


def test_a_row_of_one_layer_is_compared_with_its_passes() -> None:
    """Neither embedding, head and update nor the number of layers count, and fits are not compared."""
    assert layer_time_s(LAYER) == pytest.approx(0.0196)
    assert layer_time_s(ROW) is None
    one, three = outcomes_of([{**LAYER, "n_layers": layers} for layers in ("1", "3")], predicted=predict_published)
    assert one.measured is not None
    assert one.measured.step_time_s == pytest.approx(0.0196)
    assert one.measured.fits is None
    assert one.prediction is not None
    assert three.prediction is not None
    assert one.prediction.step_time_s == pytest.approx(three.prediction.step_time_s, rel=0.02)
    (whole,) = outcomes_of([{**LAYER, "layer_forward_s": "", "iteration_time_s": "1"}], predicted=predict_published)
    assert whole.prediction is not None
    assert one.prediction.step_time_s < whole.prediction.step_time_s
    assert one.read_as.endswith("one layer")
