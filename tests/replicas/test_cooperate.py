"""The result of replicas that step on their own: consistent, saved, shown, and refused where it makes no sense."""

from itertools import product
from pathlib import Path

import pytest

import simpar
from simpar import replicas
from simpar.cost.power import device_w, input_w
from simpar.errors import UserError
from simpar.plan.sync import SCHEMES
from simpar.replicas.efficiency import noise_scale_tokens, of_local_steps, of_staleness
from simpar.report.html import render
from simpar.report.parts import Staleness
from simpar.report.result import Result
from tests.gate import some

SHARED = {"__init__", "averaging", "cooperate", "efficiency", "staleness", "servers", "setting"}


def stale(mean: float, maximum: int) -> Staleness:
    """A staleness of which only mean and maximum matter."""
    return Staleness(mean=mean, maximum=maximum, p50=mean, p90=mean, p99=mean, clock_gap=0, shares=(1.0,))


def test_every_scheme_is_a_file():
    """The table and the folder name the same schemes."""
    files = {path.stem for path in Path(replicas.__file__).parent.glob("*.py")} - SHARED
    assert files == {name.replace("-", "_") for name in SCHEMES}


@pytest.mark.parametrize("scheme", some(sorted(SCHEMES), ["bsp", "ssp"]))
def test_parts_sum_to_the_step_and_rates_follow(step_of, scheme):
    """Breakdown, throughput, utilisation and cost all speak of the mean step."""
    found = step_of(sync=scheme, sigma=0.1, **({"servers": 4} if scheme == "bsp" else {}))
    met = found.cooperation
    assert found.time_breakdown_s.total_s == pytest.approx(found.step_time_s)
    assert met.local_step_s + met.exchange_s + met.waiting_s == pytest.approx(found.step_time_s, rel=1e-6)
    assert found.tokens_per_s * found.step_time_s == pytest.approx(64 * 1024)
    plain = step_of()
    assert found.mfu * found.step_time_s == pytest.approx(plain.mfu * plain.step_time_s)
    rate = plain.bill.cost_usd_per_step / plain.step_time_s
    assert found.bill.cost_usd_per_step == pytest.approx(rate * found.step_time_s)


@pytest.mark.parametrize("scheme", ["asp", "local-sgd", "diloco"])
def test_the_interval_is_that_of_the_mean_step(step_of, scheme):
    """It holds the step, as wide for its size as that of a plain step, and so do those of the whole run."""
    found, plain = step_of(sync=scheme, tokens=10**9), step_of()
    low_s, high_s = found.certainty.step_time_interval_s
    assert low_s < found.step_time_s < high_s
    usual = [bound / plain.step_time_s for bound in plain.certainty.step_time_interval_s]
    assert [low_s / found.step_time_s, high_s / found.step_time_s] == pytest.approx(usual)
    days = found.whole_run.days
    assert days.low < days.value < days.high


@pytest.mark.parametrize(
    ("scheme", "plan"),
    some(
        product(sorted(set(SCHEMES) - {"bsp"}), [{}, {"tp": 2, "pp": 2}]),
        [("asp", {}), ("local-sgd", {"tp": 2, "pp": 2})],
        tuples=True,
    ),
)
def test_there_is_one_figure_of_waiting(step_of, scheme, plan):
    """A fast rank's step ends with its replica's: what it waits beyond that for a slow one is at the meeting."""
    found = step_of(sync=scheme, slow={0: 2.0}, **plan)
    waits = found.time_breakdown_s.waiting
    assert sum(part.seconds for part in found.why.waiting) == pytest.approx(waits, abs=2e-9)
    assert found.cooperation.waiting_s == pytest.approx(waits, abs=2e-9)
    assert found.time_breakdown_s.total_s == pytest.approx(found.step_time_s)
    for kind, part in found.communication.items():
        assert part.exposed_s == pytest.approx(getattr(found.time_breakdown_s, f"exposed_{kind}"))
    assert found.overview.stages[0].parts_s


def test_devices_draw_little_while_they_exchange(step_of):
    """Energy by the documented formula: all but the kernels of the local step is waiting."""
    found, plain = step_of(sync="asp", servers=1), step_of(sync="asp", servers=64)
    cluster = simpar.Cluster("dgx-h100", nodes=2)
    assert found.step_time_s > 2 * plain.step_time_s
    drawn_w = [one.bill.energy_j_per_step / one.step_time_s for one in (found, plain)]
    idle_w = input_w(cluster.profile.host, 16 * float(device_w(cluster.device.power, 0.0, 0.0)), 2)
    assert idle_w < drawn_w[0] < drawn_w[1]
    share = plain.step_time_s / found.step_time_s
    assert drawn_w[0] - idle_w == pytest.approx(share * (drawn_w[1] - idle_w), rel=1e-3)


def test_plain_synchronous_training_is_untouched(step_of):
    """Without servers BSP reduces inside the step, as ever."""
    assert step_of(sync="bsp").to_json() == step_of().to_json()
    assert step_of().cooperation is None


def test_the_report_is_saved_and_shown(step_of):
    """JSON and back; terminal, page and explanation speak of staleness and the busiest link."""
    found = step_of(sync="asp", sigma=0.1)
    again = Result.from_json(found.to_json())
    assert again.cooperation == found.cooperation
    assert any("updates old on average" in line for line in found.why.binds)
    page = render(again)
    assert "Cooperation of replicas" in page
    assert 'class="histogram"' in page


def test_the_same_seed_gives_the_same_result(new_step):
    """Jitter is drawn from counters."""
    assert new_step(sync="asp", sigma=0.2).to_json() == new_step(sync="asp", sigma=0.2).to_json()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"sync": "asb"}, "did you mean 'asp'"),
        ({"sync": "asp", "sync_every": 4}, "allowed with local-sgd, diloco"),
        ({"sync": "local-sgd", "servers": 4}, "allowed with bsp, ssp, asp"),
        ({"sync": "asp", "staleness": 2}, "allowed with ssp"),
        ({"sync_every": 2}, "allowed with local-sgd, diloco"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(plan, words):
    """The message names the scheme that takes the key."""
    with pytest.raises(ValueError, match=words):
        simpar.Plan(**plan)


def test_a_lone_replica_is_refused(step_of):
    """One copy of the states has nobody to cooperate with."""
    with pytest.raises(UserError, match="hsdp > 1"):
        step_of(zero=3, sync="diloco")
    with pytest.raises(UserError, match="nobody to cooperate"):
        step_of(tp=4, pp=4, sync="asp", micro_batch=4)


def test_efficiency_is_one_where_nothing_is_lost():
    """A step in lockstep is a synchronous batch in pieces; averaging every step is synchronous."""
    assert of_staleness(stale(15, 15), 16, 4096.0, 1e6) == pytest.approx(1)
    assert of_local_steps(1, 16, 4096.0, 1e6) == pytest.approx(1)


def test_efficiency_falls_with_delay_and_rises_with_noise():
    """Older parameters and longer rounds cost samples; noisy gradients hide it."""
    by_delay = [of_staleness(stale(15, most), 16, 4096.0, 1e5) for most in (15, 30, 60)]
    assert by_delay[0] > by_delay[1] > by_delay[2] > 0
    by_period = [of_local_steps(steps, 16, 4096.0, 1e5) for steps in (1, 4, 64)]
    assert by_period[0] > by_period[1] > by_period[2] > 0
    by_noise = [of_staleness(stale(15, 60), 16, 4096.0, noise) for noise in (1e4, 1e6, 1e9)]
    assert by_noise[0] < by_noise[1] < by_noise[2] <= 1


def test_the_noise_scale_is_a_published_law(step_of):
    """About 1.4 M tokens at the loss 2.85 of Kaplan's largest fits; more for larger models; yours wins."""
    assert noise_scale_tokens(8.8e13 / 2.85 ** (1 / 0.076)) == pytest.approx(2.1e8 * 2.85**-4.8)
    assert noise_scale_tokens(7e10) > noise_scale_tokens(8e9)
    own = simpar.simulate(
        "gpt2", simpar.Cluster("dgx-h100"), simpar.Plan(sync="asp"),
        simpar.Training(seq_len=1024, global_batch=64), noise_scale_tokens=5e5,
    )  # fmt: skip
    assert own.cooperation.statistics.noise_scale_tokens == 5e5
