"""Builds what :mod:`simpar.program.lower` needs of stages with meshes of their own: templates, tails, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simpar.cost.memory import StaticMemory, Term, parameter_widths
from simpar.cost.memory.static import buffer_terms, copies_term, weight_terms
from simpar.cost.moving import PeakMemory
from simpar.cost.operators import optimizer_time_s
from simpar.cost.peak import most_in_flight, unreleased
from simpar.cost.sharded import local_weights
from simpar.models.graph import Block, is_row_parallel
from simpar.plan.placement import SHARDED, Role
from simpar.plan.stages import StagePlan, stage_blocks
from simpar.program.phases import COMPUTE, CollectiveUse, Phase
from simpar.program.rank_view import Job
from simpar.program.segments import Segment, make_segment
from simpar.program.stage_memory import Weights, activations, block_weights, gathered_stream_bytes, num_shards
from simpar.program.stage_templates import (
    Hooks,
    StageUnit,
    gather_node,
    reduce_node,
    stage_backward,
    stage_forward,
)
from simpar.program.stage_view import BlockView, StageView
from simpar.program.stages import EMBEDDING_LAYER, PASSES, Pricing
from simpar.program.steps import BlockSteps, steps_of
from simpar.program.templates import GATHER, REDUCE, Node, Template, Unit
from simpar.units import DTYPE_BYTES, to_ns

Axes = tuple[int, ...]


@dataclass(frozen=True)
class StagedBuilder:
    """All stages of a job. ``rank_of_stage`` is the schedule's; every rank has one stage here."""

    job: Job
    late_s: float = 0.0

    def first_layer(self, _stage: int) -> int:
        """Where the layers are counted from that templates of a stage name: from the first of all."""
        return 0

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stages of the plan."""
        return self.job.plan.pipeline.stages or ()

    @cached_property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """Blocks of every stage in order."""
        return stage_blocks(self.stages, self.job.graph)

    @cached_property
    def _parts(self) -> dict[tuple[int, int], StagePart]:
        return {}

    def part(self, index: int, device: int = 0) -> StagePart:
        """One stage on the device of an index; embedding and head that meet in a stage hold a tied table once."""
        if (index, device) not in self._parts:
            begin = sum(stage.layers for stage in self.stages[:index])
            late_s = self.late_s * self.stages[index].num_devices
            view = StageView(self.job.on(device), self.stages[index], index, late_s)
            first = EMBEDDING_LAYER if index == 0 else begin
            self._parts[index, device] = StagePart(view, self.blocks[index], first)
        return self._parts[index, device]

    def static_memory(self, stage: int) -> StaticMemory:
        """Bytes that a rank of a stage holds between steps."""
        return self.part(stage).static_memory()

    def peak_memory(self, stage: int) -> PeakMemory:
        """Static bytes and what the allocator needs to know; the moving part is the Program's."""
        static, job = self.static_memory(stage), self.job
        several = job.plan.num_microbatches(job.training.global_batch) > 1
        flying = most_in_flight(job.plan, job.training, stage)
        held = unreleased(len(self.stages), flying, job.stack) * flying * self.part(stage).partial_sums_bytes
        return PeakMemory(static.resident_bytes, 0.0, 0.0, held, several)

    def num_communicators(self, stage: int) -> int:
        """Kinds of groups that a rank of a stage communicates in."""
        return len(self.part(stage).groups) + (len(self.stages) > 1)


@dataclass(frozen=True)
class StagePart:
    """One stage: templates of its actions, the tail of its step, its weights."""

    view: StageView
    blocks: tuple[Block, ...]
    first_layer: int

    @cached_property
    def _views(self) -> dict[str, BlockView]:
        return {block.name: self.view.block(block) for block in self.blocks}

    @cached_property
    def steps(self) -> dict[str, BlockSteps]:
        """Phases of every kind of block."""
        return {name: steps_of(view, recompute=self._recompute(name)) for name, view in self._views.items()}

    def _recompute(self, name: str) -> str:
        graph = self.view.job.graph
        ends = (graph.embedding.name, graph.head.name)
        return "none" if name in ends else self.view.stage.recompute

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights of every kind of block; a tied output projection is free beside the embedding."""
        found = {name: block_weights(view) for name, view in self._views.items()}
        graph = self.view.job.graph
        ends = (graph.embedding.name, graph.head.name)
        if graph.tied_embeddings and all(name in found for name in ends):
            head, table = self._views[ends[1]], found[ends[0]].kept
            projection = head.block.operator("lm_head")
            axes = head.axes(projection, "batch", "sequence")
            if axes in table and axes in found[ends[1]].kept:
                shared = float(local_weights(projection, head.dims, head.by(projection))[0])
                found[ends[1]] = found[ends[1]].without(axes, min(shared, table[axes]))
        return found

    @cached_property
    def _units(self) -> dict[str, StageUnit]:
        return {name: self._unit(view) for name, view in self._views.items()}

    def _unit(self, view: BlockView) -> StageUnit:
        held = activations(view, self._recompute(view.block.name))
        weights, sync = self.weights[view.block.name], Sync(self.view.job)
        gathered = sum(weights.gathered.values())
        unit = Unit(
            layer=0,
            name=view.block.name,
            saved_bytes=float(held.saved_bytes),
            recomputed_bytes=float(held.recomputed_bytes),
            forward_workspace_bytes=float(held.forward_workspace_bytes),
            backward_workspace_bytes=float(held.backward_workspace_bytes),
        )
        return StageUnit(
            unit,
            gathered_bytes=gathered * sync.parameter_bytes,
            gathers=self._by_group(weights.gathered, sync.parameter_bytes),
            refreshes=self._by_group(weights.kept, sync.parameter_bytes),
            reduces=self._by_group(weights.kept, sync.gradient_bytes),
            scatters=self._by_group(weights.gathered, sync.gradient_bytes),
        )

    def _by_group(self, table: Mapping[Axes, float], width: float) -> dict[str, float]:
        """Bytes by process group; parameters that one rank has to itself move nowhere."""
        return {self.view.group(axes, "dp"): count * width for axes, count in table.items() if axes}

    @cached_property
    def units(self) -> list[StageUnit]:
        """One entry a block, numbered by its place in the model."""
        numbered = enumerate(self.blocks, start=self.first_layer)
        return [
            replace(self._units[block.name], unit=replace(self._units[block.name].unit, layer=layer))
            for layer, block in numbered
        ]

    @cached_property
    def groups(self) -> dict[str, tuple[Axes, tuple[str, ...]]]:
        """Process groups of the stage by name: their axes and the collectives that they run."""
        found: dict[str, tuple[Axes, tuple[str, ...]]] = {}

        def note(group: str, axes: Axes, *ops: str) -> None:
            known = found.get(group, (axes, ()))[1]
            found[group] = (axes, tuple(dict.fromkeys([*known, *ops])))

        for steps in self.steps.values():
            for kind in PASSES.values():
                for step in getattr(steps, kind).steps:
                    if step.collective is not None:
                        axis = int(step.collective.group.rpartition("_")[2])
                        note(step.collective.group, (axis,), step.collective.op)
        for axis in self._gathered_axes():
            note(self.view.group((axis,)), (axis,), "all_gather")
        for weights in self.weights.values():
            for axes in (*weights.kept, *weights.gathered):
                if axes:
                    reduce_op = Sync(self.view.job).reduce_op
                    note(self.view.group(axes, "dp"), axes, "reduce_scatter", "all_gather", reduce_op)
        return found

    def _gathered_axes(self) -> list[int]:
        """Axes on which pieces that arrive from a neighbouring stage are put together."""
        view, last = self.view, len(self.view.job.plan.pipeline.stages or ()) - 1
        ends = [(self.blocks[0], "input")] * (view.index > 0) + [(self.blocks[-1], "output")] * (
            view.index < last
        )
        states = [view.stage.sharding[block.name].stream(which) for block, which in ends]
        return [
            axis
            for axis, size in enumerate(view.mesh)
            if size > 1 and any(each[axis] not in SHARDED for each in states)
        ]

    def templates(self, pricing: Pricing) -> dict[tuple[str, bool], Template]:
        """Templates by (action letter, whether it is the first forward or the last backward)."""
        sync = Sync(self.view.job)
        table: dict[tuple[str, bool], Template] = {}
        for letter, kind in PASSES.items():
            for boundary in (False, True):
                hooks = sync.hooks(kind, boundary=boundary)
                segments = [self._segment(unit, kind, hooks, pricing) for unit in self.units]
                if kind == "forward":
                    table[letter, boundary] = stage_forward(self.units, segments, hooks)
                else:
                    table[letter, boundary] = stage_backward(kind, self.units, segments, hooks)
        return table

    def _segment(self, unit: StageUnit, kind: str, hooks: Hooks, pricing: Pricing) -> Segment:
        phase: Phase = getattr(self.steps[unit.unit.name], kind)
        slowdown = pricing.slowdown * self.view.job.stack.launch.kernel_overhead
        slowdown *= pricing.contention(phase, _moved(unit, hooks))
        key = (unit.unit.name, self.view.stage.recompute, kind, slowdown)
        if key not in pricing.segments:
            pricing.segments[key] = make_segment(phase, pricing.price, slowdown=slowdown)
        return pricing.segments[key]

    def tail(self) -> tuple[Node, ...]:
        """What follows the last backward: late reductions, the update, late gathers."""
        sync = Sync(self.view.job)
        reduces: dict[str, float] = {}
        refreshes: dict[str, float] = {}
        for unit in self.units:
            for table, sizes in ((reduces, unit.reduces), (refreshes, unit.refreshes)):
                for group, size in sizes.items():
                    table[group] = table.get(group, 0.0) + size
        late = (
            reduce_node(sync.in_buckets(group, size), streams=(COMPUTE, REDUCE))
            for group, size in (reduces.items() if not sync.overlaps_reduce else ())
        )
        again = (
            gather_node(CollectiveUse(group, "all_gather", size), streams=(COMPUTE, GATHER))
            for group, size in (refreshes.items() if not sync.overlaps_gather else ())
        )
        return (*late, self._optimizer(), *again)

    def _optimizer(self) -> Node:
        job = self.view.job
        owned = self._count(lambda axes, count: count / num_shards(axes, self.view.mesh), every=True)
        seconds = optimizer_time_s(owned, job.plan.numerics, job.kernels, job.stack)
        return Node(
            kind="optimizer",
            name="optimizer",
            streams=(COMPUTE, GATHER, REDUCE),
            duration_ns=int(to_ns(seconds)),
        )

    def _count(self, of: Callable[[Axes, float], float], *, every: bool) -> float:
        """Sum over the stage's blocks of a function of (axes, parameters); ``every`` counts gathered ones, too."""
        total = 0.0
        for block in self.blocks:
            weights = self.weights[block.name]
            tables = (weights.kept, weights.gathered) if every else (weights.kept,)
            total += sum(of(axes, count) for table in tables for axes, count in table.items())
        return total

    @property
    def partial_sums_bytes(self) -> float:
        """Outputs of row-parallel products of all layers on one rank, for one microbatch."""
        total = 0.0
        for block in self.blocks:
            view, layer = self._views[block.name], block.name in self.view.job.graph.blocks
            for op in block.operators if layer else ():
                if is_row_parallel(op) and view.axes(op, "row"):
                    local = view.local(op)
                    total += float(local.rows) * float(local.columns) * self.view.compute_bytes
        return total

    def _placeholder_bytes(self) -> float:
        """One empty weight gradient of each shape, see :mod:`simpar.cost.memory.placeholders`."""
        stack, graph = self.view.job.stack, self.view.job.graph
        if not (stack.memory.transformer_engine and stack.numerics.gradient_accumulation_fusion):
            return 0.0
        shapes = {}
        for name, view in self._views.items():
            for op in view.block.operators if name in graph.layers else ():
                if op.kind == "matmul":
                    by = {key: np.array(size) for key, size in view.by(op).items()}
                    shapes[op.name] = float(local_weights(op, view.dims, by)[0])
        return DTYPE_BYTES["bf16"] * sum(shapes.values())

    def static_memory(self) -> StaticMemory:
        """Parameters, gradients, states: whole where kept, in slices where gathered, states always in slices."""
        job = self.view.job
        owned = self._count(lambda axes, count: count / num_shards(axes, self.view.mesh), every=True)
        kept = self._count(lambda _, count: count, every=False)
        shared = self._count(lambda axes, count: count / num_shards(axes, self.view.mesh), every=False)
        held = kept + owned - shared
        weights = weight_terms(
            job.plan,
            job.stack,
            stored=held,
            gradients=held,
            states_bytes=owned * parameter_widths(job.plan, job.stack).states,
            buckets=self._count(lambda axes, count: count if axes else 0.0, every=False),
        )
        copied = self._count(
            lambda axes, count: count + count / num_shards(axes, self.view.mesh) if axes else 0.0,
            every=False,
        )
        rows = max(gathered_stream_bytes(view) for view in self._views.values())
        placeholders = Term("transient", "empty weight gradients", self._placeholder_bytes())
        copies = copies_term(job.plan, job.stack, copied)
        return StaticMemory((*weights, copies, *buffer_terms(job.stack, rows), placeholders))


@dataclass(frozen=True)
class Sync:
    """How the job's plan and stack keep weights of shared stages in step."""

    job: Job

    @property
    def parameter_bytes(self) -> float:
        """Bytes per parameter that a gather moves."""
        return DTYPE_BYTES["fp32" if self.job.plan.numerics.precision == "fp32" else "bf16"]

    @property
    def gradient_bytes(self) -> float:
        """Bytes per parameter that a reduction moves."""
        numerics = self.job.plan.numerics
        return DTYPE_BYTES[self.job.stack.numerics.reduce_dtype if numerics.precision != "fp32" else "fp32"]

    @property
    def reduce_op(self) -> str:
        """The collective that reduces gradients of whole parameters."""
        return "all_reduce" if self.job.stack.overlap.all_reduce_zero1 else "reduce_scatter"

    def in_buckets(self, group: str, size_bytes: float) -> CollectiveUse:
        """The reduction of all gradients of a group, bucket after bucket."""
        count = max(1, round(size_bytes / float(self.job.plan.data_parallel.bucket_bytes or size_bytes)))
        return CollectiveUse(group, self.reduce_op, size_bytes / count, count)

    @property
    def overlaps_reduce(self) -> bool:
        """Whether gradients are reduced beside the last backward."""
        return bool(self.job.plan.data_parallel.overlap_grad_reduce)

    @property
    def overlaps_gather(self) -> bool:
        """Whether updated parameters are gathered beside the first forward."""
        return bool(self.job.plan.data_parallel.overlap_param_gather)

    def hooks(self, kind: str, *, boundary: bool) -> Hooks:
        """Hooks of one pass; ``boundary`` is the first microbatch of a forward, the last of a backward."""
        data = self.job.plan.data_parallel
        backward = kind in ("backward", "weight_gradient")
        return Hooks(
            refresh=kind == "forward" and boundary and self.overlaps_gather,
            reduce=backward and boundary and self.overlaps_reduce,
            reduce_op=self.reduce_op,
            bucket_bytes=float(data.bucket_bytes or 0),
            first_bucket_bytes=float(data.first_bucket_bytes or 0),
        )


def _moved(unit: StageUnit, hooks: Hooks) -> list[CollectiveUse]:
    """The block's own weight collectives in a pass."""
    gathered = {**unit.gathers, **(unit.refreshes if hooks.refresh else {})}
    reduced = unit.reduces if hooks.reduce else {}
    moved = [CollectiveUse(group, "all_gather", size) for group, size in gathered.items()]
    return moved + [CollectiveUse(group, hooks.reduce_op, size) for group, size in reduced.items()]


def roles_in_words(roles: Mapping[str, tuple[Role, ...]]) -> dict[str, tuple[str, ...]]:
    """Roles of operators by name, as a plan writes them."""
    return {name: tuple(role.name for role in each) for name, each in roles.items()}
