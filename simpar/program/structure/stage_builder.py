"""Builds what :mod:`simpar.program.lower` needs of stages with meshes of their own: templates, tails, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simpar.cost.activations import BlockActivations
from simpar.cost.memory import StaticMemory, Term, held_outputs_bytes, parameter_widths
from simpar.cost.memory.static import buffer_terms, copies_term, weight_terms
from simpar.cost.optimizers import Matrix
from simpar.cost.sharded import local_weights
from simpar.models.graph import Block, is_row_parallel
from simpar.plan.placement import SHARDED
from simpar.plan.stages import StagePlan, stage_blocks
from simpar.program.blocks.rank_view import Job
from simpar.program.blocks.steps import BlockSteps, steps_of
from simpar.program.structure.stage_memory import (
    Weights,
    activations,
    block_weights,
    gathered_stream_bytes,
    num_shards,
)
from simpar.program.structure.stage_view import StageBlock, StageView
from simpar.program.structure.stages import PASSES, ActionBuilder, Piece
from simpar.program.structure.synchronisation import GATHERED, Replicas, Synchronisation
from simpar.units import DTYPE_BYTES

OWN = "own"
"""Kind of replicas of parameters that one rank has to itself."""
Axes = tuple[int, ...]


@dataclass(frozen=True)
class StagedBuilder:
    """All stages of a job. ``rank_of_stage`` is the schedule's; every rank has one stage here."""

    job: Job
    late_s: float = 0.0

    def first_layer(self, stage: int) -> int:
        """The first layer of a stage; 0 without any."""
        return self.part(stage).first_layer(stage)

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
            late_s = self.late_s * self.stages[index].num_devices
            view = StageView(self.job.on(device), self.stages[index], index, late_s)
            self._parts[index, device] = StagePart(view.job, view, tuple(range(len(self.stages))))
        return self._parts[index, device]

    def static_memory(self, stage: int) -> StaticMemory:
        """Bytes that a rank of a stage holds between steps."""
        return self.part(stage).static_memory()

    def held_outputs_bytes(self, stage: int) -> float:
        """Outputs of row-parallel products that are freed but not released."""
        job, sums = self.job, self.part(stage).partial_sums_bytes
        return held_outputs_bytes(job.plan, job.training, job.stack, stage, sums)

    def num_communicators(self, stage: int) -> int:
        """Kinds of groups that a rank of a stage communicates in."""
        return len(self.part(stage).groups) + (len(self.stages) > 1)


@dataclass(frozen=True)
class StagePart(ActionBuilder):
    """One stage under roles of its own on its mesh."""

    job: Job
    view: StageView
    rank_of_stage: tuple[int, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks in order."""
        return tuple(piece.block for piece in self.pieces[self.view.index])

    @cached_property
    def sync(self) -> Synchronisation:  # type: ignore[override]
        """Who shares its parameters: ranks along the axes over which gradients are summed."""
        found: dict[str, Replicas] = {}
        for weights in self.weights.values():
            for axes in weights.gathered:
                group, size = self.view.group(axes, "dp"), num_shards(axes, self.view.mesh)
                found[group + GATHERED] = Replicas(group + GATHERED, size, size, 3, gathered=True)
        for weights in self.weights.values():
            for axes in weights.kept:
                size = num_shards(axes, self.view.mesh)
                found[self._kind(axes)] = Replicas(self._kind(axes), size, size, int(size > 1))
        return Synchronisation(self.job, tuple(found.values()) or (Replicas(OWN, 1, 1, 0),))

    def _kind(self, axes: Axes) -> str:
        """Kind of replicas of whole parameters; those that one rank has to itself move nowhere."""
        return self.view.group(axes, "dp") if axes else OWN

    @cached_property
    def _views(self) -> dict[str, StageBlock]:
        return {block.name: self.view.block(block) for block in self.blocks}

    def _make_steps(self, piece: Piece) -> BlockSteps:
        return steps_of(self._views[piece.block.name], recompute=piece.recompute)

    def _activations(self, piece: Piece) -> BlockActivations:
        return activations(self._views[piece.block.name], piece.recompute)

    def _by_kind(self, blocks: Sequence[Block]) -> dict[str, float]:
        found = {each.kind: 0.0 for each in self.sync.replicas}
        for block in blocks:
            weights = self._whole[block.name]
            for axes, count in weights.kept.items():
                found[self._kind(axes)] += count
            for axes, count in weights.gathered.items():
                found[self.view.group(axes, "dp") + GATHERED] += count
        return found

    def _frozen(self, _block: Block) -> dict[str, float]:
        return {}

    def matrices(self, _pipeline_rank: int) -> tuple[Matrix, ...]:
        """None: optimizers that work on whole matrices are refused."""
        return ()

    @cached_property
    def _whole(self) -> dict[str, Weights]:
        """Weights of every kind of block, a tied table twice."""
        return {name: block_weights(view) for name, view in self._views.items()}

    @cached_property
    def tied(self) -> tuple[str, float]:
        """Kind and parameters on one rank of a table that embedding and head share and keep among the same ranks."""
        axes, count = self._tied
        return self._kind(axes), count

    @cached_property
    def _tied(self) -> tuple[Axes, float]:
        graph = self.job.graph
        ends = (graph.embedding.name, graph.head.name)
        if not (graph.tied_embeddings and all(name in self._views for name in ends)):
            return (), 0.0
        table, head = (self._whole[name].kept for name in ends)
        view = self._views[ends[1]]
        projection = view.block.operator("lm_head")
        axes = view.axes(projection, "batch", "sequence")
        if axes not in table or axes not in head:
            return (), 0.0
        shared = float(local_weights(projection, view.dims, view.by(projection))[0])
        return axes, min(shared, table[axes])

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights of every kind of block; a tied output projection is free beside the embedding."""
        found, (axes, shared), head = dict(self._whole), self._tied, self.job.graph.head.name
        if shared:
            found[head] = found[head].without(axes, shared)
        return found

    @cached_property
    def groups(self) -> dict[str, tuple[Axes, tuple[str, ...]]]:
        """Process groups of the stage by name: their axes and the collectives that they run."""
        found: dict[str, tuple[Axes, tuple[str, ...]]] = {}

        def note(group: str, axes: Axes, *ops: str) -> None:
            axes, known = found.get(group, (axes, ()))
            found[group] = (axes, tuple(dict.fromkeys([*known, *ops])))

        for steps in (self.steps(piece) for piece in self.pieces[self.view.index]):
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
                    note(self.view.group(axes, "dp"), axes, "reduce_scatter", "all_gather")
        for each in self.sync.replicas:
            for group, op, _ in self.sync.reduce_ops(each):
                note(group, (), op)
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
        """One empty weight gradient of each shape, see :func:`simpar.cost.memory.static.placeholder_bytes`."""
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
