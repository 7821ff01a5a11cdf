"""A step under jitter: means, intervals, where it stands in the report, and what is refused."""

from __future__ import annotations

from math import erf, sqrt
from typing import Any

import numpy as np
import pytest

import simpar
from simpar import sampling
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.program.jitter import Kernels
from simpar.report.result import Result
from simpar.simulation import lower_job, make_job
from simpar.units import NS_PER_S
from tests.compilers import needs_compiler

SIGMA = 0.05


def simulate(devices: int = 8, seeds: int = 8, *, engine: str = "auto", **plan: object) -> Result:
    """A small Llama on one or more DGX H100 under jitter."""
    cluster = load_cluster("dgx-h100", devices // 8)
    return simpar.simulate(
        "small-llama", cluster, simpar.Plan(**plan), simpar.Training(seq_len=2048, global_batch=64),
        perturbation=simpar.Perturbation(jitter_sigma=SIGMA, seeds=seeds), engine=engine,
    )  # fmt: skip


def test_replicas_wait_for_the_slowest() -> None:
    """One forward F and backward B, a reduction, an update U: what the largest of N normal deviates adds.

    Its mean, by quadrature, times sigma (sqrt(F^2 + B^2) + U): forward and backward draw a factor each.
    """
    ranks = 64
    z = np.linspace(-8, 8, 100_001)
    below = np.array([0.5 * (1 + erf(each / sqrt(2))) for each in z])
    largest = -8 + float(np.trapezoid(1 - below**ranks, z))
    cluster, plan = load_cluster("dgx-h100", 8), simpar.Plan(dp=ranks, micro_batch=1, bucket_bytes=1e12)
    training = simpar.Training(seq_len=2048, global_batch=ranks)
    drawn = simpar.Perturbation(jitter_sigma=SIGMA, seeds=40)
    found = simpar.simulate("small-llama", cluster, plan, training, perturbation=drawn).jitter
    assert found is not None
    kernels = Kernels.of(lower_job(make_job("small-llama", cluster, plan, training), cluster))
    forward, backward, update = np.bincount(kernels.action, kernels.time_ns) / NS_PER_S
    expected = SIGMA * largest * (sqrt(forward**2 + backward**2) + update)
    assert found.mean_s - found.nominal_s == pytest.approx(expected, rel=0.1)


def test_the_step_is_the_mean_and_the_breakdown_says_what_jitter_adds() -> None:
    """Headline, parts and quantiles are of one distribution, and survive the JSON."""
    found = simulate(pp=2, tp=2, dp=2)
    jitter = found.jitter
    assert jitter is not None
    assert jitter.ci95_s is not None
    assert found.step_time_s == pytest.approx(jitter.mean_s)
    assert found.time_breakdown_s.total_s == pytest.approx(found.step_time_s)
    assert found.time_breakdown_s.jitter == pytest.approx(jitter.mean_s - jitter.nominal_s)
    order = [jitter.nominal_s, jitter.quantiles_s["p5"], jitter.quantiles_s["p50"], jitter.quantiles_s["p95"]]
    assert order == sorted(order)
    assert Result.from_json(found.to_json()).jitter == jitter


def test_the_interval_is_students() -> None:
    """Half the interval of n samples: t(n-1) times the deviation over the root of n."""
    assert sampling._ci95([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / sqrt(3))
    assert sampling._ci95([1.0]) is None


@pytest.mark.slow
@needs_compiler
def test_engines_give_the_same_distribution() -> None:
    """Whatever engine draws the samples."""
    ours, theirs = (simulate(seeds=3, pp=2, tp=2, dp=2, engine=name).jitter for name in ("event", "reference"))
    assert ours is not None
    assert theirs is not None
    assert ours.model_copy(update={"engine": ""}) == theirs.model_copy(update={"engine": ""})


@needs_compiler
def test_where_sharing_takes_too_long_links_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says so, and the step without jitter is still the contended one."""
    exact = simulate(16, pp=2, dp=8, engine="event").jitter
    monkeypatch.setattr(sampling, "MOST_VISITS", 3)
    free = simulate(16, pp=2, dp=8, engine="event").jitter
    assert exact is not None
    assert free is not None
    assert exact.contention
    assert not free.contention
    assert free.nominal_s == exact.nominal_s
    assert free.mean_s == pytest.approx(exact.mean_s, rel=0.02)


def test_too_many_ops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with what there is and what is allowed."""
    monkeypatch.setattr(sampling, "MOST_OPS", 10)
    with pytest.raises(UserError, match=r"perturbation.jitter: \d+ ops on 8 devices: allowed 10: give fewer nodes"):
        simulate(dp=8)


def test_search_refuses_jitter() -> None:
    """Layouts are compared without it."""
    with pytest.raises(UserError, match=r"perturbation.jitter: layouts are searched by their steps without"):
        simpar.search(
            "small-llama", load_cluster("dgx-h100", 1), simpar.Training(seq_len=512, global_batch=8),
            perturbation=simpar.Perturbation(jitter_sigma=0.1),
        )  # fmt: skip


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_no_jitter_makes_kernels_faster_than_the_device(sigma: float) -> None:
    """Of many seeds of one rank's one pass, the luckiest still has the FLOP of a step to do."""
    cluster = load_cluster("laptop-cpu", 1)
    training = simpar.Training(seq_len=2048, global_batch=1)
    for seed in range(12):
        drawn = simpar.Perturbation(jitter_sigma=sigma, seed=seed)
        found = simpar.simulate(
            "small-llama", cluster, simpar.Plan(), training, perturbation=drawn, flops_convention="causal"
        )
        assert found.speed.hfu <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"slow_ranks": {0: -1.0}}, {"slow_ranks": {0: float("nan")}}, {"slow_ranks": {0: 1e15}},
        {"slow_ranks": {-1: 2}}, {"jitter_sigma": -1.0}, {"jitter_sigma": float("nan")}, {"jitter_sigma": 5.0},
        {"seeds": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_perturbs_has_bounds(wrong: dict[str, Any]) -> None:
    """In Python as in files: factors are 1 to 1,000, deviations 0 to 1, samples at least one."""
    with pytest.raises(UserError, match=next(iter(wrong))):
        simpar.Perturbation(**wrong)
