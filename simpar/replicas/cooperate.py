"""From one replica's step to the cooperation of all: the Result of a plan whose replicas step on their own."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from simpar.replicas.efficiency import efficiency, noise_scale_tokens, of_local_steps, of_staleness
from simpar.replicas.setting import Setting, setting_of
from simpar.replicas.staleness import MeanStep
from simpar.report.bill import Bill
from simpar.report.context import Context
from simpar.report.explain import explained
from simpar.report.result import Communication, Cooperation, Efficiency, Result, Speed, TimeBreakdown
from simpar.report.summarise import with_whole_run

if TYPE_CHECKING:
    from simpar.program.perturbation import Perturbation


def cooperate(
    context: Context, result: Result, perturbation: Perturbation, noise_tokens: float | None = None
) -> Result:
    """The result with the means over many local steps of all replicas in place of one replica's step.

    ``result`` summarises one local step; its memory, timeline and critical path stay. ``noise_tokens`` is the
    noise scale of gradients (None: by :func:`simpar.replicas.efficiency.noise_scale_tokens`).
    """
    setting = setting_of(context.lowered, context.timing, context.cluster, perturbation)
    scheme = setting.plan.data_parallel.sync
    mean: MeanStep = import_module(f"simpar.replicas.{scheme.replace('-', '_')}").rounds(setting)
    speed = _speed(result.speed, mean.step_s)
    changed = replace(
        result,
        speed=speed,
        time_breakdown_s=_breakdown(result, mean),
        communication={**result.communication, "dp": _exchange(result, setting, mean)},
        bill=_bill(result.bill, mean.step_s / result.step_time_s),
        cooperation=_report(setting, mean, _statistics(setting, mean, speed, noise_tokens)),
    )
    return explained(with_whole_run(changed), critical=result.why.critical_path_s)


def _speed(speed: Speed, step_s: float) -> Speed:
    """The same work in another time."""
    factor = speed.step_time_s / step_s
    rates = ("tokens_per_s", "tokens_per_s_per_device", "mfu", "hfu", "tflops_per_device")
    changed = {name: getattr(speed, name) * factor for name in rates}
    return speed.model_copy(update={"step_time_s": step_s, **changed})


def _breakdown(result: Result, mean: MeanStep) -> TimeBreakdown:
    """Parts of a local step at the replicas' mean speed, then messages, then waiting; they sum to the step."""
    stretch = mean.local_s / result.step_time_s
    parts = {name: value * stretch for name, value in result.time_breakdown_s.model_dump().items()}
    parts["exposed_dp"] += mean.exchange_s
    parts["waiting"] += mean.step_s - mean.local_s - mean.exchange_s
    return TimeBreakdown(**parts)


def _exchange(result: Result, setting: Setting, mean: MeanStep) -> Communication:
    """Data-parallel traffic inside the step, and what each rank's share of the exchange adds."""
    inside = result.communication.get("dp")
    ranks = len(setting.replicas.of_rank) / len(setting.replicas)
    how = "push and pull" if mean.server_memory_bytes else "all_reduce of parameters"
    return Communication(
        bytes_per_rank=mean.exchanged_bytes / ranks + (inside.bytes_per_rank if inside else 0.0),
        busy_s=mean.exchange_s + (inside.busy_s if inside else 0.0),
        exposed_s=mean.exchange_s + (inside.exposed_s if inside else 0.0),
        algorithm=", ".join([*([inside.algorithm] if inside and inside.algorithm else []), how]),
    )


def _bill(bill: Bill, factor: float) -> Bill:
    """Rent and energy of a longer or shorter step at the same power; servers are not in the bill."""
    usd, joules = bill.cost_usd_per_step, bill.energy_j_per_step
    return Bill(
        cost_usd_per_step=None if usd is None else usd * factor,
        energy_j_per_step=None if joules is None else joules * factor,
    )


def _statistics(
    setting: Setting, mean: MeanStep, speed: Speed, noise_tokens: float | None
) -> Efficiency | None:
    """The stated model where there is one: none for DiLoCo, whose outer optimizer no bound of this kind describes."""
    job, data = setting.lowered.job, setting.plan.data_parallel
    replicas = len(setting.replicas)
    batch = job.training.tokens_per_step / replicas
    noise = noise_tokens or noise_scale_tokens(job.graph.num_matmul_parameters())
    if mean.staleness is not None:
        value = of_staleness(mean.staleness, replicas, batch, noise)
        return efficiency("staleness (Koloskova et al. 2022)", value, noise, speed.tokens_per_s)
    if data.sync == "local-sgd":
        value = of_local_steps(int(data.sync_every or 1), replicas, batch, noise)
        return efficiency("local steps (Koloskova et al. 2020)", value, noise, speed.tokens_per_s)
    return None


def _report(setting: Setting, mean: MeanStep, statistics: Efficiency | None) -> Cooperation:
    data = setting.plan.data_parallel
    return Cooperation(
        scheme=data.sync,
        replicas=len(setting.replicas),
        servers=data.servers,
        sync_every=data.sync_every,
        local_step_s=mean.local_s,
        exchange_s=mean.exchange_s,
        waiting_s=mean.waiting_s,
        exchanged_bytes=mean.exchanged_bytes,
        server_memory_bytes=mean.server_memory_bytes,
        busy=dict(mean.busy),
        staleness=mean.staleness,
        statistics=statistics,
    )
