"""Likely causes from a log alone: planted ones are named, with what would decide; noise names none."""

import json

import numpy as np
import pytest

from simpar import cli, simulate
from simpar.architectures.training import Training
from simpar.diagnosis.likely import likely_causes, pace_of
from simpar.diagnosis.log_run import ALLOCATED, LogRun
from simpar.plan.plan import Plan

NOISE = np.random.default_rng(0).normal(0.0, 0.01, 200)
FLAT = np.exp(NOISE)


def late(every, ratio=3.0):
    """Every so many steps, one lasts several times as long."""
    times = FLAT.copy()
    times[every - 1 :: every] *= ratio
    return times


def irregular():
    """Ten steps, anywhere, last three times as long."""
    times = FLAT.copy()
    times[np.random.default_rng(1).choice(200, 10, replace=False)] *= 3.0
    return times


@pytest.fixture(scope="module")
def result():
    """A step as it is predicted, and with all layers recomputed."""
    values = ("llama-3.1-8b", "dgx-h100")
    training = Training(seq_len=4096, global_batch=16)
    plan = {"dp": 8, "zero": 3, "micro_batch": 1}
    return [simulate(*values, Plan(**plan, recompute=each), training) for each in ("none", "full")]


def log(times, **figures):
    """A log of steps of so many seconds."""
    return LogRun("log", "any", (1, len(times)), len(times), 0.0, figures, {}, tuple(map(float, times)))


@pytest.mark.parametrize(
    ("times", "causes"),
    [
        (FLAT, ["eager code", "slow rank"]),
        (late(20), ["loader, checkpoint or evaluation", "eager code", "slow rank"]),
        (late(8, 1.3), ["loader, checkpoint or evaluation", "eager code", "slow rank"]),
        (irregular(), ["loader", "eager code", "slow rank"]),
        (FLAT * np.where(np.arange(200) < 120, 1.0, 1.2), ["slow rank"]),
        (FLAT * np.linspace(1.0, 1.1, 200), ["clock"]),
        (FLAT * np.where(np.arange(200) < 90, 1.0, 1.1), ["slow rank"]),
    ],
)
def test_what_is_planted_is_named(result, times, causes):
    """Steps half as long again as predicted, with a signature of a cause in them or none."""
    step_s = 1.5 * result[0].step_time_s
    found = likely_causes(log(times * step_s), step_s, *result)
    assert [each.cause for each in found] == causes
    assert all(each.signature and each.decides for each in found)


def test_sizes_of_signatures():
    """Ten steps of 200 take twice their length more; a line from 1 to 1.1 rises by 7.4 % between its outer quarters."""
    pace = pace_of(late(20))
    assert (pace.late_every, pace.jumps) == (20, False)
    assert pace.late_share == pytest.approx(10 * 2 / (200 + 10 * 2), rel=0.03)
    assert pace_of(FLAT * np.linspace(1.0, 1.1, 200)).drift == pytest.approx(1.0875 / 1.0125 - 1, abs=0.005)
    assert pace_of(FLAT).scatter == pytest.approx(0.01, rel=0.15)
    assert pace_of(FLAT[:5]) is None


def test_few_steps_show_no_signature(result):
    """A gap of a short log, or of one that prints a mean alone, is said to be open, with what would decide."""
    step_s = 1.5 * result[0].step_time_s
    for times in (FLAT[:5] * step_s, []):
        (found,) = likely_causes(log(times), step_s, *result)
        assert found.cause == "eager code, a slow rank or a loader"
        assert f"of {len(times)} logged steps nobody can tell which" in found.signature
    assert likely_causes(log(FLAT[:5]), 1.07 * result[0].step_time_s, *result) == []


def test_steps_that_scatter_show_no_signature(result):
    """A gap is said to be open; quarters that differ as noise lets them are no drift, ones that differ by more are."""
    step_s = 1.5 * result[0].step_time_s
    for seed in range(20):
        noise = np.exp(np.random.default_rng(seed).normal(0.0, 0.15, 40))
        pace = pace_of(noise)
        assert pace.by_chance == pytest.approx(2.5 * pace.scatter * (2 / 10) ** 0.5)
        (found,) = likely_causes(log(noise * step_s), step_s, *result)
        assert found.cause.startswith("a machine that others use") or abs(pace.drift) > pace.by_chance
    assert sum(pace_of(np.exp(np.random.default_rng(n).normal(0.0, 0.15, 40))).drifts for n in range(200)) < 20
    falling = noise * np.linspace(1.0, 2.5, 40)
    assert [each.cause for each in likely_causes(log(falling * step_s), step_s, *result)] == ["clock"]


def test_no_gap_has_no_cause(result):
    """Steps as predicted, or shorter."""
    step_s = result[0].step_time_s
    assert likely_causes(log(FLAT * step_s), step_s, *result) == []
    assert likely_causes(log(FLAT * 0.5 * step_s), 0.5 * step_s, *result) == []


def test_recomputation_is_seen_in_time_and_memory(result):
    """Both figures of the plan that recomputes; with the memory of the plan it is something else."""
    again = result[1]
    times = FLAT * again.step_time_s
    found = likely_causes(log(times, **{ALLOCATED: again.memory.peak_memory_bytes}), again.step_time_s, *result)
    assert [each.cause for each in found] == ["recomputation"]
    found = likely_causes(log(times, **{ALLOCATED: result[0].memory.peak_memory_bytes}), again.step_time_s, *result)
    assert "recomputation" not in [each.cause for each in found]


def test_a_log_beside_a_plan_says_so(tmp_path, capsys):
    """From a file of metrics to the terminal and JSON."""
    rows = [json.dumps({"step": at + 1, "iteration-time": 9.0 * value}) for at, value in enumerate(irregular())]
    (tmp_path / "log.jsonl").write_text("\n".join(rows) + "\n")
    plan = ["--plan", "gpt2-laptop", str(tmp_path / "log.jsonl")]
    assert cli.run(["explain", *plan]) == 0
    assert "likely loader: steps at irregular distances last 3 times" in capsys.readouterr().out
    assert cli.run(["explain", *plan, "--json", str(tmp_path / "said.json")]) == 0
    found = json.loads((tmp_path / "said.json").read_text())
    assert found["likely_causes"][0]["cause"] == "loader"
