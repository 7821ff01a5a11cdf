"""Operating a job: the published 54 days of Llama 3, and what each choice changes."""

import json

import pytest

import simpar
from simpar import cli
from simpar.hardware.operation import Operation
from simpar.hardware.reliability import load_reliability
from simpar.operate.outcome import OperatedJob, operate
from simpar.units import DAY_S, HOUR_S


@pytest.fixture(scope="module")
def llama():
    """Llama 3.1 405B on 16,384 H100, one simulated step."""
    scenario = simpar.load_scenario("llama-3.1-405b-16384-h100")
    inputs = scenario.inputs()
    result = simpar.simulate(**inputs)
    return OperatedJob.from_inputs(result, inputs)


@pytest.fixture(scope="module")
def as_published(llama):
    """Its 54 days."""
    return operate(llama, Operation(days=54))


def test_the_published_54_days(as_published):
    """466 interruptions, 419 of them unexpected, more than 90 % effective (arXiv 2407.21783, section 3.3.4)."""
    found = as_published
    assert found.interruptions.every.mean == pytest.approx(466, rel=0.01)
    assert found.interruptions.unexpected.mean == pytest.approx(419, rel=0.01)
    assert found.interruptions.unexpected.p05 < 419 < found.interruptions.unexpected.p95
    assert found.interruptions.by_cause["faulty GPU"] == pytest.approx(148, rel=0.02)
    assert found.interruptions.mtbf_s / HOUR_S == pytest.approx(3.09, abs=0.01)
    assert 0.90 < found.effective_time.low < found.effective_time.high < 0.95


def test_counts_are_those_of_the_paper():
    """Table 5 sums to 419 unexpected and 47 planned interruptions."""
    profile = load_reliability("meta-llama3")
    assert sum(cause.failures for cause in profile.components.values()) == 419
    assert profile.planned.failures == 47
    per_node_day = sum(r.per_s for r in profile.rates(2048, 8) if not r.planned) * DAY_S / 2048
    assert per_node_day * 1000 == pytest.approx(3.8, abs=0.05)


def test_closed_form_and_simulation_agree(as_published):
    """Without planned stops the campaign is Daly's model."""
    rates, found = load_reliability("meta-llama3"), as_published
    planned = found.interruptions.by_cause["planned"] * (300 + found.checkpoints.load_s) / (54 * DAY_S)
    assert found.effective_time.mean == pytest.approx(found.expected_effective_time - planned, abs=3e-3)
    assert rates.planned is not None


def test_half_the_job_fails_half_as_often_but_for_software():
    """Hardware rates follow the nodes, those of the job do not."""
    profile = load_reliability("meta-llama3")
    whole, half = ({r.name: r.per_s for r in profile.rates(n, 8)} for n in (2048, 1024))
    assert half["faulty GPU"] == pytest.approx(whole["faulty GPU"] / 2)
    assert half["software bug"] == whole["software bug"]


def test_what_choices_change(llama):
    """Slow storage hurts synchronous checkpoints, asynchronous ones hardly; few spares hurt; slow nodes hurt."""
    slow_storage = {"days": 20, "storage_per_node": 2e7, "runs": 200}
    sync = operate(llama, Operation(**slow_storage)).effective_time.mean
    background = operate(llama, Operation(**slow_storage, checkpoint="async")).effective_time.mean
    memory = operate(llama, Operation(**slow_storage, checkpoint="memory")).effective_time.mean
    assert sync < background < memory
    plenty, none = (operate(llama, Operation(days=20, runs=100, spares=n)).effective_time.mean for n in (None, 2))
    assert none < plenty - 0.1
    lame = operate(llama, Operation(days=20, runs=100, slow={"per_node_day": 1e-3, "slowdown": 2.0}))
    assert lame.time_share["slow nodes"] > 0.01
    assert sum(lame.time_share.values()) == pytest.approx(1.0)


def test_a_given_interval_is_kept_in_whole_steps(llama):
    """The interval is a number of steps; Daly's is better than a much longer one."""
    hourly = operate(llama, Operation(days=20, runs=200, interval=3600.0))
    assert hourly.checkpoints.interval_s == pytest.approx(3600, rel=0.01)
    steps = hourly.checkpoints.interval_s / llama.result.step_time_s
    assert steps == pytest.approx(round(steps))
    assert hourly.effective_time.mean < operate(llama, Operation(days=20, runs=200)).effective_time.mean


def test_days_on_the_command_line(tmp_path, capsys):
    """--days adds the campaign to report and JSON; the same seed gives the same bytes."""
    small = [
        "simulate", "--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8",
        "--precision", "fp32", "--days", "7", "--spares", "1", "--set", "operation.runs=50",
    ]  # fmt: skip
    assert cli.run(small) == 0
    assert "effective training time" in capsys.readouterr().out
    texts = []
    for name in ("a.json", "b.json"):
        assert cli.run([*small, "--json", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert 0 < json.loads(texts[0])["operation"]["effective_time"]["mean"] <= 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--days", "0"], "operation.days"),
        (["--days", "5", "--reliability", "meta-lama3"], "did you mean 'meta-llama3'"),
        (["--days", "5", "--checkpoint", "often"], "operation.checkpoint"),
        (["--spares", "2"], "operation.days missing: give --days DAYS"),
        (["--days", "5", "--set", "operation.restart=5"], "needs a unit"),
    ],
)
def test_bad_operation_is_one_line(flags, words, capsys):
    """The field, the value and what is allowed."""
    assert cli.run(["simulate", "gpt2-laptop", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
