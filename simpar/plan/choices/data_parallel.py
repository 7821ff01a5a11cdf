"""Choices of data parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, WithJsonSchema, field_serializer, field_validator, model_validator

from simpar import files
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    AMONG,
    MEMORY,
    OPS,
    REPLICAS,
    TRAFFIC,
    Axis,
    Change,
    Choice,
    Columns,
    Flag,
    Moves,
    OptionalAxis,
    Question,
    Rules,
    divisors,
    has_value,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.experts import KEEPS_EXPERTS
from simpar.plan.choices.pipeline import select_two_ended
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Workload
from simpar.plan.stages import StagePlan
from simpar.plan.sync import SCHEMES, is_independent, problem, replicas_are_independent
from simpar.stacks.stack import Stack
from simpar.units import MIB, Bytes, Count, Counts, Flags

if TYPE_CHECKING:
    from simpar.plan.plan import Plan

BucketSize = Annotated[Bytes, Field(gt=0), WithJsonSchema({"type": "string", "examples": ["25 MiB"]})]

ALL_AT_ONCE = float(2**50)
"""Bytes of a bucket that nothing fills."""
MAKES_ZERO_3_DIFFER = ("offload", "reshard", "sync")
"""First parts of the names of optional axes that make ZeRO-3 differ from ZeRO-2 in any pipeline."""


class DataParallel(Section):
    """Data parallelism. What is None is decided by the software stack.

    ``zero`` 1 shards optimizer states, 2 also gradients, 3 also parameters. With 2 and 3 gradients are reduced after
    every microbatch, unless the stack does so once a step in pipelines or once for microbatches that a chunk runs in
    turn; with ``defer_grad_reduce`` whole ones wait for the last microbatch, which reduces them beside its backward.
    Parameters are gathered for every microbatch with 3 where they are resharded after forward.
    """

    kind: Literal["ddp", "fsdp", "single_process"] | None = None
    zero: Literal[0, 1, 2, 3] = 0
    hsdp: Count = Field(default=1, description="replicas of the sharded states")
    bucket_bytes: BucketSize | None = None
    first_bucket_bytes: BucketSize | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    reshard_after_forward: bool | None = None
    defer_grad_reduce: bool | None = None
    sync: str = Field(default="bsp", description="how replicas cooperate: bsp, ssp, asp, local-sgd or diloco")
    sync_every: Count | None = Field(default=None, description="local steps between averages (local-sgd, diloco)")
    staleness: int | None = Field(default=None, ge=0, description="clocks a replica may run ahead (ssp)")
    servers: Count | None = Field(default=None, description="parameter servers (bsp, ssp, asp)")

    @field_validator("sync")
    @classmethod
    def _known_scheme(cls, name: str) -> str:
        if name not in SCHEMES:
            raise ValueError(f"is not a scheme{files.suggest(name, SCHEMES)}{files.allowed(SCHEMES)}")
        return name

    @model_validator(mode="after")
    def _scheme_takes(self) -> DataParallel:
        if (words := problem(self)) is not None:
            raise ValueError(words)
        return self

    @property
    def reshards(self) -> bool:
        """Whether gathered parameters are freed after the forward pass: under ZeRO-3 alone; below it they are whole."""
        return self.zero == 3 and bool(self.reshard_after_forward)

    @field_serializer("bucket_bytes", "first_bucket_bytes")
    def _with_unit(self, size: float | None) -> str | None:
        return None if size is None else f"{int(size) if size == int(size) else size} B"


@dataclass(frozen=True, kw_only=True)
class DecidedData:
    """Data parallelism; with ``first_bucket_bytes`` None the first bucket is as large as the others."""

    kind: Literal["ddp", "fsdp", "single_process"] = "ddp"
    zero: Counts = 0
    hsdp: Counts = 1
    bucket_bytes: float = 25.0 * MIB
    first_bucket_bytes: float | None = None
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    reshard_after_forward: bool | Flags = False
    defer_grad_reduce: bool = False
    sync: str = "bsp"
    sync_every: int | None = None
    staleness: int | None = None
    servers: int | None = None

    @property
    def replicas_are_independent(self) -> bool:
        """Whether replicas step on their own and meet between steps, instead of reducing gradients inside each."""
        return is_independent(self.sync, self.servers)


def by_stack(
    stack: Stack,
    *,
    kind: str | None,
    zero: int,
    pp: int,
    stages: tuple[StagePlan, ...] | None,
    overlap_grad_reduce: bool | None,
) -> dict[str, Any]:
    """What a stack decides of data parallelism.

    Buckets are gathered beside passes only where they are reduced beside them [Megatron-LM, ``arguments.py``:
    --overlap-param-gather needs --overlap-grad-reduce]. Trainers keep whole gradients of FSDP until the last of several
    microbatches [Accelerate, ``Accelerator.no_sync``; NeMo Automodel, ``defer_fsdp_grad_sync``].
    """
    at_once = zero == 1 and not stack.overlap.grad_reduce_zero1
    kind = kind or ("fsdp" if stack.shards(zero) else "ddp")
    once = bool(stack.once_a_step(kind == "fsdp", max(pp, len(stages or ())) > 1))
    return {
        "kind": kind,
        "bucket_bytes": ALL_AT_ONCE if at_once else stack.buckets.bucket,
        "first_bucket_bytes": stack.buckets.first or None,
        "overlap_grad_reduce": stack.overlap.grad_reduce and not at_once and not once,
        "overlap_param_gather": stack.overlap.param_gather and overlap_grad_reduce is not False,
        "reshard_after_forward": zero == 3 and not once,
        "defer_grad_reduce": stack.overlap.waits_for_last,
    }


def shares(rows: Columns) -> Flags:
    """Rows in which several ranks have the same parameters: model replicas, or expert replicas among tensor ranks."""
    return np.asarray((rows["width"] > 1) | (rows["copies"] > 1))


def gathers(rows: Columns) -> Flags:
    """Rows in which ranks hold shards of the parameters they update."""
    return np.asarray((rows["zero"] > 0) & (np.maximum(rows["width"], rows["copies"]) > rows["hsdp"]))


def fully_sharded(rows: Columns) -> Flags:
    """Rows in which data parallelism works block by block (FSDP) instead of on flat buckets."""
    kind = rows.problem.base.data_parallel.kind
    return rows.problem.stack.shards(rows["zero"]) if kind is None else np.full(rows.count, kind == "fsdp")


def _zero_fits(rows: Columns) -> Flags:
    """Rows with one ZeRO stage if no rank shares parameters; FSDP shards at least gradients."""
    fsdp = rows.problem.base.data_parallel.kind == "fsdp"
    least = 2 if fsdp else 0
    alone = (rows.code["zero"] == 0) | (shares(rows) & (rows["zero"] >= max(least, 1)))
    return np.asarray(np.where(rows["width"] > 1, rows["zero"] >= least, alone))


def _replicas_fit(rows: Columns) -> Flags:
    """Rows with replicas of fully sharded states; as many replicas as sharding ranks would shard nothing."""
    width, hsdp = rows["width"], rows["hsdp"]
    legal = (width % hsdp == 0) & (width // hsdp > 1) & (rows["zero"] == 3)
    if rows.problem.graph.is_mixture:
        legal &= rows["copies"] % hsdp == 0
    return np.asarray(np.where(hsdp == 1, ~_repeats_stage_two(rows), legal))


def _repeats_stage_two(rows: Columns) -> Flags:
    """Rows where ZeRO-3 equals ZeRO-2: pipelines that gather parameters once a step keep them either way.

    Not if something was asked for that tells the two apart, nor with frozen weights, which ZeRO-3 alone shards.
    """
    problem, base = rows.problem, rows.problem.base
    none = np.zeros(rows.count, dtype=bool)
    if not problem.stack.overlap.once_in_pipelines or 2 not in rows.domain["zero"]:
        return none
    if base.data_parallel.kind is None and problem.stack.data_parallel != "fsdp":
        return none
    asked = any(name.startswith(MAKES_ZERO_3_DIFFER) for name in problem.constraints.fixed)
    differs = (
        base.offload.is_used or base.data_parallel.reshard_after_forward is not None or replicas_are_independent(base)
    )
    if asked or differs or problem.export_target is not None or _has_frozen(problem):
        return none
    return np.asarray(fully_sharded(rows) & (rows["zero"] == 3) & (rows["pp"] > 1))


def _has_frozen(problem: Question) -> bool:
    operators = (op for block in problem.graph.blocks.values() for op in block.operators)
    return any(not weight.trainable for op in operators for weight in op.weights)


def _reduce_overlap_fits(rows: Columns) -> Flags:
    """Rows that reduce without overlap where whole gradients are kept until the last backward, or asked for in turn.

    Under ZeRO-2 and 3 few stacks keep whole ones; others reduce bucket by bucket between kernels, which gains nothing.
    """
    problem = rows.problem
    kept = (rows["zero"] < 2) | problem.stack.once_a_step(fully_sharded(rows), rows["is_pipelined"])
    if "overlap_grad_reduce" in problem.constraints.fixed:
        kept |= problem.stack.reduces_in_turn(rows["zero"])
    first = rows.code["overlap_grad_reduce"] == 0  # stands for both values if nothing is reduced
    return np.asarray(rows["overlap_grad_reduce"] | (kept & (shares(rows) | first)))


def _may_defer(rows: Columns) -> Flags:
    """Rows in which sharded gradients of several microbatches are reduced more than once a step unless they wait."""
    once = rows.problem.stack.once_a_step(fully_sharded(rows), rows["is_pipelined"])
    return np.asarray((rows["zero"] >= 2) & shares(rows) & (rows["microbatches"] > 1) & ~once)


def _gather_overlap_fits(rows: Columns) -> Flags:
    """Rows that gather parameters late only where whole ones are gathered once a step."""
    return np.asarray((rows.code["overlap_param_gather"] == 0) | (gathers(rows) & ~fully_sharded(rows)))


def scheme_takes(rows: Columns, what: str, never: Any = None) -> Flags:
    """Rows whose synchronisation scheme has a period, a bound or servers (``what``)."""
    return has_value(rows, "sync", *(name for name, one in SCHEMES.items() if getattr(one, what) != never))


def step_apart(rows: Columns) -> Flags:
    """Rows whose replicas step on their own and exchange parameters."""
    return np.asarray(~has_value(rows, "sync", "bsp") | ~has_value(rows, "servers", None))


def _enters_at_one_end(rows: Columns) -> Flags:
    """Rows whose replicas step together, or whose microbatches enter at one end of the pipeline."""
    asked = np.zeros(rows.count, dtype=bool)
    for name, together in (("sync", "bsp"), ("servers", None)):
        asked |= ~rows.one_of(name, together) if name in rows.domain else False
    return np.asarray(~(asked & select_two_ended(rows)))


def _other_stages(plan: Plan, _: Workload) -> Iterator[int]:
    """ZeRO stages other than the plan's, if replicas exchange anything that may be sharded."""
    if plan.mesh.replicas > 1 and plan.data_parallel.kind != "single_process":
        yield from (stage for stage in ZERO_STAGES if stage != plan.data_parallel.zero)


def _closest_stages(plan: Plan) -> Iterator[Change]:
    """Other ZeRO stages by their distance, the higher one first."""
    now = plan.data_parallel.zero
    others = (stage for stage in ZERO_STAGES if stage != now)
    yield from ({"zero": stage} for stage in sorted(others, key=lambda stage: (abs(stage - now), -stage)))


def _other_buckets(plan: Plan, _: Workload) -> Iterator[int]:
    """Four times and a quarter of the bytes of a bucket, if flat buckets are reduced."""
    data = plan.data_parallel
    if plan.mesh.replicas > 1 and data.bucket_bytes is not None and data.kind == "ddp":
        yield from (round(4 * data.bucket_bytes), round(data.bucket_bytes / 4))


def _reduce_each(plan: Plan, target: Workload) -> Iterator[bool]:
    """False, if whole gradients wait for the last of several microbatches."""
    data, replicas = plan.data_parallel, plan.mesh.replicas
    several = target.training.global_batch > (plan.mesh.dp or 1) * plan.micro_batch
    if replicas > 1 and several and data.zero >= 2 and data.defer_grad_reduce:
        yield False


def _gather_early(plan: Plan, _: Workload) -> Iterator[bool]:
    data = plan.data_parallel
    if plan.mesh.replicas > 1 and data.overlap_param_gather is False and data.zero > 0:
        yield True


ZERO_STAGES = (0, 1, 2, 3)
KEEPS_STATES = Rules(
    ("data", "offload", "optimizer"),
    reads=(
        "tp", "cp", "pp", "ep", "zero", "hsdp", "optimizer", "sync", "servers", "offload_optimizer", "offload_ratio",
        "offload_gradients", "offload_delayed", "offload_parameters", "offload_activations",
    ),
)  # fmt: skip
"""The rules about states that ranks share, update and offload."""
STATES, SENT = make_effects(MEMORY, REPLICAS, AMONG), make_effects(REPLICAS)
CHOICES = in_section(
    "data_parallel",
    Choice(
        "kind", by_stack=True, is_exported=True, moves=Moves(replacements=replace_with("kind", None), led_by="zero")
    ),
    Choice(
        "zero",
        is_exported=True,
        is_column=True,
        synonyms=("zero_stage",),
        flag=Flag(int, "ZeRO stage: 0, 1, 2 or 3"),
        reopens=("kind", "reshard_after_forward", "offload_gradients"),
        axis=Axis(
            STATES | {OPS, TRAFFIC},
            lambda _: ZERO_STAGES,
            _zero_fits,
            after="vpp",
            omits="ZeRO stages above 0 where no rank shares its parameters (single ranks of FSDP gather all the same)",
        ),
        moves=Moves(
            _other_stages,
            around=ZERO_STAGES,
            menu=lambda *_: ZERO_STAGES,
            replacements=_closest_stages,
            saves=lambda stage: stage,
            after="vpp",
        ),
    ),
    Choice(
        "hsdp",
        is_exported=True,
        is_column=True,
        synonyms=("data_parallel_replicate_degree",),
        flag=Flag(int, "Number of replicas of the sharded states (HSDP)"),
        any_degree=True,
        axis=Axis(
            STATES | {TRAFFIC},
            lambda problem: divisors(problem.cluster.world_size),
            _replicas_fit,
            after="zero",
            omits="replicas (hsdp) of states under ZeRO-1 and 2, and under ZeRO-3 as many of them as ranks (unsharded)",
            untuned=lambda _: (1,),
        ),
        moves=Moves(replacements=replace_with("hsdp", 1)),
    ),
    Choice(
        "bucket_bytes",
        by_stack=True,
        is_exported=True,
        axis=OptionalAxis(
            SENT, lambda rows: shares(rows) & ~fully_sharded(rows), label=None, is_decided=True, after="recompute_early"
        ),
        moves=Moves(
            _other_buckets,
            replacements=replace_with("bucket_bytes", None),
            after="overlap_param_gather",
            for_measured=True,
        ),
    ),
    Choice(
        "first_bucket_bytes",
        by_stack=True,
        is_exported=True,
        moves=Moves(replacements=replace_with("first_bucket_bytes", None)),
    ),
    Choice(
        "overlap_grad_reduce",
        by_stack=True,
        is_exported=True,
        axis=Axis(
            SENT,
            lambda _: (True, False),
            _reduce_overlap_fits,
            after="tp_overlap",
            omits="gradient reduction without overlap (overlap_grad_reduce False) under ZeRO-2 and 3 where stacks "
            "reduce at once",
            untuned=lambda _: (True,),
        ),
        moves=Moves(
            lambda plan, _: (
                (True,) if plan.mesh.replicas > 1 and plan.data_parallel.overlap_grad_reduce is False else ()
            ),
            around=(True, False),
            replacements=replace_with("overlap_grad_reduce", None),
            after="sequence_parallel",
            led_by="zero",
            for_measured=True,
        ),
    ),
    Choice(
        "overlap_param_gather",
        by_stack=True,
        is_exported=True,
        axis=Axis(
            SENT, lambda _: (True, False), _gather_overlap_fits, after="overlap_grad_reduce", untuned=lambda _: (True,)
        ),
        moves=Moves(
            _gather_early,
            around=(True, False),
            replacements=replace_with("overlap_param_gather", None),
            after="overlap_grad_reduce",
            led_by="zero",
            for_measured=True,
        ),
    ),
    Choice(
        "reshard_after_forward",
        by_stack=True,
        is_exported=True,
        axis=OptionalAxis(
            STATES,
            lambda rows: (rows["zero"] == 3) & fully_sharded(rows),
            label=None,
            is_decided=True,
            after="gather_dtype",
        ),
        moves=Moves(replacements=replace_with("reshard_after_forward", None), led_by="zero"),
    ),
    Choice(
        "defer_grad_reduce",
        by_stack=True,
        axis=OptionalAxis(
            make_effects(MEMORY, REPLICAS, TRAFFIC),
            _may_defer,
            label=None,
            is_decided=True,
            after="reshard_after_forward",
        ),
        moves=Moves(
            _reduce_each,
            replacements=replace_with("defer_grad_reduce", None, False),
            around=(False,),
            saves=lambda waits: not waits,
            after="overlap_param_gather",
            led_by="zero",
        ),
    ),
    Choice(
        "sync",
        flag=Flag(str, "How replicas cooperate: bsp, ssp, asp, local-sgd or diloco"),
        axis=OptionalAxis(
            STATES, legal=_enters_at_one_end, rules=(KEEPS_STATES, KEEPS_EXPERTS), label="{}", after="token_dispatch"
        ),
    ),
    Choice(
        "sync_every",
        axis=OptionalAxis(
            SENT,
            lambda rows: scheme_takes(rows, "sync_every"),
            label="every {} steps",
            companions={"sync": "local-sgd"},
            after="sync",
        ),
    ),
    Choice(
        "staleness",
        axis=OptionalAxis(
            SENT, lambda rows: scheme_takes(rows, "staleness"), companions={"sync": "ssp"}, after="sync_every"
        ),
    ),
    Choice(
        "servers",
        axis=OptionalAxis(
            STATES,
            lambda rows: scheme_takes(rows, "servers", "no"),
            _enters_at_one_end,
            rules=(KEEPS_STATES, KEEPS_EXPERTS),
            label="{} servers",
            companions={"sync": "asp"},
            after="staleness",
        ),
    ),
)
