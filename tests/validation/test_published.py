"""Published runs, a few of each source with their citations, predicted within stated bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.as_published import published_outcomes
from benchmarks.normalise.tables import read_published
from simpar.scenario import load_scenario
from simpar.simulation import simulate
from simpar.validation.summary import RowOutcome, figures
from tests.gate import some

TABLE = Path(__file__).with_name("published.csv")
MEAN_TIME_ERROR_PERCENT = {  # what the fits reach, rounded up: a change that loses it shows here
    "Megatron SC21 Table 1": 7.0,
    "Selective recompute Table 5": 5.0,
    "Megatron README 2020": 7.0,
    "Zero Bubble PP": 6.0,
    "torchtitan performance.md 2024": 8.0,
    "IBM FSDP blog 2024-03": 8.0,
}


LARGEST = ("GPT-530B", "GPT-1T", "MT-NLG-530B")
"""Their steps have as many ops as those of all others together."""


@pytest.fixture(scope="module", params=some(["smaller", "every"], 1))
def outcomes(request: pytest.FixtureRequest) -> list[RowOutcome]:
    """Rows of the table, all or those of smaller models, predicted once."""
    rows = list(read_published(TABLE))
    if request.param == "smaller":
        rows = [row for row in rows if row["model_name"] not in LARGEST]
    return published_outcomes(rows, jobs=1)


def test_every_published_row_is_modelled(outcomes: list[RowOutcome]) -> None:
    """No row of these sources is left out."""
    assert [outcome.reason for outcome in outcomes if outcome.prediction is None] == []
    assert {outcome.source for outcome in outcomes} == set(MEAN_TIME_ERROR_PERCENT)


@pytest.mark.parametrize(("source", "bound"), MEAN_TIME_ERROR_PERCENT.items())
def test_step_times_are_close(outcomes: list[RowOutcome], source: str, bound: float) -> None:
    """The mean absolute error of step time stays within the bound of its source."""
    found = figures([outcome for outcome in outcomes if outcome.source == source])
    assert found["time_ape_mean"] < bound


def test_peaks_are_close(outcomes: list[RowOutcome]) -> None:
    """Zero Bubble's peaks are met within a few percent, whatever the schedule."""
    found = figures([outcome for outcome in outcomes if outcome.source == "Zero Bubble PP"])
    assert found["memory_rows"] >= 5
    assert found["memory_ape_median"] < 6.0


@pytest.mark.parametrize("num_devices", some([8192, 16384], [16384]))
def test_llama_3_405b_trains_as_published(num_devices: int) -> None:
    """Within 5 % and in memory without recomputation, by a stack of which no number is fitted to these runs."""
    scenario = load_scenario(f"llama-3.1-405b-{num_devices}-h100")
    assert scenario.published is not None
    found = simulate(**scenario.inputs())
    assert found.fits
    assert found.speed.tflops_per_device == pytest.approx(scenario.published.tflops_per_device, rel=0.05)


def test_deepseek_v3_trains_as_published() -> None:
    """2,048 H800 with DualPipe and experts over 64 ranks: tokens a second within 5 %, in software never fitted."""
    scenario = load_scenario("deepseek-v3-2048-h800")
    assert scenario.published is not None
    found = simulate(**scenario.inputs())
    tokens = scenario.training.global_batch * scenario.training.seq_len
    rate = tokens / found.step_time_s / scenario.build_cluster().world_size
    assert rate == pytest.approx(scenario.published.tokens_per_s_per_device, rel=0.05)
