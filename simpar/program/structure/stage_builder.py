"""Builds what :mod:`simpar.program.lower` needs of a stage in roles of its own: templates, tails, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from simpar.cost.activations import BlockActivations
from simpar.cost.memory.static import StaticMemory, Term, buffer_terms, flat_shard, weight_terms
from simpar.cost.memory.widths import parameter_widths
from simpar.cost.sharded import local_weights
from simpar.models.graph import Block, Operator, is_row_parallel
from simpar.plan.placement import SHARDED
from simpar.program.blocks.rank_view import Job
from simpar.program.blocks.steps import BlockSteps, steps_of
from simpar.program.structure.stage_view import (
    Axes,
    StageBlock,
    StageView,
    activations,
    axes_group,
    block_weights,
    gathered_stream_bytes,
)
from simpar.program.structure.stages import PASSES, ActionBuilder, Piece
from simpar.program.structure.synchronisation import DENSE, GATHERED, Replicas, Synchronisation
from simpar.units import DTYPE_BYTES

OWN = "own"
"""Kind of replicas of parameters that one rank has to itself."""


@dataclass(frozen=True)
class RolesBuilder(ActionBuilder):
    """One stage whose operators have roles of their own on its mesh."""

    job: Job
    view: StageView
    rank_of_stage: tuple[int, ...]

    @staticmethod
    def of(
        job: Job, index: int, rank_of_stage: tuple[int, ...], late_per_member_s: float = 0.0
    ) -> RolesBuilder:
        """That of one stage of a job's plan; every member of a stage holds up a host for so long."""
        stage = (job.plan.pipeline.stages or ())[index]
        view = StageView(job, stage, index, late_per_member_s * stage.num_devices)
        return RolesBuilder(job, view, rank_of_stage)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks in order."""
        return tuple(piece.block for piece in self.pieces[self.view.index])

    @cached_property
    def sync(self) -> Synchronisation:  # type: ignore[override]
        """Who shares its parameters: ranks along the axes over which gradients are summed."""
        found: dict[str, Replicas] = {}
        for axes, gathered in sorted(self._held_by, key=lambda key: not key[1]):
            kind, size = self._kind(axes, gathered), prod(self.view.mesh[axis] for axis in axes)
            usual = Replicas.of(kind, size, self.job.plan)
            found[kind] = Replicas(kind, size, size, 3, gathered=True) if gathered else usual
        return Synchronisation(self.job, tuple(found.values()) or (Replicas(OWN, 1, 1, 0),))

    @staticmethod
    def _kind(axes: Axes, gathered: bool = False) -> str:
        """Kind of replicas of parameters; those that one rank has to itself move nowhere."""
        return (axes_group(axes, DENSE) if axes else OWN) + GATHERED * gathered

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
            for key, count in self._weights[block.name].items():
                found[self._kind(*key)] += count
        return found

    @cached_property
    def _weights(self) -> dict[str, dict[tuple[Axes, bool], float]]:
        """Weights of every kind of block, a tied table twice."""
        return {name: block_weights(view) for name, view in self._views.items()}

    @property
    def _held_by(self) -> list[tuple[Axes, bool]]:
        """Over which axes gradients are summed, and whether of parameters that are gathered."""
        return list(dict.fromkeys(key for weights in self._weights.values() for key in weights))

    @cached_property
    def tied(self) -> tuple[str, float]:
        """Kind and parameters on one rank of a table that embedding and head share and keep among the same ranks."""
        graph = self.job.graph
        ends = (graph.embedding.name, graph.head.name)
        if not (graph.tied_embeddings and all(name in self._views for name in ends)):
            return OWN, 0.0
        view, projection = self._views[ends[1]], graph.head.operator("lm_head")
        key = (view.axes(projection, "batch", "sequence"), False)
        if not all(key in self._weights[name] for name in ends):
            return OWN, 0.0
        return self._kind(*key), min(self._matrix(view, projection), self._weights[ends[0]][key])

    @staticmethod
    def _matrix(view: StageBlock, op: Operator) -> float:
        """Elements of an operator's matrix or table on one rank."""
        return float(local_weights(op, view.dims, view.by(op))[0])

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
            note(axes_group((axis,)), (axis,), "all_gather")
        for axes, _ in self._held_by:
            if axes:
                note(axes_group(axes, DENSE), axes, "reduce_scatter", "all_gather")
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

    def _partial_sums_bytes(self, _pipeline_rank: int) -> float:
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
                    shapes[op.name] = self._matrix(view, op)
        return DTYPE_BYTES["bf16"] * sum(shapes.values())

    def on(self, device: int) -> RolesBuilder:
        """The same on the device of that index among those of the cluster."""
        view = replace(self.view, job=self.job.on(device))
        return replace(self, job=view.job, view=view)

    @property
    def table_elements(self) -> float:
        """Parameters on one rank of the table that embedding and head share."""
        graph = self.job.graph
        tables = ((graph.embedding.name, graph.embedding.operators[0].name), (graph.head.name, "lm_head"))
        views = ((self._views[name], op) for name, op in tables if name in self._views)
        return max(self._matrix(view, view.block.operator(op)) for view, op in views)

    @property
    def num_communicators(self) -> int:
        """Kinds of groups that a rank communicates in."""
        return len(self.groups) + (len(self.rank_of_stage) > 1)

    def static_memory(self, pipeline_rank: int) -> StaticMemory:
        """Parameters, gradients, states: whole or in slices as the plan's ZeRO stage has them, gathered ones sliced."""
        job, late = self.job, not self.job.plan.data_parallel.overlap_grad_reduce
        held, count = self.held_parameters(pipeline_rank), defaultdict[str, float](float)
        for each in self.sync.replicas:
            whole = held[each.kind]
            shard, several = float(flat_shard(whole, each.shards)), each.width > 1 and not each.gathered
            count["stored"] += shard if each.gathered else whole
            count["gradients"] += shard if each.gathered or (each.zero >= 2 and not late) else whole
            count["states"] += shard if each.zero else whole
            count["buckets"] += whole if several else 0.0
            count["copied"] += whole + shard if several and each.zero else 0.0
        rows = max(gathered_stream_bytes(view) for view in self._views.values())
        weights = weight_terms(
            job.plan,
            job.stack,
            stored=count["stored"],
            gradients=count["gradients"],
            states_bytes=count["states"] * parameter_widths(job.plan, job.stack).states,
            buckets=count["buckets"],
        )
        buffers = buffer_terms(job.plan, job.stack, copied=count["copied"], rows_bytes=rows)
        placeholders = Term("transient", "empty weight gradients", self._placeholder_bytes())
        return StaticMemory((*weights, *buffers, placeholders))
