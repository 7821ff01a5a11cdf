"""Step times from FLOP rates: the same run in all three conventions, and a peer's prediction beside it."""

from __future__ import annotations

import pytest

from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token
from simpar.validation.predict import has_rate, with_rates
from simpar.validation.rows import case, read_measurements
from simpar.validation.table import outcome
from tests.validation.test_validate import ROW

SILENT = {name: value for name, value in ROW.items() if name != "iteration_time_s"} | {"recompute": "full"}


@pytest.mark.parametrize(
    ("flop_count", "counted"),
    [
        ("", lambda graph: model_flop_per_token(graph, 4096)),
        ("causal", lambda graph: model_flop_per_token(graph, 4096, "causal")),
        ("hardware", lambda graph: hardware_flop_per_token(graph, 4096, "full")),
    ],
)
def test_a_rate_is_a_time(flop_count: str, counted) -> None:  # type: ignore[no-untyped-def]
    """Step time = counted FLOP a token x tokens / (rate x devices)."""
    row = {**SILENT, "tflops_per_gpu": "400", "flop_count": flop_count}
    entry = case(row)
    found = with_rates(read_measurements(row), row, entry)
    assert found.step_time_s == pytest.approx(counted(entry.graph) * 64 * 4096 / (400e12 * 16))
    assert found.peer_step_time_s is None


def test_mfu_and_peers() -> None:
    """A share of the datasheet's peak, and the TFLOP/s that a peer predicts."""
    row = {**SILENT, "mfu_pct": "40", "peer_pred_tflops_per_gpu": "410.5"}
    found = outcome(2, row).measured
    assert found is not None
    assert found.step_time_s is not None
    assert found.peer_step_time_s == pytest.approx(found.step_time_s * 0.4 * 989.5 / 410.5, rel=1e-3)


@pytest.mark.parametrize(("precision", "beyond"), [("mxfp8", 2.0), ("nvfp4", 4.0)])
def test_mfu_in_fewer_bits(precision: str, beyond: float) -> None:
    """The peak is that of the products' own dtype."""
    where = {"gpu_type": "B200 SXM", "mfu_pct": "40"}
    times = []
    for words in ("bf16", precision):
        row = {**SILENT, **where, "precision": words}
        times.append(with_rates(read_measurements(row), row, case(row)).step_time_s)
    assert times[0] / times[1] == pytest.approx(beyond)


def test_rows_without_any_rate_say_so() -> None:
    """Nothing is measured, and that is the reason."""
    assert not has_rate(SILENT)
    assert "nothing measured" in outcome(2, SILENT).reason
