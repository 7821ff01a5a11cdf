"""The data flow of a simulation: a model, a cluster and a plan become a Result."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from simpar.architectures.documents import with_documents
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import MOST_TOKENS, Training
from simpar.architectures.tuning import TUNED, WIDENED, add_adapters
from simpar.calls import collects_later, refuses_unknown_keywords
from simpar.cost.kernels import KernelModel
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster
from simpar.inputs import as_cluster, as_model, as_perturbation, as_plan, as_training, with_units
from simpar.layout.action_table import schedule_of
from simpar.layout.decide import decide
from simpar.layout.layout import Layout, apply_execution_choices, fold_two_ended, stack_for_layout
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.plan.routing import expected_maximum
from simpar.plan.sync import replicas_are_independent
from simpar.precisions import narrower
from simpar.program.footprint import footprints
from simpar.program.ir.program import check_countable
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered, Outline, outline
from simpar.program.perturbation import Perturbation
from simpar.program.resolve.by_cost import decide_by_cost
from simpar.report.context import SummaryInputs
from simpar.report.result import Result
from simpar.report.summarise import summarise
from simpar.sampling import sample
from simpar.stacks.stack import Stack, load_stack
from simpar.tracing.load import load_model
from simpar.uncertainty.memory import AS_PREDICTED

CONVENTIONS = ("full", "causal")


@refuses_unknown_keywords
@collects_later
def simulate(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | Mapping[str, Any] | str | Path,
    training: Training | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    perturbation: Perturbation | Mapping[str, Any] | None = None,
    engine: str = "auto",
    seed: int | None = None,
    flops_convention: Literal["full", "causal"] = "full",
    with_timeline: bool = True,
    noise_scale_tokens: float | None = None,
) -> Result:
    """Simulate one optimizer step of a layout.

    Models and clusters may be given by name or file, plans as a file or a dict of what :class:`simpar.Plan` takes, the
    training as a dict of its fields.

    ``stack`` is the training software (a name, or a :class:`Stack`); by default that of the plan, else Megatron.
    ``perturbation`` is what makes ranks differ (slow ranks, jitter), and ``seed`` replaces its seed. ``engine`` is
    "auto", "reference", "plain", "sweep" or "event"; all give the same times. ``flops_convention`` says how attention
    is counted in the MFU: "full", or "causal" (only the keys that a mask leaves). ``with_timeline=False`` leaves
    pictures and the critical path out, which saves time. ``noise_scale_tokens`` is the batch below which gradients are
    mostly noise, for the statistical efficiency of replicas that step on their own. Raises UserError where the plan is
    impossible on this model and cluster, or an option is unknown, and where its value is. A layout that does not fit in
    memory is no error: see ``Result.fits``.

    >>> training = {"seq_len": 1024, "global_batch": 64}
    >>> result = simulate("gpt2", "dgx-h100", {"zero": 1, "micro_batch": 8}, training)
    >>> result.fits, result.setup.plan["mesh"]["dp"]
    (True, 8)
    """
    cluster, plan, training = as_cluster(cluster), as_plan(plan), as_training(training)
    model = as_model(model, training.seq_len)
    plan, assumed = with_units(plan, cluster)
    convention = choose(flops_convention, CONVENTIONS, "FLOP convention")
    job = make_job(model, cluster, plan, training, stack)
    perturbation = as_perturbation(perturbation)
    if seed is not None:
        perturbation = perturbation.model_copy(update={"seed": seed})
    lowered = lower_job(job, cluster, perturbation, apart=with_timeline)
    check_countable(lowered.program)
    # of replicas that step on their own, jitter is drawn for many local steps, not for the passes of one step
    alone = job.layout.replicas_are_independent
    jitter = None
    if perturbation.jitter_sigma > 0 and not alone:
        alone_on_links = partial(lower_job, job, cluster, perturbation, contention=False)
        jitter = sample(lowered, perturbation, engine, alone_on_links)
    nominal_ns = None if alone else without_slow_ranks_ns(job, cluster, perturbation, engine)
    timing = choose_engine(engine, lowered.program)(lowered.program)
    context = SummaryInputs(
        lowered, timing, cluster, engine, convention, perturbation, jitter, nominal_ns, plan, assumed=assumed
    )
    if not alone:
        return summarise(context, with_timeline=with_timeline)
    from simpar.replicas.cooperate import cooperate

    return cooperate(context, noise_scale_tokens, with_timeline=with_timeline)


def without_slow_ranks_ns(
    job: TrainingJob, cluster: Cluster, perturbation: Perturbation, engine: str = "auto"
) -> int | None:
    """The step if no rank were slow, in nanoseconds; None where none is."""
    if not perturbation.slow_ranks:
        return None
    nominal = lower_job(job, cluster, perturbation.model_copy(update={"slow_ranks": {}}), apart=False).program
    return choose_engine(engine, nominal)(nominal).makespan_ns


def refuse_whole_vocabulary(stack: Stack) -> None:
    """Raise UserError for a stack that keeps the vocabulary whole, which stages with a sharding of their own split."""
    if stack.memory.whole_vocabulary:
        raise UserError(
            f"stack {stack.name}: does not split the vocabulary over tensor-parallel ranks, but stages with their own "
            "sharding need it split; allowed: stages without their own sharding, or another stack"
        )


def stack_for(plan: Plan, stack: Stack | str | None = None) -> Stack:
    """The software stack that runs a plan, as the plan has it execute steps. Raises UserError.

    It is the given one, else the plan's, else the usual one.
    """
    return apply_execution_choices(stack if isinstance(stack, Stack) else load_stack(stack or plan.usual_stack), plan)


def make_job(
    model: ModelGraph | str,
    cluster: Cluster,
    plan: Plan,
    training: Training,
    stack: Stack | str | None = None,
    fit_probability: float = AS_PREDICTED,
) -> TrainingJob:
    """The job of a plan: everything that is decided before lowering. Raises UserError.

    Where recomputation is chosen layer by layer ("optimal"), the choice fits in memory with ``fit_probability``.
    """
    graph = load_model(model, seq_len=training.seq_len) if isinstance(model, str) else model
    habits = stack_for(plan, stack)
    if cluster.is_mixed and (replicas_are_independent(plan) or plan.data_parallel.kind == "single_process"):
        raise UserError(
            f"hardware {cluster.profile.name}: replicas on several kinds of nodes step together; allowed: "
            "plan.sync = bsp without servers, plan.kind ddp or fsdp"
        )
    if any(stage.sharding for stage in plan.pipeline.stages or ()):
        refuse_whole_vocabulary(habits)
    graph = apply_tuning(plan, graph)
    target = Workload(graph, training, cluster.world_size, cluster.profile.devices_per_node)
    layout = decide(plan, target, habits)
    return job_of_layout(graph, cluster, layout, training, habits, fit_probability)


def job_of_layout(
    graph: ModelGraph,
    cluster: Cluster,
    layout: Layout,
    training: Training,
    stack: Stack,
    fit_probability: float = AS_PREDICTED,
) -> TrainingJob:
    """The job of a layout whose costs are still to be looked at. Raises UserError.

    DualPipe becomes DualPipeV on half as many pipeline ranks (:mod:`simpar.layout.mirrored`).
    """
    layout = fold_two_ended(layout)
    habits = stack_for_layout(stack, layout)
    named = {"model": graph.name, "training": training.model_dump(), "stack": habits.name}
    first, *others = (
        KernelModel(
            device, layout.precision, habits.fusion.attention, attention_rate=habits.fusion.rate_on(device.name)
        )
        for device in cluster.devices
    )
    for kernels in (first, *others):
        kernels.peak(layout.precision)
    check_drives(layout, cluster)
    graph = _with_documents(graph, layout, training)
    named_layout = replace(layout, record=layout.record.model_copy(update=named))
    job = TrainingJob(graph, training, named_layout, habits, first, tuple(others))
    return decide_by_cost(job, cluster, partial(_room, cluster, fit_probability))


def _room(cluster: Cluster, fit_probability: float, job: TrainingJob) -> dict[int, tuple[float, float]]:
    """For every pipeline rank: bytes that come and go in the simulated step of a job, and the most that would fit."""
    decided = decide_by_cost(job, cluster, partial(_room, cluster, fit_probability))
    lowered = lower_job(decided, cluster, apart=False)
    timing = choose_engine("auto", lowered.program)(lowered.program)
    held = footprints(lowered, timing, cluster)
    return {
        each.stage: (float(each.moving_bytes), each.most_moving_bytes(fit_probability))
        for each in sorted(held, key=lambda one: one.moving_bytes)  # the fullest comes last and stays
    }


def may_be_tuned(plan: Plan) -> bool:
    """Whether the rest of a plan allows adapters and frozen layers."""
    has_roles = any(stage.sharding for stage in plan.pipeline.stages or ())
    return not (has_roles or replicas_are_independent(plan))


def apply_tuning(plan: Plan, graph: ModelGraph) -> ModelGraph:
    """The model with the adapters and frozen layers of the plan; one that has them already stays. Raises UserError."""
    tuning = plan.tuning
    if not tuning.is_used:
        return graph
    if not may_be_tuned(plan):
        raise UserError(
            "plan.tuning: not with stages whose operators have roles of their own (sharding) or replicas that step on "
            "their own; allowed: none of them"
        )
    stored, precision = tuning.frozen_dtype, plan.numerics.precision
    if stored in narrower(16) and stored not in (precision, *WIDENED):
        raise UserError(
            f"plan.frozen_dtype = {stored}: products of precision {precision} read other weights; allowed: "
            f"precision = {stored}, or frozen_dtype = bf16, {', '.join(WIDENED)}"
        )
    if graph.facts.get(TUNED):
        return graph
    return add_adapters(graph, **tuning.of_model)


def _with_documents(graph: ModelGraph, layout: Layout, training: Training) -> ModelGraph:
    """The model on the fullest of the ranks that share a batch of documents."""
    if training.documents is None:
        return graph
    ranks = int(layout.dp)
    return with_documents(graph, training, training.global_batch / ranks, expected_maximum(ranks))


def check_drives(layout: Layout, cluster: Cluster) -> None:
    """Raise UserError where a layout offloads to drives that the cluster lacks, or on nodes of several kinds."""
    if layout.offloads and cluster.is_mixed:
        raise UserError(
            f"plan.offload: hardware {cluster.profile.name} has several kinds of nodes; allowed: offload on one kind"
        )
    for name in ("offload_optimizer", "offload_parameters"):
        if getattr(layout, name) == "nvme" and cluster.profile.host.nvme_bandwidth is None:
            raise UserError(
                f"plan.{name} = nvme: hardware {cluster.profile.name} has no drives (host.nvme_bandwidth); allowed: "
                "none, cpu"
            )


def _check_tokens(job: TrainingJob) -> None:
    micro_batch = int(job.layout.micro_batch)
    tokens = micro_batch * job.training.seq_len
    if tokens > MOST_TOKENS:
        raise UserError(
            f"plan.micro_batch = {micro_batch}: {tokens:.4g} tokens a microbatch; allowed: {MOST_TOKENS}, "
            f"that is {max(1, MOST_TOKENS // job.training.seq_len)} sequences of {job.training.seq_len}"
        )


def lower_job(
    job: TrainingJob,
    cluster: Cluster,
    perturbation: Perturbation | None = None,
    *,
    contention: bool = True,
    apart: bool = True,
) -> Lowered:
    """Lower a job whose ranks differ by a perturbation. Raises UserError for a rank that does not exist."""
    return outline_job(job, cluster, perturbation, contention=contention, apart=apart).lowered()


def outline_job(
    job: TrainingJob,
    cluster: Cluster,
    perturbation: Perturbation | None = None,
    *,
    contention: bool = True,
    apart: bool = True,
) -> Outline:
    """What :func:`lower_job` decides before it writes the ops of the Program out. Raises UserError as it does."""
    perturbation = perturbation or Perturbation()
    for rank in perturbation.slow_ranks:
        if not 0 <= rank < cluster.world_size:
            raise UserError(f"slow_ranks: rank {rank}: allowed: 0..{cluster.world_size - 1}")
    _check_tokens(job)
    schedule = schedule_of(job.layout, job.training)
    return outline(job, cluster, schedule, perturbation=perturbation, contention=contention, apart=apart)
