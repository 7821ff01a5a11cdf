"""Measured tables: rows are modelled or counted with a reason, and figures follow their definitions."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from simpar.errors import UserError
from simpar.report.certainty import Certainty
from simpar.units import GB, GIB
from simpar.validation.cells import Unmodelled
from simpar.validation.predict import Prediction, cluster_of, predict, result_of
from simpar.validation.rows import Measurements, case, read_measurements
from simpar.validation.summary import RowOutcome, figures, fit_errors, kendall_tau, regret_by_cell
from simpar.validation.table import label, read_table, validate

ROW = {
    "source": "test", "model_name": "Llama-2-7B", "n_layers": "32", "hidden": "4096", "n_heads": "32",
    "n_kv_heads": "32", "ffn_hidden": "11008", "vocab": "32000", "seq_len": "4096", "gpu_type": "H100 SXM 80GB",
    "gpus_per_node": "8", "n_gpus": "16", "interconnect": "NVLink; InfiniBand", "precision": "bf16", "tp": "2",
    "pp": "1", "dp": "8", "zero_stage_or_fsdp": "ZeRO-1", "micro_batch": "1", "global_batch_seqs": "64",
    "recompute": "none", "schedule": "1F1B", "stack": "megatron", "iteration_time_s": "1.5", "status": "ok",
}  # fmt: skip
MIXTURE = {
    "micro_batch": "", "n_experts": "8", "topk": "2", "model_name": "Mixtral 8x7B", "hidden": "4096", "tp": "1",
    "dp": "",
}  # fmt: skip


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """A CSV table of rows."""
    with path.open("w", newline="") as stream:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(stream, fieldnames=list(names))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_row_becomes_the_layout_it_describes() -> None:
    """Columns give model, cluster and plan."""
    found = case(ROW)
    assert found.graph.num_parameters() == 6_738_415_616
    assert (found.hardware, found.num_devices, found.stack) == ("dgx-h100", 16, "megatron")
    assert found.plan["zero"] == 1
    assert predict(found).step_time_s > 0


def test_the_interval_of_memory_is_that_of_the_peak_beside_it() -> None:
    """Of what the allocator reserves, though the device holds some GiB besides."""
    found = predict(case(ROW))
    low, high = found.certainty.reserved_memory_interval_bytes
    assert low < found.peak_reserved_bytes < high
    assert high - low < 0.5 * found.peak_reserved_bytes


def test_memory_is_of_the_rank_that_a_stack_logs() -> None:
    """With one microbatch the last stage is the fullest, for its logits; nanotron's log shows the first."""
    row = {**ROW, "stack": "nanotron", "n_gpus": "8", "tp": "1", "pp": "2", "dp": "4", "global_batch_seqs": "16"}
    asked = case({**row, "model_name": "ours", "n_layers": "8", "vocab": "128256", "micro_batch": "4"})
    assert predict(asked).peak_reserved_bytes < 0.95 * result_of(asked).memory.peak_reserved_bytes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_experts": "8"}, "topk not published"), ({"cp": "3"}, "tp x cp x pp = 6 does not divide n_gpus = 16"),
        ({"hidden": "", "model_name": "ours"}, "hidden not published"), (MIXTURE, "micro_batch not published"),
        ({"tp": "3"}, "does not divide"), ({"gpu_type": "Gaudi 1"}, "no profile"), ({"n_gpus": "many"}, "not a number"),
        ({"gpu_type": "TPU v3"}, "no profile"), ({"tp": "", "pp": ""}, "tp and pp not published"),
    ],
)  # fmt: skip
def test_rows_outside_the_model_have_a_reason(change: dict[str, str], reason: str) -> None:
    """What is not modelled says why."""
    with pytest.raises(Unmodelled, match=reason):
        predict(case({**ROW, **change}))


def test_step_time_from_tokens() -> None:
    """Where only tokens per second and device are published, the step follows."""
    row = {**ROW, "iteration_time_s": "", "tokens_per_s_per_gpu": "8192"}
    assert read_measurements(row).step_time_s == pytest.approx(64 * 4096 / (8192 * 16))


def test_measured_fabric_is_the_state_of_the_cluster() -> None:
    """A slower measured all-reduce makes the same plan slower."""
    slow = {**ROW, "fabric_allreduce_gbs": "20"}
    assert cluster_of(case(slow)).state
    assert predict(case(slow)).step_time_s > predict(case(ROW)).step_time_s


def test_every_row_is_counted(tmp_path: Path) -> None:
    """Modelled and unmodelled rows add up; the result is plain JSON with the promised keys."""
    table = write(tmp_path / "t.csv", [ROW, {**ROW, "n_experts": "8"}, {**ROW, "tp": "4", "dp": "4"}])
    found = validate(table, jobs=1)
    json.dumps(found, allow_nan=False)
    assert found["rows"] == 3
    assert found["modelled"] + sum(found["unmodelled_reasons"].values()) == 3
    keys = (
        "time_ape_median", "time_ape_mean", "time_ape_p90", "memory_ape_median", "static_memory_ape_median",
        "kendall_tau", "fit_accuracy", "fit_confusion", "regret_mean", "regret_max", "by_source", "rows_detail",
    )  # fmt: skip
    assert all(key in found for key in keys)
    for name in ("by_device", "by_stack"):
        ((_, figures),) = found[name].items()
        assert figures["rows"] == figures["modelled"] == found["modelled"]
        assert figures["time_ape_median"] == found["time_ape_median"]


def test_bad_tables_are_one_line(tmp_path: Path) -> None:
    """A missing file or column is named."""
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(UserError, match="column n_gpus, seq_len missing"):
        read_table(write(tmp_path / "t.csv", [{"source": "x"}]))


def outcome(predicted: float, actual: float, *, fits: bool = True, said: bool = True) -> RowOutcome:
    """An outcome with given step times."""
    prediction = Prediction(predicted, 1 * GIB, 2 * GIB, 2 * GIB, said)
    return RowOutcome(1, "s", "x", ("cell",), Measurements(actual, 1 * GB, None, None, None, fits), prediction)


def test_regret_is_the_cost_of_trusting_the_prediction() -> None:
    """The row predicted fastest was measured at 12 s, the best at 10 s: 20 percent."""
    rows = [outcome(1.0, 12.0), outcome(2.0, 10.0), outcome(3.0, 30.0)]
    assert list(regret_by_cell(rows).values()) == [pytest.approx(0.2)]


def test_rank_correlation() -> None:
    """Equal order gives 1, reversed order -1."""
    assert kendall_tau([outcome(t, t) for t in (1.0, 2.0, 3.0)]) == 1.0
    assert kendall_tau([outcome(t, 4 - t) for t in (1.0, 2.0, 3.0)]) == -1.0


def test_figures_of_known_errors() -> None:
    """Errors of 10 and 30 percent: median and mean 20, bias signed."""
    found = figures([outcome(1.1, 1.0), outcome(0.7, 1.0, fits=False)])
    assert found["time_ape_median"] == pytest.approx(20.0)
    assert found["time_bias_median"] == pytest.approx(-10.0)
    assert found["fit_confusion"] == {"fits_fits": 1, "oom_fits": 1}
    assert found["fit_accuracy"] == 0.5


def test_mistakes_about_fitting_as_predicted_and_with_certainty() -> None:
    """Two that ran, one of them in doubt and one refused; one out of memory that is said to fit, but not surely."""

    def one(*, ran: bool, said: bool, chance: float) -> RowOutcome:
        result = outcome(1.0, 1.0, fits=ran, said=said)
        assert result.prediction
        known = Certainty.model_construct(fit_probability=chance)
        return replace(result, prediction=replace(result.prediction, certainty=known))

    rows = [
        one(ran=True, said=True, chance=0.9),
        one(ran=True, said=False, chance=0.4),
        one(ran=False, said=True, chance=0.6),
    ]
    assert list(fit_errors(rows).values()) == [50.0, 100.0, 100.0, 0.0]
    assert list(fit_errors([outcome(1.0, 1.0)]).values()) == [None] * 4


def test_labels_are_without_the_decimals_of_spreadsheets():
    """Whole numbers, as a person would write them."""
    row = {"model_name": "llama-2.0", "n_gpus": "128.0", "tp": "2.0", "pp": "4"}
    assert label(row) == "llama-2.0 on 128 tp2 pp4"
