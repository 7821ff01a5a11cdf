"""From a timed Program to a Result: speed, breakdown, communication, memory, bill, and why."""

from collections.abc import Iterable, Iterator
from math import isnan, nan
from typing import Any

import numpy as np

import simpar
from simpar.architectures.documents import packing_of, with_documents
from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token
from simpar.architectures.graph import ModelGraph
from simpar.cost.collectives.algorithm import base_op
from simpar.cost.memory.outputs import output_notes
from simpar.cost.memory.widths import holds_whole
from simpar.cost.offload import host_notes
from simpar.cost.power import device_w, input_w
from simpar.dataclass import but
from simpar.hardware.catalogue import recorded
from simpar.hardware.cluster import Cluster
from simpar.hardware.price import price_of
from simpar.plan.choices.mesh import COMMUNICATION as COMMUNICATION_BY_DEGREE
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.choices.tensor_parallel import has_tensor_ranks
from simpar.plan.plan import Plan
from simpar.plan.routing import Routing, max_rank_load, max_rank_load_deviation, sample_loads
from simpar.program.job import TrainingJob
from simpar.report.accounting import Accounts
from simpar.report.bill import Amount, Bill, Step, whole_run
from simpar.report.certainty import StepParts, certainty_of
from simpar.report.context import SummaryInputs
from simpar.report.drawn import DrawnStep
from simpar.report.explain import add_explanation, critical_path_s
from simpar.report.later import Later
from simpar.report.memory import memory_report, stage_memory
from simpar.report.parts import Communication, Setup, Speed, TimeBreakdown, Why
from simpar.report.result import Result
from simpar.report.sent import sent_bytes
from simpar.report.slot_facts import COMMUNICATION
from simpar.report.waits import MOST_NAMED, ExpertLoad, SlowRanks, Waited
from simpar.units import HOUR_S, NS_PER_S, TERA, Floats, unique

_KIND_OF_GROUP = {
    **dict(zip(COMMUNICATION_BY_DEGREE, COMMUNICATION_BY_DEGREE, strict=True)), "etp": "tp", "edp": "dp",
    "host": "offload", "drive": "offload",
}  # fmt: skip
WAITS = (
    "gradients whole until the last of {} microbatches, which alone reduces them, as trainers of the stack have it "
    "(plan.data_parallel.defer_grad_reduce = false: every one does)"
)
REDUCTIONS = ("reduce_scatter", "all_reduce")
OF_KERNELS = ("compute", "optimizer", "bubble", "waiting")
"""Causes of time that grows with that of kernels: a rank's own, and those of ranks that it waits for."""


def summarise(context: SummaryInputs, *, with_timeline: bool = True) -> Result:
    """The Result of one simulated step.

    ``with_timeline=False`` leaves out what is only drawn, and the critical path. What is drawn is made when it is first
    read.
    """
    lowered, timing = context.lowered, context.timing
    accounts = context.accounts
    critical = accounts.critical_class()
    breakdown = {**accounts.breakdown_s(critical), "jitter": 0.0}
    between_s = context.job.stack.launch.step_overhead_s
    step_s = float(context.job.stack.step_s(accounts.step_ns))
    breakdown["host"] += between_s
    if context.jitter:
        added_s = context.jitter.mean_s - step_s
        step_s += added_s
        breakdown["jitter" if added_s > 0 else "compute"] += (
            added_s  # with few ranks, the mean may be below the nominal step
        )
    held = context.footprints
    stages = stage_memory(context, held)
    result = Result(
        speed=_speed(context, step_s, float(accounts.recompute_ns[critical]) / NS_PER_S),
        bubble_fraction=accounts.bubble_fraction(lowered.quotient.multiplicity),
        time_breakdown_s=TimeBreakdown(**breakdown),
        why=Why(
            waiting=_waiting(context, accounts, critical),
            slow_ranks=_slow_ranks(context, step_s),
            expert_load=_expert_load(context),
            emulated=emulated_precision(context.job, context.cluster),
            certainty=certainty_of(context.job, context.cluster, held, step_s, lambda: step_parts(context)),
        ),
        communication=_communication(context, accounts, critical),
        memory=memory_report(context, stages, held),
        bill=bill_of(context, accounts.kernels_s(), step_s),
        setup=_setup(context),
    )
    result = with_whole_run(result)
    if not with_timeline:
        return add_explanation(result)
    path = critical_path_s(lowered.program, timing, accounts.binding, accounts.inside_shares)
    path["host"] = path.get("host", 0.0) + between_s
    drawn = DrawnStep(context)
    later = {"overview": Later(lambda: drawn.overview), "timeline": Later(lambda: drawn.timeline)}
    return but(add_explanation(result, critical=path), **later)


def with_whole_run(result: Result) -> Result:
    """The result with the figures of its whole run, if the training has a number of tokens."""
    training, known = result.setup.training, result.certainty
    if training.get("tokens") is None:
        return result
    low, high = known.step_time_interval_s if known else (None, None)
    seconds = Amount(value=result.step_time_s, low=low, high=high)
    bill = result.bill
    step = Step(
        seconds=seconds,
        devices=result.setup.cluster["devices"],
        cost_usd=bill.cost_usd_per_step,
        energy_j=bill.energy_j_per_step,
    )
    run = whole_run(training["tokens"], training["seq_len"] * training["global_batch"], step)
    return but(result, bill=bill.model_copy(update={"whole_run": run}))


def _speed(context: SummaryInputs, step_s: float, recompute_s: float) -> Speed:
    job, cluster = context.job, context.cluster
    tokens = job.training.tokens_per_step
    devices = cluster.world_size
    graph, seq_len = _of_mean_documents(job), job.training.seq_len
    causal, full = (model_flop_per_token(graph, seq_len, convention) for convention in ("causal", "full"))
    per_token = full if context.convention == "full" else causal
    peak = _peak_flop_per_s(job, cluster)
    return Speed(
        step_time_s=step_s,
        tokens_per_s=tokens / step_s,
        tokens_per_s_per_device=tokens / step_s / devices,
        model_flops_per_step=per_token * tokens,
        mfu=per_token * tokens / step_s / peak,
        hfu=at_peak_s(job, cluster, context.convention) / step_s,
        tflops_per_device=per_token * tokens / step_s / devices / TERA,
        flops_convention=context.convention,
        masked_share=1.0 - causal / full if full else 0.0,
        useful_share=packed.useful if (packed := packing_of(job.training)) else 1.0,
        jitter=context.jitter,
        recompute_s=recompute_s,
    )


def at_peak_s(job: TrainingJob, cluster: Cluster, convention: str) -> float:
    """Seconds that the FLOP of a step, recomputation included, take at the dense peak of all devices."""
    seq_len = job.training.seq_len
    flop = hardware_flop_per_token(_of_mean_documents(job), seq_len, job.layout.recompute, convention)
    return flop * job.training.tokens_per_step / _peak_flop_per_s(job, cluster)


def _of_mean_documents(job: TrainingJob) -> ModelGraph:
    """The model as the mean rank computes it: the fullest rank's extra work lengthens the step, not the FLOP."""
    return with_documents(job.graph, job.training)


def _peak_flop_per_s(job: TrainingJob, cluster: Cluster) -> float:
    """Peak FLOP/s of all devices together."""
    peaks = [job.on(index).kernels.peak(job.layout.precision) for index in range(len(cluster.devices))]
    return sum(part.world_size * peaks[cluster.devices.index(part.device)] for part in cluster.parts)


def emulated_precision(job: TrainingJob, cluster: Cluster) -> str | None:
    """In words, that devices have no matrix units for the precision, and which other one of 16 bits they have."""
    precision = job.layout.precision
    for device in cluster.devices:
        rates = device.peak_flop_per_s
        if (other := device.computes_instead(precision)) is not None:
            return (
                f"{device.name} has no {precision} units: products run at the fp32 rate, "
                f"{rates[precision] / TERA:.4g} TFLOP/s, and "
                f"at up to {rates[other] / TERA:.4g} with precision {other}"
            )
    return None


def _slow_ranks(context: SummaryInputs, step_s: float) -> SlowRanks | None:
    """Ranks slower than others, and the step without the slowdown."""
    slow = {rank: by for rank, by in context.perturbation.slow_ranks.items() if by > 1}
    if not slow or context.nominal_ns is None:
        return None
    added_s = (context.timing.makespan_ns - context.nominal_ns) / NS_PER_S
    return SlowRanks(factors=slow, step_time_without_s=step_s - added_s)


def _expert_load(context: SummaryInputs) -> ExpertLoad | None:
    """How unevenly tokens spread over expert ranks; None if they are balanced."""
    graph, layout = context.job.graph, context.job.layout
    ranks, is_even = layout.mesh.ep, not layout.expert_imbalance or layout.capacity_factor is not None
    if not graph.is_mixture or ranks == 1 or is_even:
        return None
    routing, sampled = Routing.of_dims(graph.dims), layout.has_sampled_loads
    drawn = sample_loads(graph, layout, ranks, context.perturbation.seed).max() if sampled else 0.0
    fullest = float(drawn or max_rank_load(routing, layout, ranks))
    return ExpertLoad(
        ranks=ranks, fullest=fullest, deviation=max_rank_load_deviation(routing, layout, ranks), sampled=sampled
    )


def _waiting(context: SummaryInputs, accounts: Accounts, critical: int) -> tuple[Waited, ...]:
    """The ranks that the critical class waits for."""
    quotient, stage = context.lowered.quotient, context.lowered.stage_of_class
    result = []
    for part in accounts.waiting(critical):
        one = Waited(cause=part.cause, seconds=part.ns / NS_PER_S, kind=part.kind)
        if part.class_id >= 0:
            ranks = np.flatnonzero(quotient.class_of_rank == part.class_id)
            named = {
                "ranks": tuple(ranks[:MOST_NAMED].tolist()),
                "num_ranks": len(ranks),
                "stage": int(stage[part.class_id]),
                "factor": float(accounts.slowdown[part.class_id]),
            }
            one = one.model_copy(update=named)
        result.append(one)
    return tuple(result)


def step_parts(context: SummaryInputs) -> StepParts:
    """Seconds of a step that grow with what no run may tell, on the critical class."""
    causes_s = context.accounts.breakdown_s(context.accounts.critical_class())
    kernels_s = sum(causes_s[cause] for cause in OF_KERNELS)
    return StepParts(*_between_domains_s(context), kernels_s)


def _between_domains_s(context: SummaryInputs) -> tuple[float, float]:
    """Seconds in which kinds of communication between domains are (under way, exposed), on the critical class."""
    quotient, seconds = context.lowered.quotient, context.accounts.communication_s()
    far = {
        _communication_of(group.kind)
        for group in quotient.groups
        if len(unique(context.cluster.domain_of(group.ranks))) > 1
    }
    busy_s, exposed_s = np.sum([seconds[kind] for kind in sorted(far)], axis=0) if far else (0.0, 0.0)
    return float(busy_s), float(exposed_s)


def _communication_of(group: str) -> str:
    """The kind of communication of a kind of process groups."""
    return PIPELINE if group.startswith(PIPELINE) or group == "embedding" else _KIND_OF_GROUP[group.split("_")[0]]


def _communication(context: SummaryInputs, accounts: Accounts, critical: int) -> dict[str, Communication]:
    """Kinds of communication that the plan has, on the critical class."""
    algorithms: dict[str, set[str]] = {}
    layout = context.job.layout
    sent_as = {"all_gather": layout.gather_dtype} | dict.fromkeys(REDUCTIONS, layout.reduce_dtype)
    for (group, op), algorithm in sorted(context.lowered.maker.network.algorithms.items()):
        kind = _communication_of(group)
        dtype = sent_as.get(op) if kind == "dp" else None
        algorithms.setdefault(kind, set()).add(f"{base_op(op)} {algorithm}" + (f" in {dtype}" if dtype else ""))
    result = {}
    seconds, sent = accounts.communication_s(), sent_bytes(context.lowered, critical)
    for kind, size in zip(COMMUNICATION, accounts.moved_bytes[critical].tolist(), strict=True):
        busy_s, exposed_s = seconds[kind]
        if busy_s or kind in algorithms:
            result[kind] = Communication(
                bytes_per_rank=float(size),
                sent_bytes_per_rank=sent[kind],
                busy_s=busy_s,
                exposed_s=exposed_s,
                algorithm=", ".join(sorted(algorithms.get(kind, set()))),
            )
    return result


def bill_of(context: SummaryInputs, kernels_s: Floats, step_s: float, own_step_s: Floats | None = None) -> Bill:
    """Rental price of the devices, and energy of whole nodes by the load of their devices (:mod:`simpar.cost.power`).

    ``kernels_s`` is :meth:`Accounts.kernels_s`. ``own_step_s`` float64[num_classes] are the local steps of classes, if
    these step on their own.
    """
    cluster, quotient = context.cluster, context.lowered.quotient
    kind = cluster.device_of(quotient.representative_rank)
    own_s = step_s if own_step_s is None else own_step_s
    whole_s = np.maximum(own_s, kernels_s.sum(axis=1))  # jitter may make a step shorter than its kernels
    products, streaming = (kernels_s / whole_s[:, None]).T
    cost, energy = 0.0, 0.0
    for part in cluster.parts:
        price = price_of(part)
        price = nan if price is None else price
        cost += price * part.world_size * step_s / HOUR_S
        if (power := part.device.power) is None:
            energy = nan
            continue
        here = kind == cluster.devices.index(part.device)
        each_w = np.broadcast_to(device_w(power, products[here], streaming[here]), here.sum())
        mean_w = float(np.average(each_w, weights=quotient.multiplicity[here]))
        energy += input_w(part.profile.host, part.world_size * mean_w, part.nodes) * step_s
    return Bill(
        cost_usd_per_step=None if isnan(cost) else cost,
        energy_j_per_step=None if isnan(energy) else energy,
        usd_per_device_hour=None if isnan(cost) else cost * HOUR_S / step_s / cluster.world_size,
    )


def _setup(context: SummaryInputs) -> Setup:
    job, cluster, quotient = context.job, context.cluster, context.lowered.quotient
    stated = job.layout.to_plan()
    return Setup(
        plan=stated.model_dump(mode="json"),
        asked={} if context.asked is None else _asked(context.asked, stated),
        training=job.training.model_dump(),
        num_microbatches=int(job.num_microbatches),
        model=_model_facts(job, (context.assumed, *_stack_habits(context))),
        cluster=recorded(cluster),
        engine={"name": context.engine, "ops": len(context.lowered.program), "seed": context.perturbation.seed},
        perturbation={
            "slow_ranks": {str(rank): slow for rank, slow in context.perturbation.slow_ranks.items()},
            "jitter_sigma": context.perturbation.jitter_sigma,
            "jitter_seeds": context.perturbation.seeds,
        },
        fold={"ranks": cluster.world_size, "classes": quotient.num_classes},
        simpar_version=simpar.__version__,
    )


def _asked(plan: Plan, resolved: Plan) -> dict[str, Any]:
    """The plan as it was asked for, given its model, training and stack."""
    named = {name: getattr(resolved, name) for name in ("model", "training", "stack")}
    return plan.model_copy(update={**named, "predicted": None}).model_dump(mode="json")


def _stack_habits(context: SummaryInputs) -> Iterator[str]:
    """What the stack decided of a plan and what readers might not expect, in words."""
    job, asked = context.job, context.asked
    is_said = asked is not None and asked.data_parallel.defer_grad_reduce is not None
    if job.accumulates and not is_said and holds_whole(job.layout, job.stack):
        yield WAITS.format(job.num_microbatches)
    if asked is None or asked.execution.kept_outputs is None:
        yield from output_notes(job.layout, job.stack, job.num_microbatches)


def _model_facts(job: TrainingJob, of_plan: Iterable[str]) -> dict[str, Any]:
    graph, seq_len = job.graph, job.training.seq_len
    rows = graph.dims.get("positions") or seq_len
    longer = f"a longer table of positions: its config has {rows:,} rows, a sequence {seq_len:,} tokens"
    towers = [scope for scope in graph.whole_scopes if f"{scope}.seq" in graph.dims]
    whole = f"{' and '.join(towers)} tower whole on every tensor-parallel rank (8 does not divide all of its sizes)"
    ranks = has_tensor_ranks(int(job.layout.tp), job.layout.stages)
    said = {longer: rows < seq_len, whole: bool(towers) and ranks}
    said |= {words: True for words in of_plan if words}
    assumed = [*graph.assumed, *(words for words, holds in said.items() if holds)]
    fields = ", ".join(graph.details.unread)
    unread = [f"fields of the model's config that are not understood and play no part: {fields}"] if fields else []
    of_host = host_notes(job.layout, job.stack, accumulates=job.accumulates)
    notes = [*graph.facts.get("notes", ()), *unread, *of_host]
    return {
        "name": graph.name,
        "parameters": graph.num_parameters(),
        "layers": len(graph.layers),
        **({"assumed": assumed} if assumed else {}),
        **{name: int(value) for name, value in graph.dims.items()},
        **({"notes": notes} if notes else {}),
    }
