"""The outcome of weeks of training: the share of useful time, interruptions, and where the rest goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from simpar.architectures.graph import ModelGraph
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster
from simpar.hardware.operation import Operation
from simpar.hardware.reliability import PLANNED, Rate, load_reliability
from simpar.layout.layout import Layout
from simpar.operate.campaign import Campaign, CampaignParameters, run_campaign
from simpar.operate.checkpoint import CheckpointCost, checkpoint_bytes, checkpoint_cost, daly, efficiency, young
from simpar.report.result import Result
from simpar.simulation import apply_tuning, stack_for
from simpar.stacks.stack import Stack
from simpar.units import DAY_S

CONFIDENCE = 1.959964  # two-sided 95 % quantile of the normal distribution


class Estimate(Strict):
    """The mean over the repetitions, its 95 % confidence interval, and the 5th and 95th percentiles."""

    mean: float
    low: float
    high: float
    p05: float
    p95: float

    @staticmethod
    def of(values: Any) -> Estimate:
        """An estimate from one value per repetition."""
        column = np.asarray(values, dtype=np.float64)
        mean = float(column.mean())
        half = CONFIDENCE * float(column.std(ddof=1)) / math.sqrt(len(column))
        p05, p95 = (float(p) for p in np.percentile(column, (5, 95)))
        return Estimate(mean=mean, low=mean - half, high=mean + half, p05=p05, p95=p95)


class Checkpoints(Strict):
    """Checkpoints in bytes and s: size, blocking time, work between two, and the optima of Young and Daly."""

    mode: str
    size_bytes: float
    blocking_s: float
    background_s: float
    load_s: float
    interval_s: float
    young_s: float
    daly_s: float


class Interruptions(Strict):
    """Numbers of interruptions: all, unexpected ones with their mean time between, and means by cause."""

    every: Estimate
    unexpected: Estimate
    mtbf_s: float
    by_cause: dict[str, float]


class Progress(Strict):
    """The training done in that time, and the price of the devices, if the profile has one."""

    goodput_tokens_per_s: float
    tokens: float
    steps: float
    cost_usd: float | None = None


class Outcome(Strict):
    """A campaign: ``effective_time`` is the share of useful time, ``time_share`` where the rest went.

    ``expected_effective_time`` is Daly's closed form for unexpected interruptions only, with spare nodes always
    available.
    """

    days: float
    nodes: int
    reliability: str
    effective_time: Estimate
    expected_effective_time: float
    progress: Progress
    interruptions: Interruptions
    time_share: dict[str, float]
    checkpoints: Checkpoints
    runs: int
    seed: int


@dataclass(frozen=True)
class OperatedJob:
    """A job to operate: its cluster, its result (tokens per second, seconds per step, plan), and checkpoint bytes."""

    cluster: Cluster
    result: Result
    size_bytes: float

    @staticmethod
    def of(result: Result, cluster: Cluster, model: ModelGraph, stack: Stack | str | None = None) -> OperatedJob:
        """A job from a simulated step of a model on a software stack; the result has its resolved plan."""
        plan = result.plan
        size_bytes = checkpoint_bytes(apply_tuning(plan, model), Layout.of(plan), stack_for(plan, stack))
        return OperatedJob(cluster, result, size_bytes)

    @staticmethod
    def from_inputs(result: Result, inputs: Mapping[str, Any]) -> OperatedJob:
        """A job from a simulated step and the inputs of :func:`simpar.simulate`, with the model as a graph."""
        return OperatedJob.of(result, inputs["cluster"], inputs["model"], inputs.get("stack"))


def operate(job: OperatedJob, operation: Operation, *, seed: int = 0) -> Outcome:
    """Operate a simulated job for days. Raises UserError for an unknown reliability profile, or without days."""
    if operation.days is None:
        raise UserError("operation.days is missing: give --days DAYS")
    cluster = job.cluster
    rates = load_reliability(operation.reliability).rates(cluster.nodes, cluster.world_size / cluster.nodes)
    saved = checkpoint_cost(job.size_bytes, cluster, operation)
    mtbf = _mtbf(rates)
    best = max(daly(saved.blocking_s, mtbf), saved.background_s, job.result.step_time_s) if mtbf < math.inf else DAY_S
    interval = max(operation.interval or best, saved.background_s)
    steps = max(1, round(interval / job.result.step_time_s))
    setting = CampaignParameters(
        length_s=operation.days * DAY_S,
        interval_s=steps * job.result.step_time_s,
        blocking_s=saved.blocking_s,
        background_s=saved.background_s,
        detection_s=operation.detection,
        restart_s=operation.restart + saved.load_s,
        repair_s=operation.repair,
        spares=operation.spares,
        slow=operation.slow,
        slow_per_s=operation.slow.per_node_day * cluster.nodes / DAY_S,
    )
    campaign = run_campaign(setting, rates, operation.runs, seed)
    return _outcome(job, operation, setting, campaign, (saved, rates, seed))


def _mtbf(rates: tuple[Rate, ...]) -> float:
    total = sum(rate.per_s for rate in rates if not rate.planned)
    return 1.0 / total if total else math.inf


def _outcome(
    job: OperatedJob,
    operation: Operation,
    setting: CampaignParameters,
    campaign: Campaign,
    facts: tuple[CheckpointCost, tuple[Rate, ...], int],
) -> Outcome:
    saved, rates, seed = facts
    share = Estimate.of(campaign.useful_s / setting.length_s)
    mtbf = _mtbf(rates)
    recovery = setting.detection_s + setting.restart_s
    fails = mtbf < math.inf
    return Outcome(
        days=setting.length_s / DAY_S,
        nodes=job.cluster.nodes,
        reliability=operation.reliability,
        effective_time=share,
        expected_effective_time=efficiency(setting.interval_s, saved.blocking_s, mtbf, recovery) if fails else 1.0,
        progress=_progress(job, setting, share.mean),
        interruptions=_interruptions(campaign, mtbf),
        time_share={
            "training": share.mean,
            **{kind: float(column.mean() / setting.length_s) for kind, column in campaign.losses_s.items()},
        },
        checkpoints=Checkpoints(
            mode=operation.checkpoint,
            size_bytes=saved.size_bytes,
            blocking_s=saved.blocking_s,
            background_s=saved.background_s,
            load_s=saved.load_s,
            interval_s=setting.interval_s,
            young_s=young(saved.blocking_s, mtbf) if fails else 0.0,
            daly_s=daly(saved.blocking_s, mtbf) if fails else 0.0,
        ),
        runs=operation.runs,
        seed=seed,
    )


def _progress(job: OperatedJob, setting: CampaignParameters, share: float) -> Progress:
    step_cost = job.result.bill.cost_usd_per_step
    return Progress(
        goodput_tokens_per_s=share * job.result.tokens_per_s,
        tokens=share * job.result.tokens_per_s * setting.length_s,
        steps=share * setting.length_s / job.result.step_time_s,
        cost_usd=None if step_cost is None else step_cost / job.result.step_time_s * setting.length_s,
    )


def _interruptions(campaign: Campaign, mtbf: float) -> Interruptions:
    zeros = np.zeros(len(campaign.useful_s))
    every = sum(campaign.interruptions.values(), zeros)
    return Interruptions(
        every=Estimate.of(every),
        unexpected=Estimate.of(every - campaign.interruptions.get(PLANNED, zeros)),
        mtbf_s=mtbf if mtbf < math.inf else 0.0,
        by_cause={name: float(column.mean()) for name, column in campaign.interruptions.items()},
    )
