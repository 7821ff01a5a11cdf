"""Choices of pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from simpar import files
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    JOB,
    KERNELS,
    LAYOUT,
    MEMORY,
    OPS,
    SHAPE,
    TABLE,
    Axis,
    Change,
    Choice,
    Columns,
    Flag,
    Moves,
    Question,
    Size,
    in_section,
    make_effects,
    replace_with,
    select_all,
)
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Refusals, Workload, select_kept
from simpar.plan.encoder_in_bubbles import EncoderCosts
from simpar.plan.routing import has_sampled_loads
from simpar.plan.schedules import (
    HALF_SCHEDULES,
    SCHEDULES,
    default_schedule,
    natural_vpp,
    producer_of,
    schedule_named,
    suggest_schedules,
)
from simpar.plan.stage_layers import spread_layers
from simpar.plan.stages import StagePlan
from simpar.units import Count, Counts, Flags

SLICING = ", ".join(each.name for each in SCHEDULES.values() if each.runs_slices)
"""Schedules that cut sequences into slices of tokens."""
CUSTOM = "custom"
PassCost = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Layers = Annotated[int, Field(ge=0, strict=True)]

if TYPE_CHECKING:
    from simpar.plan.plan import Plan

MAX_PASSES = 2**21
"""The most stages x microbatches of a step."""
MAX_CHUNKS = 16
"""The most chunks per rank of menus."""


class Pipeline(Section):
    """Pipeline parallelism: which schedule, how many chunks a rank, layers of every virtual stage."""

    schedule: str | None = Field(
        default=None,
        description=f"name of a schedule; default {default_schedule()}, {default_schedule(chunks=2)} with chunks",
    )
    vpp: Count = Field(default=1, description="model chunks per pipeline rank; default as the schedule needs")
    layers: tuple[Layers, ...] | None = Field(
        default=None, description="transformer layers per virtual stage, in order"
    )
    actions: str | None = Field(
        default=None, description="action table (CSV, a line a rank) instead of a named schedule"
    )
    slices: tuple[Count, ...] | None = Field(
        default=None, description=f"tokens of every slice of a sequence; {SLICING} chooses them"
    )
    pass_costs: tuple[PassCost, PassCost, PassCost] | None = Field(
        default=None, description="durations of F, I and W, in any unit, that a greedy schedule is made for"
    )
    encoder_in_bubbles: bool = Field(
        default=False,
        description="whether every pipeline rank holds the encoder of images or sound and runs it in the pipeline's "
        "bubbles, for some of the microbatches",
    )
    stages: tuple[StagePlan, ...] | None = Field(
        default=None, description="stages with devices, meshes and shardings of their own"
    )

    @model_validator(mode="before")
    @classmethod
    def _natural_vpp(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("schedule"), str) or "vpp" in data:
            return data
        name = schedule_named(data["schedule"])
        return data if name is None else {**data, "vpp": natural_vpp(name)}

    @field_validator("schedule")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is None or name == CUSTOM:
            return name
        known = schedule_named(name)
        if known is None:
            hint = suggest_schedules(name) or files.suggest(name, SCHEDULES)
            raise ValueError(f"is not a schedule{hint}{files.allowed(SCHEDULES)}")
        return known

    @model_validator(mode="after")
    def _custom_has_actions(self) -> Pipeline:
        if self.schedule == CUSTOM and not self.actions:
            raise ValueError("schedule = 'custom' needs an action table in actions")
        if self.actions and self.schedule not in (None, CUSTOM):
            raise ValueError(f"schedule = {self.schedule!r} and an action table: give one of them")
        return self


@dataclass(frozen=True, kw_only=True)
class DecidedPipeline:
    """The schedule. ``layers`` None spreads them evenly; ``pass_costs`` None stands for passes that take equally long.

    ``mirrored``: pipeline ranks are those of one half of a schedule with two ends (:mod:`simpar.layout.mirrored`). Of
    an encoder in the bubbles, ``encoder_layers`` are the first layers of the model (0: none are), and ``encoder_costs``
    what its places in the schedule are made for (None: not known yet).
    """

    schedule: str = default_schedule()
    vpp: Counts = 1
    layers: tuple[int, ...] | None = None
    actions: str | None = None
    slices: tuple[int, ...] | None = None
    pass_costs: tuple[float, float, float] | None = None
    stages: tuple[StagePlan, ...] | None = None
    mirrored: bool = False
    encoder_in_bubbles: bool = False
    encoder_layers: int = 0
    encoder_costs: EncoderCosts | None = None

    @property
    def runs_slices(self) -> bool:
        """Whether sequences go through the pipeline in slices of tokens, which may not be chosen yet."""
        return runs_slices(self.schedule, self.slices)


def slices_refusals(
    target: Workload, *, schedule: str, slices: tuple[int, ...] | None, cp: Counts, rows_over: Counts, is_sampled: Any
) -> Refusals:
    """Where token slices do not belong to a causal model, or do not divide over their ranks.

    ``rows_over`` are the ranks that share rows under sequence parallelism, else 1; ``is_sampled``: whether expert ranks
    have loads of their own.
    """
    if not runs_slices(schedule, slices):
        return
    graph, seq_len = target.graph, target.training.seq_len
    what = f"plan.slices = {list(slices)}" if slices else f"plan.schedule = {schedule}"
    masks = [op.attention for block in graph.blocks.values() for op in block.operators if op.attention]
    several = len({dims.get("seq") for dims in graph.scopes}) > 1
    sees_later = several or not all(mask.causal and mask.context == "context" for mask in masks)
    yield sees_later, lambda: f"{what}: {graph.name} has tokens that see later ones; allowed: causal models"
    yield graph.has_state, lambda: f"{what}: {graph.name} carries states along the sequence; allowed: none"
    yield graph.chooses_keys, lambda: f"{what}: {graph.name} chooses keys anywhere in the sequence; allowed: none"
    yield cp > 1, lambda: f"{what}: plan.cp = {cp} spreads the tokens of a sequence; allowed: cp 1"
    yield is_sampled, lambda: f"{what}: expert_load = sampled is drawn for whole sequences; allowed: expected"
    total = sum(slices) if slices else seq_len
    yield total != seq_len, lambda: f"{what}: {total} tokens in all; allowed: the sequence's {seq_len}"
    shared = f"{what}: sequence parallelism shares rows over tp = {rows_over}; allowed: multiples of {rows_over}"
    for size in slices or ():
        yield size % rows_over != 0, lambda: shared


def runs_slices(schedule: str, slices: tuple[int, ...] | None) -> bool:
    """Whether sequences go through the pipeline in slices of tokens, which may not be chosen yet."""
    named = SCHEDULES.get(schedule)
    return bool(slices) or (named is not None and named.runs_slices)


def may_be_sliced(problem: Question, schedule: str) -> bool:
    """Whether sequences of the problem may pass through a pipeline in token slices."""
    base = problem.base
    target = Workload(problem.graph, problem.training, problem.cluster.world_size, 1)
    refusals = slices_refusals(
        target,
        schedule=schedule,
        slices=base.pipeline.slices,
        cp=base.mesh.cp,
        rows_over=base.mesh.tp if base.tensor_parallel.sequence_parallel else 1,
        is_sampled=has_sampled_loads(base.experts, base.mesh.ep),
    )
    return bool(select_kept(refusals))


def schedules_to_try(problem: Question) -> list[str]:
    """The schedules to search; the usual one comes first and stands for all if nothing is pipelined."""
    asked = problem.constraints.schedules
    kinds = ("by default", "when named") if asked else ("by default",)
    searched = [each.name for each in SCHEDULES.values() if each.searched in kinds]
    return sorted((name for name in searched if name in (asked or searched)), key=default_schedule().__ne__)


def select_two_ended(rows: Columns) -> Flags:
    """Rows whose microbatches enter at both ends of the pipeline."""
    return rows.one_of("schedule", *HALF_SCHEDULES)


def list_sliced_schedules(rows: Columns) -> list[str]:
    """The schedules of the rows' domain that run token slices."""
    return [name for name in map(str, rows.domain["schedule"]) if producer_of(name).runs_slices]


def _schedule_fits(rows: Columns) -> Flags:
    """Rows whose schedule is allowed and distinct.

    One schedule stands for all if nothing is pipelined, and for those without split backwards if there is a single
    microbatch.
    """
    pp, m = rows["pp"], rows["microbatches"]
    names = rows.domain["schedule"]
    single = [at for at, name in enumerate(names) if producer_of(name).chunks == 1 and name not in HALF_SCHEDULES]
    first = np.isin(rows.code["schedule"], single[:1])
    alike = [names[at] for at in single if not (producer_of(names[at]).splits or producer_of(names[at]).runs_slices)]
    plain = (pp == 1) | ((m == 1) & rows.one_of("schedule", *alike))
    legal = select_all(rows)
    for name in names:
        legal &= ~rows.one_of("schedule", name) | producer_of(name).allows(pp, m)
    kept = np.where(plain, first, legal)
    for name in list_sliced_schedules(rows):
        may = (rows["cp"] == 1) & may_be_sliced(rows.problem, name)
        kept &= ~rows.one_of("schedule", name) | may
    return np.asarray(kept)


def _chunks_fit(rows: Columns) -> Flags:
    """Rows with several chunks only if the schedule has them and layers spread evenly over them, or nearly so."""
    layers, stages, vpp = len(rows.problem.graph.layers), rows["stages"], rows["vpp"]
    even = (layers % stages == 0) | ((layers + 2) % stages == 0) | (vpp <= 4)
    right = np.zeros(rows.count, dtype=bool)
    for name in map(str, rows.domain["schedule"]):
        each = producer_of(name)
        right |= rows.one_of("schedule", name) & ((vpp > 1) & even if each.any_chunks else vpp == each.chunks)
    short = stages * rows["microbatches"] <= MAX_PASSES
    return np.asarray(right & short & (stages <= layers + 2) & ((rows["pp"] > 1) | (vpp == 1)))


def _other_schedules(plan: Plan, _: Workload) -> Iterable[str]:
    """All schedules but the plan's and those that no search tries; none for stages without order of their own."""
    if plan.mesh.pp == 1 or plan.schedule == CUSTOM:
        return ()
    return (name for name, each in SCHEDULES.items() if name != plan.schedule and each.searched != "never")


def _with_its_chunks(plan: Plan, schedule: str) -> tuple[Change]:
    """A schedule with the chunks that it has by default, if these are others than the plan's."""
    chunks = natural_vpp(schedule)
    return ({"schedule": schedule} if chunks == plan.pipeline.vpp else {"schedule": schedule, "vpp": chunks},)


def _other_chunks(plan: Plan, _: Workload) -> Iterable[int]:
    """Twice and half the chunks, with a schedule of any number of them above 1."""
    vpp = plan.pipeline.vpp
    if plan.mesh.pp == 1 or plan.schedule == CUSTOM or not producer_of(plan.schedule).any_chunks:
        return ()
    return (2 * vpp, vpp // 2) if vpp >= 4 else (2 * vpp,)


def _with_their_schedule(plan: Plan, vpp: int) -> tuple[Change]:
    """A number of chunks; the usual schedules without and with chunks stand for each other."""
    usual = default_schedule(chunks=vpp)
    if plan.schedule in (usual, CUSTOM) or plan.schedule not in DEFAULT_SCHEDULES:
        return ({"vpp": vpp},)
    return ({"vpp": vpp, "schedule": usual},)


def _evened(plan: Plan, facts: Workload) -> Iterator[tuple[int, ...]]:
    """Layers of stages of which the first and the last have one less, for embedding and head, if they have not."""
    stages, layers = plan.mesh.pp * plan.pipeline.vpp, len(facts.graph.layers)
    if plan.mesh.pp == 1 or plan.schedule == CUSTOM or layers + 2 < 2 * stages:
        return
    first, *middle, last = spread_layers(layers + 2, stages)
    if (evened := (first - 1, *middle, last - 1)) != (plan.pipeline.layers or spread_layers(layers, stages)):
        yield evened


DEFAULT_SCHEDULES = (default_schedule(), default_schedule(chunks=2))
"""The usual schedule with one chunk per rank, which takes any number of microbatches, and that with several."""
PLAIN = tuple(
    each.name
    for each in SCHEDULES.values()
    if each.searched == "by default" and each.chunks == 1 and not (each.splits or each.usual)
)
"""Other schedules of whole passes with one chunk per rank, which most frameworks have."""
CHOICES = in_section(
    "pipeline",
    Choice(
        "schedule",
        is_exported=True,
        is_column=True,
        synonyms=("pipeline_schedule", "pipeline_parallel_schedule"),
        flag=Flag(str, "Pipeline schedule (simpar list schedules)"),
        reopens=("layers",),
        read=lambda plan: plan.schedule,  # the usual one where a plan names none
        measured="a name of `simpar list schedules`, or 1F1B of as many chunks as vpp says",
        axis=Axis(
            make_effects(MEMORY, SHAPE, OPS, KERNELS, TABLE),
            schedules_to_try,
            _schedule_fits,
            after="micro_batch",
            possible=lambda _: list(SCHEDULES),
            untuned=lambda _: (default_schedule(),),
        ),
        moves=Moves(
            _other_schedules,
            around=DEFAULT_SCHEDULES,
            menu=lambda plan, _: SCHEDULES if plan.mesh.pp > 1 else (),
            change=_with_its_chunks,
            room=lambda plan: (
                {"schedule": DEFAULT_SCHEDULES[0], "vpp": 1}
                if (plan.schedule, plan.pipeline.vpp) != (DEFAULT_SCHEDULES[0], 1)
                else {}
            ),
            replacements=lambda _: (
                {"schedule": None, "actions": None, "pass_costs": None},
                *({"schedule": name} for name in PLAIN),
            ),
            after="recompute",
            led_by="pp",
        ),
    ),
    Choice(
        "vpp",
        is_exported=True,
        is_column=True,
        synonyms=("virtual_pipeline_parallel_size", "virtual_pipeline_model_parallel_size"),
        flag=Flag(int, "Model chunks per pipeline rank"),
        reopens=("layers",),
        measured="model chunks of a pipeline rank",
        any_degree=True,
        axis=Axis(
            make_effects(MEMORY, SHAPE, OPS, TABLE),
            lambda problem: range(1, (len(problem.graph.layers) + 2) // 2 + 1),
            _chunks_fit,
            after="schedule",
            omits="chunks above 4 that do not divide the layers, with or without embedding and head, evenly",
            untuned=lambda _: (1,),
        ),
        moves=Moves(
            _other_chunks,
            size=Size(lambda plan, facts: min((len(facts.graph.layers) + 2) // plan.mesh.pp, MAX_CHUNKS)),
            change=_with_their_schedule,
            after="schedule",
            led_by="schedule",
        ),
    ),
    Choice(
        "layers",
        is_exported=True,
        made_for=(LAYOUT, JOB),
        moves=Moves(
            _evened, replacements=replace_with("layers", None), after="bucket_bytes", led_by="pp", for_measured=True
        ),
    ),
    Choice("actions", is_exported=True, is_held=False, made_for=(LAYOUT,)),
    Choice("slices", is_held=False),
    Choice("pass_costs", is_exported=True, made_for=(JOB,)),
    Choice("encoder_in_bubbles"),
)
