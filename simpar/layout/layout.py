"""The Layout: a plan with everything decided, as numbers or as columns of many layouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.layout.mirrored import MirroredMesh, whole_schedule_of
from simpar.plan.choices import CHOICES, path_of
from simpar.plan.choices.context_parallel import DecidedContext
from simpar.plan.choices.data_parallel import DecidedData
from simpar.plan.choices.execution import DecidedExecution
from simpar.plan.choices.experts import DecidedExperts
from simpar.plan.choices.memory import DecidedMemory
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.choices.offload import DecidedOffload
from simpar.plan.choices.pipeline import DecidedPipeline
from simpar.plan.choices.tensor_parallel import DecidedTensor
from simpar.plan.choices.tuning import DecidedTuning
from simpar.plan.mesh import AXES, Mesh, MeshSizes
from simpar.plan.plan import Plan, Record
from simpar.plan.routing import has_sampled_loads
from simpar.plan.schedules import HALF_SCHEDULES, natural_vpp
from simpar.plan.stage_layers import spread_layers
from simpar.stacks.stack import Stack
from simpar.units import Counts, number


@dataclass(frozen=True, kw_only=True)
class Layout(
    MeshSizes, DecidedPipeline, DecidedData, DecidedTensor, DecidedContext, DecidedExperts, DecidedMemory,
    DecidedOffload, DecidedTuning, DecidedNumerics, DecidedExecution,
):  # fmt: skip
    """How a step is split, with everything decided: what costs and Programs read. Fields are named as choices are.

    Sizes (degrees of the mesh, vpp, micro_batch, zero, hsdp, sequence_parallel) are numbers or, for many layouts at
    once, arrays that broadcast; what is derived from them here is an array then, too. ``record`` is what the plan was
    made for.
    """

    order: tuple[str, ...] = AXES
    micro_batch: Counts = 1
    record: Record = field(default_factory=Record)

    @staticmethod
    def of(plan: Plan, choices: Mapping[str, Any] | None = None) -> Layout:
        """The layout of a plan and of the values of its choices, by name; by default those that it states.

        What is left open has the default of its field.
        """
        values = stated_choices(plan) if choices is None else choices
        record = Record.model_construct(**{name: getattr(plan, name) for name in Record.model_fields})
        return Layout(**{name: value for name, value in values.items() if value is not None}, record=record)

    def to_plan(self) -> Plan:
        """The plan that states all of it: of the whole pipeline where microbatches enter at both ends."""
        whole = unfold_two_ended(self)
        sections: dict[str, Any] = {"pipeline": {"stages": whole.stages}}
        for name, (section, key) in _PATHS.items():
            (sections.setdefault(section, {}) if section else sections)[key] = getattr(whole, name)
        return Plan(**{name: getattr(self.record, name) for name in Record.model_fields}, **sections)

    @property
    def shards(self) -> Counts:
        """Ranks that share one copy of the sharded states."""
        return self._if_sharded(self.width // self.hsdp, 1)

    @property
    def expert_shards(self) -> Counts:
        """Ranks that share one copy of an expert's sharded states: fewer, because other ranks hold other experts."""
        return self._if_sharded(np.maximum(self.expert_copies // self.hsdp, 1), 1)

    @property
    def encoder_width(self) -> Counts:
        """Ranks that sum gradients of an encoder in the bubbles, which every pipeline rank holds."""
        return self.width * self.pp

    @property
    def encoder_shards(self) -> Counts:
        """Ranks that share one copy of the sharded states of an encoder in the bubbles."""
        return self._if_sharded(self.encoder_width, 1)

    @property
    def replicas(self) -> Counts:
        """Copies of the model's states: data-parallel ranks, or with ZeRO the shard groups that ``hsdp`` counts."""
        return self._if_sharded(self.hsdp, self.dp)

    def _if_sharded(self, sharded: Counts, whole: Counts) -> Counts:
        chosen: Counts = number(np.where(np.asarray(self.zero) > 0, sharded, whole))
        return chosen

    @property
    def ulysses_ranks(self) -> Counts:
        """Context ranks that exchange heads for tokens."""
        return self.ulysses or (self.cp if self.cp_method == "ulysses" else 1)

    @property
    def has_sampled_loads(self) -> bool:
        """Whether expert ranks have loads of their own, drawn from the seed."""
        return has_sampled_loads(self, self.ep)

    def per_pipeline_rank(self, count: float) -> float:
        """What a pipeline rank has on average of ``count`` things that the model has."""
        return count / int(self.pp)

    def num_microbatches(self, global_batch: int) -> int:
        """Microbatches that a pipeline runs in one step: global batch / (dp x micro-batch)."""
        return global_batch // int(self.dp * self.micro_batch)

    def stage_layers(self, num_layers: int) -> tuple[int, ...]:
        """Transformer layers of every virtual stage, in model order; embedding and head come on top.

        An encoder in the bubbles belongs to none of them.
        """
        return self.layers or spread_layers(num_layers - self.encoder_layers, int(self.pp * self.vpp))

    @cached_property
    def mesh(self) -> Mesh:
        """The ranks, their coordinates and groups; of one layout, not of columns."""
        sizes: dict[str, Any] = {axis: int(getattr(self, axis)) for axis in (*AXES, "ep")}
        made = MirroredMesh if self.mirrored else Mesh
        return made(**sizes, etp=int(self.expert_tensor_parallel), order=self.order)

    def with_columns(self, columns: Mapping[str, Any]) -> Layout:
        """Many layouts that differ in some sizes: arrays by name, which broadcast."""
        return replace(self, **columns)

    def on_mesh(self, mesh: Mesh) -> Layout:
        """The layout with the degrees and the order of ranks of a mesh."""
        sizes = {axis: getattr(mesh, axis) for axis in (*AXES, "ep", "etp")}
        return replace(self, **sizes, order=mesh.order)


def fold_two_ended(layout: Layout) -> Layout:
    """The layout as it is costed and lowered: of half the pipeline for schedules with two ends, else unchanged."""
    half_is = HALF_SCHEDULES.get(layout.schedule)
    if half_is is None:
        return layout
    vpp = natural_vpp(half_is)
    return replace(layout, schedule=half_is, vpp=vpp, dp=2 * layout.dp, pp=layout.pp // 2, mirrored=True)


def unfold_two_ended(layout: Layout) -> Layout:
    """The inverse of :func:`fold_two_ended`."""
    if not layout.mirrored:
        return layout
    name = whole_schedule_of(layout.schedule)
    return replace(layout, schedule=name, vpp=natural_vpp(name), dp=layout.dp // 2, pp=2 * layout.pp, mirrored=False)


def stated_choices(plan: Plan, names: Collection[str] | None = None) -> dict[str, Any]:
    """What a plan states, by the name of the choice: None for what it leaves open, but the schedule that follows.

    With ``names``, of these choices (and the schedule and stages) alone.
    """
    parts = {section: getattr(plan, section) if section else plan for section in _SECTIONS}
    paths = _PATHS if names is None else {name: _PATHS[name] for name in names if name in _PATHS}
    values = {name: getattr(parts[section], key) for name, (section, key) in paths.items()}
    return values | {"schedule": plan.schedule, "stages": plan.pipeline.stages}


def apply_execution_choices(stack: Stack, chosen: Plan | Layout) -> Stack:
    """The stack that executes a step as a plan chose: its policies, with those of the plan in their place."""
    for choice in CHOICES:
        if choice.in_stack is not None and (value := getattr(chosen, choice.name)) is not None:
            stack = choice.in_stack(stack, value)
    return stack


def stack_for_layout(stack: Stack, layout: Layout) -> Stack:
    """The stack under a layout, as it chose to execute a step.

    FSDP hands every gradient to its reduction, so no GEMM accumulates into a sum. GEMMs still accumulate where the
    stack reduces by runs, and where dp and cp are 1, so that nothing is reduced. And it gathers frozen weights in the
    dtype of products, which need not narrow them.
    """
    stack = apply_execution_choices(stack, layout)
    update: dict[str, bool] = {}
    if layout.kind == "fsdp" and layout.frozen_dtype == "fp32":
        update["gathers_narrow"] = True
    sums = layout.width == 1 or stack.overlap.reduce_runs
    if layout.kind == "fsdp" and stack.numerics.gradient_accumulation_fusion and not sums:
        update["gradient_accumulation_fusion"] = False
    return stack.model_copy(update={"numerics": stack.numerics.model_copy(update=update)}) if update else stack


_DERIVED = ("record", "mirrored", "stages", "encoder_layers", "encoder_costs")
_PATHS = {each.name: path_of(each.name) for each in fields(Layout) if each.name not in _DERIVED}
"""Section and field in a plan of every choice."""
_SECTIONS = tuple(dict.fromkeys(section for section, _ in _PATHS.values()))
