"""Learning finds what made the times, moves nothing without evidence, and does not believe a single odd run."""

from dataclasses import replace

import numpy as np
import pytest

from simpar.learning.answer import Answer
from simpar.learning.fit import Observed, Prior, fit_values, learn, slopes_of
from simpar.learning.parameters import CLOCKS, bounds_of, spread_of, spread_of_part, tuning_of
from simpar.learning.runs import Runs
from simpar.validation.predict import predict_time_s
from simpar.validation.rows import case
from tests.learning.test_answer import ROW as OPEN

ROW = {**OPEN, "dp": "8"}
LAYOUTS = (
    {}, {"tp": "4", "dp": "4"}, {"tp": "1", "dp": "16", "zero_stage_or_fsdp": "FSDP"},
    {"pp": "2", "dp": "4", "vpp": "2", "schedule": "interleaved"}, {"recompute": "full", "micro_batch": "2"},
)  # fmt: skip
FEW = (  # devices, whose steps are predicted sooner
    {"n_gpus": "1", "tp": "1", "dp": "1"}, {"n_gpus": "2", "tp": "2", "dp": "1"},
    {"n_gpus": "1", "tp": "1", "dp": "1", "recompute": "full"},
)  # fmt: skip
CLOCK = ("device", "h100-sxm-80gb", "sustained_clock")
OVERHEAD = ("stack", "megatron", "launch.kernel_overhead")


def measured(truth, layouts=LAYOUTS, noise=0.0):
    """Layouts with the times that parameters of a truth make."""
    cases = [case({**ROW, **changes}) for changes in layouts]
    off = np.exp(noise * np.array([(-1) ** at for at in range(len(cases))]))
    times = [predict_time_s(one, tuning_of(truth)) for one in cases]
    return [Observed(one, time * factor) for one, time, factor in zip(cases, times, off, strict=True)]


def test_a_changed_parameter_is_learnt_back():
    """Three runs of a slower device and a heavier stack: others on more devices are predicted to a few percent."""
    truth = {CLOCK: 0.62, OVERHEAD: 1.2}
    others = measured(truth, LAYOUTS[3:])
    found = learn(measured(truth, FEW))
    before = np.abs(learn_errors(others, {}))
    after = np.abs([np.log(run.time_s / predict_time_s(run.case, found.tuning)) for run in others])
    assert before.min() > 0.15
    assert after.max() < 0.03
    assert np.abs(found.left_out).max() < 0.05


def learn_errors(runs, values):
    """Log errors of runs under some values."""
    return np.array([np.log(run.time_s / predict_time_s(run.case, tuning_of(values))) for run in runs])


def test_runs_that_agree_with_the_profiles_change_nothing():
    """What is predicted already is left as it is, to the last digit."""
    found = learn(measured({}, FEW[:2]))
    assert np.array_equal(found.values, found.prior.values)
    assert np.abs(found.after).max() < 1e-9


@pytest.mark.slow
def test_noise_moves_parameters_little():
    """Errors of 3 % one way and the other are what layouts differ by."""
    found = learn(measured({}, noise=0.03))
    assert np.all(np.abs(found.values - found.prior.values) < 0.5 * found.prior.spread)


@pytest.mark.slow
def test_one_odd_run_does_not_decide():
    """Of five runs one three times too slow: the others stay where they were."""
    every = measured({})
    found = learn([replace(every[0], time_s=3 * every[0].time_s), *every[1:]])
    assert np.abs(found.after[1:]).max() < 0.06
    assert found.after[0] > 0.9


@pytest.mark.slow
def test_what_all_runs_share_is_learnt_however_large():
    """All half as fast: a shared error is no reason to distrust them."""
    every = [replace(run, time_s=1.8 * run.time_s) for run in measured({}, LAYOUTS[:3])]
    found = learn(every)
    assert np.abs(found.before).min() > 0.5
    assert np.median(np.abs(found.after)) < 0.12


@pytest.mark.slow
def test_values_stay_within_their_bounds():
    """However fast the runs are."""
    found = learn([replace(run, time_s=0.3 * run.time_s) for run in measured({}, LAYOUTS[:2])])
    assert np.all(found.values >= found.prior.low)
    assert np.all(found.values <= found.prior.high)


@pytest.fixture(scope="module")
def alone():
    """One run that took longer than predicted, and what is learnt of it."""
    (run,) = measured({}, FEW[:1])
    run = replace(run, time_s=1.3 * run.time_s)
    return run, learn([run])


def test_repeats_that_scatter_count_less(alone):
    """A run whose repeats differ by much moves parameters less than one that is sure."""
    run, sure = alone
    unsure = learn([replace(run, scatter=0.3)])
    assert abs(unsure.after[0]) > abs(sure.after[0]) + 0.02


def test_a_run_alone_cannot_be_left_out(alone):
    """With nothing left to learn from its error is the one before."""
    _, found = alone
    assert found.left_out == pytest.approx(found.before)


def test_the_most_probable_values_balance_runs_and_prior():
    """One parameter and one run: the closed form of two Gaussians."""
    runs = measured({CLOCK: 0.76}, LAYOUTS[:1])
    prior = Prior.of([run.case for run in runs])
    only = prior.names.index(CLOCK)
    alone = Prior(
        (CLOCK,), prior.values[only : only + 1], prior.spread[only : only + 1], prior.low[only : only + 1],
        prior.high[only : only + 1],
    )  # fmt: skip
    known = slopes_of(runs, alone, alone.values)
    slope, error, spread = known.slopes[0, 0] * alone.spread[0], known.errors[0], alone.spread[0]
    expected = alone.values[0] + spread * slope * error / (slope**2 + 0.05**2)
    assert fit_values(alone, known, np.zeros(1))[0] == pytest.approx(expected, rel=0.02)


def test_no_run_moves_a_clock_beyond_the_boost_clock():
    """Runs 1.5 times faster than the device can be leave its clock at 1; that of a TPU is relative to no benchmark."""
    assert bounds_of(CLOCK).high == 1.0
    assert bounds_of(("device", "tpu-v5p", "sustained_clock")).high > 1.0
    runs = [replace(run, time_s=run.time_s / 1.5) for run in measured({}, FEW)]
    found = learn(runs)
    assert found.values[found.prior.names.index(CLOCK)] <= 1.0


def test_slow_code_is_no_slow_board():
    """Steps four times slower leave the clock that many runs tell where such a board can be; what is odd is said."""
    runs = [replace(run, time_s=4 * run.time_s) for run in measured({}, FEW)]
    answer = Answer("runs", Runs(tuple(runs), None, ()), learn(runs))
    clock = next((change["spreads"] for change in answer.changes() if change["parameter"] == CLOCK[2]), 0.0)
    assert clock >= -6.0
    assert max(change["spreads"] for change in answer.changes() if change["kind"] == "stack") > 3.0
    far = [f"{one['profile']} {one['parameter']} = " for one in answer.changes() if abs(one["spreads"]) > 3.0]
    assert [any(name in line for line in answer.to_dict()["remarks"]) for name in far] == [True] * len(far)
    assert spread_of_part(CLOCK) == pytest.approx((0.845 - 0.721) / 3.29)  # of its interval, nine in ten


def test_a_parameter_at_the_end_of_what_it_can_be_is_said():
    """Steps of half the time want kernels without overhead and more; also where stacks differ by more than they do."""
    runs = [replace(run, time_s=0.55 * run.time_s) for run in measured({}, FEW)]
    found = learn(runs)
    wide = replace(found, prior=replace(found.prior, spread=1.3 * found.prior.spread))
    (said,) = Answer("runs", Runs(tuple(runs), None, ()), wide).improbable()
    assert said.startswith("megatron launch.kernel_overhead = 0.7 is the least that it can be (it was 1.0")
    within = replace(wide, values=np.where(wide.values == 0.7, 0.75, wide.values))
    assert Answer("runs", Runs(tuple(runs), None, ()), within).improbable() == []


def test_spreads_are_those_of_shipped_profiles():
    """Every parameter has one, and stacks differ in theirs by as much as their files do."""
    assert 0.05 < spread_of("device", "sustained_clock") < 0.3
    assert 0.08 < spread_of("stack", "launch.kernel_overhead") < 0.4
    prior = Prior.of([case(ROW)])
    assert np.all(prior.spread > 0)
    assert all(bounds_of(name).low < bounds_of(name).high for name in prior.names)
    assert [key for kind, _, key in prior.names if kind == "device"] == list(CLOCKS[:1])
