"""From one replica's step to the cooperation of all: the Result of a plan whose replicas step on their own."""

from dataclasses import replace
from importlib import import_module

import numpy as np

from simpar.dataclass import but
from simpar.replicas.efficiency import efficiency, noise_scale_tokens, of_local_steps, of_staleness
from simpar.replicas.setting import ReplicaSetting, setting_of
from simpar.replicas.staleness import MeanStep
from simpar.report.bill import Bill
from simpar.report.context import SummaryInputs
from simpar.report.explain import add_explanation
from simpar.report.parts import Communication, Cooperation, Efficiency, Speed, TimeBreakdown, Why
from simpar.report.result import Result
from simpar.report.summarise import bill_of, summarise, with_whole_run
from simpar.report.waits import OTHER_REPLICAS, Waited


def cooperate(context: SummaryInputs, noise_tokens: float | None = None, *, with_timeline: bool = True) -> Result:
    """The result of one local step, with times replaced by means over many local steps of all replicas.

    Memory, timeline and critical path are those of the local step. ``noise_tokens`` is the
    noise scale of gradients (None: by :func:`simpar.replicas.efficiency.noise_scale_tokens`).
    """
    setting = setting_of(context.lowered, context.timing, context.cluster, context.perturbation)
    context = replace(context, last_ops=setting.last_ops)
    result = summarise(context, with_timeline=with_timeline)
    scheme = setting.layout.sync
    mean: MeanStep = import_module(f"simpar.replicas.{scheme.replace('-', '_')}").rounds(setting)
    stretch = (mean.local_s - mean.outer_s) / result.time_breakdown_s.total_s
    speed = _speed(result.speed, mean.step_s, stretch)
    changed = but(
        result,
        speed=speed,
        time_breakdown_s=_breakdown(result.time_breakdown_s, mean, stretch),
        why=_why(result, mean, stretch),
        communication=_communication(result, setting, mean, stretch),
        bill=_bill(context, setting, mean),
        cooperation=_report(setting, mean, _statistics(setting, mean, speed, noise_tokens)),
    )
    return add_explanation(with_whole_run(changed), critical=result.why.critical_path_s)


def _speed(speed: Speed, step_s: float, stretch: float) -> Speed:
    """The speed at ``step_s`` per step, where a local step is ``stretch`` times as long as the simulated one."""
    factor = speed.step_time_s / step_s
    rates = ("tokens_per_s", "tokens_per_s_per_device", "mfu", "hfu", "tflops_per_device")
    changed = {name: getattr(speed, name) * factor for name in rates}
    changed["recompute_s"] = speed.recompute_s * stretch
    return speed.model_copy(update={"step_time_s": step_s, **changed})


def _breakdown(local: TimeBreakdown, mean: MeanStep, stretch: float) -> TimeBreakdown:
    """Parts of the local step, stretched to the mean, then messages, then waiting; they sum to the step."""
    parts = {name: value * stretch for name, value in local.model_dump().items()}
    parts["optimizer"] += mean.outer_s
    parts["exposed_dp"] += mean.exchange_s
    parts["waiting"] += mean.waiting_s
    return TimeBreakdown(**parts)


def _why(result: Result, mean: MeanStep, stretch: float) -> Why:
    """What a rank of the mean replica waits for, in its own step and for other replicas, and how sure the step is.

    No measured run shows the error of an exchange: it is taken to be as sure as the local step, with the same factor.
    """
    inside = [one.model_copy(update={"seconds": one.seconds * stretch}) for one in result.waiting]
    others = [Waited(cause=OTHER_REPLICAS, seconds=mean.waiting_s)] if mean.waiting_s else []
    waiting = sorted([*inside, *others], key=lambda one: -one.seconds)
    known, factor = result.certainty, mean.step_s / result.step_time_s
    if known is not None:
        low_s, high_s = known.step_time_interval_s
        known = known.model_copy(update={"step_time_interval_s": (low_s * factor, high_s * factor)})
    return result.why.model_copy(update={"waiting": tuple(waiting), "certainty": known})


def _communication(result: Result, setting: ReplicaSetting, mean: MeanStep, stretch: float) -> dict[str, Communication]:
    """Communication of a local step, stretched to the mean, plus that of the exchange as data-parallel."""
    local = {
        kind: one.model_copy(update={"busy_s": one.busy_s * stretch, "exposed_s": one.exposed_s * stretch})
        for kind, one in result.communication.items()
    }
    return {**local, "dp": _exchange(local.get("dp"), setting, mean)}


def _exchange(inside: Communication | None, setting: ReplicaSetting, mean: MeanStep) -> Communication:
    """Data-parallel traffic inside the step, plus each rank's share of the exchange."""
    ranks = len(setting.replicas.of_rank) / len(setting.replicas)
    how = "push and pull" if mean.server_memory_bytes else "all_reduce of parameters"
    return Communication(
        bytes_per_rank=mean.exchanged_bytes / ranks + (inside.bytes_per_rank if inside else 0.0),
        busy_s=mean.exchange_s + (inside.busy_s if inside else 0.0),
        exposed_s=mean.exchange_s + (inside.exposed_s if inside else 0.0),
        sent_bytes_per_rank=mean.exchanged_bytes / ranks + ((inside.sent_bytes_per_rank or 0.0) if inside else 0.0),
        algorithm=", ".join([*([inside.algorithm] if inside and inside.algorithm else []), how]),
    )


def _bill(context: SummaryInputs, setting: ReplicaSetting, mean: MeanStep) -> Bill:
    """Rent and energy of the mean step: every replica runs its kernels once per step of its own, and waits otherwise.

    Servers are not in the bill. An outer update counts as memory-bound.
    """
    kernels_s = context.accounts.kernels_s() + np.array([0.0, mean.outer_s])
    replica = setting.replicas.of_rank[context.lowered.quotient.representative_rank]
    return bill_of(context, kernels_s, mean.step_s, mean.own_step_s[replica])


def _statistics(setting: ReplicaSetting, mean: MeanStep, speed: Speed, noise_tokens: float | None) -> Efficiency | None:
    """Statistical efficiency by the stated model; None for DiLoCo, whose outer optimizer no such bound describes."""
    job, layout = setting.lowered.job, setting.layout
    replicas = len(setting.replicas)
    batch = job.training.tokens_per_step / replicas
    noise = noise_tokens or noise_scale_tokens(job.graph.num_matmul_parameters())
    if mean.staleness is not None:
        value = of_staleness(mean.staleness, replicas, batch, noise)
        return efficiency("staleness (Koloskova et al. 2022)", value, noise, speed.tokens_per_s)
    if layout.sync == "local-sgd":
        value = of_local_steps(int(layout.sync_every or 1), replicas, batch, noise)
        return efficiency("local steps (Koloskova et al. 2020)", value, noise, speed.tokens_per_s)
    return None


def _report(setting: ReplicaSetting, mean: MeanStep, statistics: Efficiency | None) -> Cooperation:
    layout = setting.layout
    return Cooperation(
        scheme=layout.sync,
        replicas=len(setting.replicas),
        servers=layout.servers,
        sync_every=layout.sync_every,
        local_step_s=mean.local_s,
        exchange_s=mean.exchange_s,
        waiting_s=mean.waiting_s,
        exchanged_bytes=mean.exchanged_bytes,
        server_memory_bytes=mean.server_memory_bytes,
        updates_s=mean.updates_s,
        twice_servers_s=mean.twice_servers_s,
        busy=dict(mean.busy),
        staleness=mean.staleness,
        statistics=statistics,
    )
