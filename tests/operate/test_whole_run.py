"""A whole run of so many tokens: amounts of one step times the steps, and longer by what failures cost."""

import json
from dataclasses import replace

import pytest

import simpar
from simpar.cli import run
from simpar.hardware.operation import Operation
from simpar.hardware.price import set_price
from simpar.operate.checkpoint import daly, efficiency
from simpar.operate.outcome import OperatedJob
from simpar.operate.whole_run import add_operation, with_failures
from simpar.report.result import Result
from simpar.units import DAY_S, parse_tokens

TOKENS = 10**12
SMALL = ["--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8"]


@pytest.fixture(scope="module")
def inputs():
    """A small model on 64 nodes, for a trillion tokens."""
    return {
        "model": simpar.Model("gpt3-1.3b"),
        "cluster": simpar.Cluster("dgx-h100", nodes=64),
        "plan": simpar.Plan(zero=1),
        "training": simpar.Training(seq_len=2048, global_batch=512, tokens="1T"),
    }


@pytest.fixture(scope="module")
def result(inputs):
    """Its simulated step."""
    return simpar.simulate(**inputs, with_timeline=False)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("15T", 15 * 10**12), ("300B", 3 * 10**11), ("1.4e12", 14 * 10**11), ("7 M", 7 * 10**6), (5, 5), (2.0, 2)],
)
def test_tokens_are_read(text, tokens):
    """As people write them."""
    assert parse_tokens(text) == tokens
    assert simpar.Training(seq_len=1, global_batch=1, tokens=text).tokens == tokens


@pytest.mark.parametrize("text", ["15X", "-3B", "", "0", "1e30", True, 0.2])
def test_other_tokens_are_refused(text):
    """What is no number of tokens is."""
    with pytest.raises(ValueError, match="tokens"):
        simpar.Training(seq_len=1, global_batch=1, tokens=text)


def test_a_run_of_less_than_a_step_is_refused():
    """Two tokens are no run."""
    with pytest.raises(ValueError, match=r"tokens = 2 .* a step alone takes 8,192; allowed: at least as many"):
        simpar.Training(seq_len=1024, global_batch=8, tokens=2)
    assert simpar.Training(seq_len=1024, global_batch=8, tokens=8192).tokens == 8192


def test_amounts_are_those_of_the_steps(result):
    """Days, hours, dollars and energy are of as many steps as the tokens take, the last a whole one; so are bounds."""
    found, steps = result.whole_run, -(-TOKENS // (2048 * 512))
    assert found.steps == steps
    assert found.days.value == pytest.approx(steps * result.step_time_s / DAY_S)
    assert found.device_hours.value == pytest.approx(found.days.value * 24 * 512)
    assert found.cost_usd.value == pytest.approx(steps * result.bill.cost_usd_per_step)
    assert found.energy_mwh.value * 3.6e9 == pytest.approx(steps * result.bill.energy_j_per_step)
    low, high = result.certainty.step_time_interval_s
    for amount in (found.days, found.device_hours, found.cost_usd, found.energy_mwh):
        assert amount.low / amount.value == pytest.approx(low / result.step_time_s)
        assert amount.high / amount.value == pytest.approx(high / result.step_time_s)
    assert found.failures is None


def test_without_tokens_nothing_changes(inputs, result):
    """The same step, and a file without a word of a run."""
    training = simpar.Training(seq_len=2048, global_batch=512)
    alone = simpar.simulate(**inputs | {"training": training}, with_timeline=False)
    assert alone.step_time_s == result.step_time_s
    assert alone.whole_run is None
    assert "whole_run" not in alone.to_dict()
    assert "tokens" not in alone.to_dict()["training"]


def test_files_and_frames_carry_it(result):
    """What is saved is read back; a frame has a row an amount."""
    again = Result.from_json(result.to_json())
    assert again.whole_run == result.whole_run
    frame = again.whole_run.to_frame()
    assert list(frame.index) == ["days", "device_hours", "cost_usd", "energy_mwh"]
    assert frame.loc["days", "high"] == result.whole_run.days.high


def test_a_price_of_ones_own(inputs, result):
    """Twice the price is twice the dollars, recorded with the run; without one nobody says dollars."""
    paid = simpar.simulate(**inputs | {"cluster": set_price(inputs["cluster"], 5.8)}, with_timeline=False)
    assert paid.whole_run.cost_usd.value == pytest.approx(2 * result.whole_run.cost_usd.value)
    assert paid.setup.cluster["price_per_device_hour"] == "5.8 USD/h"
    assert "price_per_device_hour" not in result.setup.cluster


def test_failures_make_it_longer(inputs, result):
    """By the share of time that is work kept: close to Daly's closed form, where planned stops are rare."""
    operation = Operation(reliability="meta-rsc-1", runs=1000)
    found = add_operation(result, inputs, operation, seed=3).whole_run
    ideal, failures = result.whole_run, found.failures
    assert found.days.value == pytest.approx(ideal.days.value / failures.effective_time)
    assert failures.lost_days == pytest.approx(found.days.value - ideal.days.value)
    job = OperatedJob.from_inputs(result, inputs)
    per_day = 6.50 * 64 / 1000
    mean_s, blocking_s = DAY_S / per_day, job.size_bytes / (64 * 10**9)
    closed = efficiency(daly(blocking_s, mean_s), blocking_s, mean_s, 600 + blocking_s)
    assert failures.effective_time == pytest.approx(closed, abs=0.002)
    expected = per_day * found.days.value  # of a Poisson process: three standard errors of the mean of all runs
    assert failures.interruptions == pytest.approx(expected, abs=3 * (expected / operation.runs) ** 0.5)
    assert found.cost_usd.value / ideal.cost_usd.value == pytest.approx(found.days.value / ideal.days.value)
    assert 1 < found.energy_mwh.value / ideal.energy_mwh.value < found.days.value / ideal.days.value
    assert with_failures(job, operation, seed=3).whole_run == found


def test_the_hardware_may_name_its_reliability(inputs, result):
    """Then failures are counted unasked; elsewhere they are not."""
    assert add_operation(result, inputs, None) is result
    profile = inputs["cluster"].profile.model_copy(update={"reliability": "meta-llama3"})
    named = inputs | {"cluster": replace(inputs["cluster"], profile=profile)}
    assert add_operation(result, named, None).whole_run.failures.reliability == "meta-llama3"
    assert simpar.Cluster("meta-llama3-h100").profile.reliability == "meta-llama3"


def test_the_command_says_it(capsys):
    """Tokens, price and failures as flags; a cluster without a price says so."""
    assert run(["simulate", *SMALL, "--tokens", "2M"]) == 0
    said = capsys.readouterr().out
    assert "2.00 M tokens in 1,954 steps" in said
    assert "the hardware has no price" in said
    flags = ["--tokens", "2M", "--price-per-gpu-hour", "2", "--reliability", "meta-rsc-2"]
    assert run(["simulate", *SMALL, *flags, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["whole_run"]["cost_usd"]["value"] == pytest.approx(2 * found["whole_run"]["device_hours"]["value"])
    assert found["whole_run"]["failures"]["reliability"] == "meta-rsc-2"
    assert "operation" not in found
    assert run(["simulate", *SMALL, "--reliability", "meta-rsc-2"]) == 2
    assert "operation.days missing" in capsys.readouterr().err
    assert run(["simulate", *SMALL, "--tokens", "many"]) == 2
    assert "training.tokens" in capsys.readouterr().err
