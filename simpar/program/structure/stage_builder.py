"""One stage whose operators have roles of their own: what its ranks see and hold, and its action templates.

A view of a rank gives states of tensors and changes between them, sizes and activations. The builder makes templates,
the step's tail and the memory account from it, as :mod:`simpar.program.lower` needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod

from simpar.architectures.flops import shape_dims
from simpar.architectures.graph import INPUT, Block, Dims, Operator, evaluate, is_row_parallel
from simpar.cost.activations import BlockActivations, activation_bytes, block_activations
from simpar.cost.memory.outputs import kept_terms
from simpar.cost.memory.quantized import NarrowWeights, layout_bytes, with_quantized
from simpar.cost.memory.static import buffer_terms, cast_term, flat_shard, is_cast, update_term, weight_terms
from simpar.cost.memory.terms import UPDATE, StaticMemory, Term
from simpar.cost.memory.widths import parameter_widths
from simpar.cost.products import OperatorTime
from simpar.cost.sharded import (
    LocalOperator,
    local_operator,
    local_time,
    local_weights,
    shared_keys_elements,
    slice_size,
    tensor_elements,
)
from simpar.dataclass import dataclass
from simpar.layout.sharding import RankDims, context_dims
from simpar.plan.placement import SHARDED, Role, States, count_slices
from simpar.plan.slices import divisors, names_divided_by_slices
from simpar.plan.stages import MEMORY, BlockSharding, StagePlan
from simpar.program.blocks.block_view import BlockView, loss_sums
from simpar.program.blocks.changes import Change, Flow, changes
from simpar.program.blocks.phases import TENSOR, BlockStep, CollectiveUse, StepList
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.job import TrainingJob
from simpar.program.structure.pieces import StageBlock
from simpar.program.structure.stages import PASSES, ActionBuilder
from simpar.program.structure.synchronisation import DENSE, GATHERED, ReplicaRanks, Synchronisation
from simpar.units import DTYPE_BYTES

OWN_GROUP = "own"
"""Kind of replicas of parameters that only one rank holds."""
Axes = tuple[int, ...]


def axes_group(axes: tuple[int, ...], kind: str = TENSOR) -> str:
    """Name of the process groups along some axes of a stage."""
    return f"{kind}_{''.join(str(axis) for axis in axes)}"


@dataclass(frozen=True)
class StageView:
    """One stage of a job: its mesh, and the seconds for which each collective holds up a host (``late_s``)."""

    job: TrainingJob
    stage: StagePlan
    index: int
    late_s: float = 0.0

    @property
    def mesh(self) -> tuple[int, ...]:
        """Sizes of the logical axes, slowest first."""
        return self.stage.mesh

    @property
    def compute_bytes(self) -> float:
        """Bytes of one activation element."""
        return self.job.layout.products.handed_bytes

    def dims(self, block: Block) -> Dims:
        """Global dims of a block with the shape of one microbatch."""
        job = self.job
        shape = shape_dims(job.graph, job.training.seq_len, batch=int(job.layout.micro_batch))
        return block.view({**shape, **context_dims(job.layout)})

    def block(self, block: Block) -> PlacedBlockView:
        """The block under its roles on this stage."""
        sharding, roles = self.stage.sharding[block.name], self.stage.roles(block)
        return PlacedBlockView(self.job, block, self.late_s, self, sharding, roles)


@dataclass(frozen=True)
class PlacedBlockView(BlockView):
    """One block on one stage."""

    stage: StageView
    sharding: BlockSharding
    roles: Mapping[str, tuple[Role, ...]]

    @cached_property
    def dims(self) -> Dims:
        """Global dims with the shape of one microbatch."""
        return self.stage.dims(self.block)

    def by(self, op: Operator) -> dict[str, int]:
        """The divisor of each size of an operator, by name as in :func:`simpar.plan.slices.divisors`."""
        table = divisors([self.roles[op.name]], self.stage.mesh)
        return {name: int(values[0]) for name, values in table.items()}

    def local(self, op: Operator) -> LocalOperator:
        """One rank's share of an operator."""
        return local_operator(op, self.dims, self.by(op))

    def reads(self, op: Operator) -> States:
        """States in which an operator needs its inputs."""
        return tuple(role.reads for role in self.roles[op.name])

    def writes(self, op: Operator) -> States:
        """States in which an operator leaves its output."""
        return tuple(role.writes for role in self.roles[op.name])

    def axes(self, op: Operator, *names: str) -> tuple[int, ...]:
        """Axes of more than one rank on which an operator has one of the roles ``names``."""
        roles = enumerate(self.roles[op.name])
        return tuple(axis for axis, role in roles if role.name in names and self.stage.mesh[axis] > 1)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Changes of states inside the block and at its end."""
        outside = {INPUT: self.sharding.stream("input"), MEMORY: self.sharding.stream("memory")}
        if self.block.name == self.job.graph.embedding.name:
            del outside[INPUT]  # every rank loads the data that it needs
        ends = {self.block.operators[-1].name: self.sharding.stream("output")}
        if MEMORY in self.roles:
            ends[MEMORY] = self.sharding.stream("memory")
        flow = Flow(self.stage.mesh, outside, ends, lambda op, _: self.reads(op), self.writes, self._size_bytes)
        return changes(self.block, flow)

    def _size_bytes(self, tensor: str, reader: Operator | None) -> float:
        return tensor_elements(self.block, tensor, reader, self.dims) * self.stage.compute_bytes

    def group(self, axes: tuple[int, ...]) -> str:
        """Name of the process groups along some axes."""
        return axes_group(axes)

    def ranks(self, axis: int) -> int:
        """Ranks along an axis."""
        return self.stage.mesh[axis]

    @cached_property
    def times(self) -> list[OperatorTime]:
        """Kernel seconds of its operators, in order."""
        job = self.stage.job
        return [local_time(self.local(op), job.kernels, job.stack) for op in self.block.operators]

    def loss_sums(self, op: Operator) -> list[CollectiveUse]:
        """The sums of the loss over ranks that share the vocabulary."""
        axes = self.axes(op, "vocabulary") if op.kind == "loss" else ()
        return [loss_sums(self.group((axis,)), float(self.local(op).rows)) for axis in axes]

    def share_keys(self, steps: StepList, op: Operator, collective: str) -> None:
        """Add the collectives of keys and values, or of their gradients, among ranks with slices of a sequence."""
        by = self.by(op)
        size = shared_keys_elements(op, self.dims) * self.stage.compute_bytes
        for axis in self.axes(op, "sequence"):
            others = by["batch"] * by["columns"] * by["seq"] / self.stage.mesh[axis]
            use = CollectiveUse(self.group((axis,)), collective, size / others)
            steps.add(BlockStep.moving(f"{op.name}.keys", use))


def block_weights(view: PlacedBlockView) -> dict[tuple[Axes, bool], float]:
    """A rank's parameters of a block by (axes over which their gradients are summed, whether they are gathered).

    Gathered parameters are sharded and gathered for every pass, others stay whole. Vectors always stay; their gradients
    are summed over the axes that divide the batch only.
    """
    weights: dict[tuple[Axes, bool], float] = {}
    for op in (op for op in view.block.operators if op.weights):
        matrices, vectors = (float(count) for count in local_weights(op, view.dims, view.by(op)))
        rows, batch = view.axes(op, "batch", "sequence"), view.axes(op, "batch")
        gathered = bool(rows) and op.name in view.sharding.gathered
        for key, count in (((rows, gathered), matrices), ((batch, False), vectors)):
            weights[key] = weights.get(key, 0.0) + count
    return {key: count for key, count in weights.items() if count}


@dataclass(frozen=True)
class _StageDims(RankDims):
    """Dims of one rank, operator by operator, in the form that :func:`block_activations` reads."""

    own: Mapping[str, Dims] = field(default_factory=dict)

    def of_block(self, _block: Block) -> RankDims:
        """The same: they are those of one block already."""
        return self

    def of(self, op: Operator) -> Dims:
        """Dims of the operator's output."""
        return self.own[op.name]


def activations(view: PlacedBlockView, recompute: str = "none") -> BlockActivations:
    """Saved and transient bytes of one block and microbatch on one rank.

    They are measured with the dims of the stream between blocks, of the products inside, and of every output.
    """
    own = {op.name: {**view.dims, **_rows(view, view.writes(op)), **_divided(view, op)} for op in view.block.operators}
    inner: dict[str, int] = {}
    for op in view.block.operators:
        inner |= {name: size for name, size in _divided(view, op).items() if name != "hidden"}
    product = next((op for op in view.block.operators if op.kind == "matmul"), view.block.operators[0])
    tensor = {**view.dims, **_rows(view, view.reads(product)), **inner, "whole_vocab": view.dims.get("vocab", 0)}
    stream = {**view.dims, **_rows(view, view.sharding.stream("input"))}
    job, dims = view.stage.job, _StageDims(tensor, stream, own=own)
    return block_activations(view.block, dims, job.stack, job.layout, recompute)


def _rows(view: PlacedBlockView, states: States) -> dict[str, int]:
    """Batch and sequence of a tensor in some states on one rank."""
    shares = {"B": 1, "S": 1}
    for state, size in zip(states, view.stage.mesh, strict=True):
        if state in shares:
            shares[state] *= size
    batch, seq = view.dims["batch"] // shares["B"], view.dims["seq"] // shares["S"]
    return {"batch": max(int(batch), 1), "seq": max(int(seq), 1)}


def _divided(view: PlacedBlockView, op: Operator) -> dict[str, int]:
    """Column dims of an operator that its roles divide."""
    by = view.by(op)["columns"]
    if by == 1:
        return {}
    local = view.local(op)
    result = {}
    for name in names_divided_by_slices(op.columns):
        if name in ("heads", "kv_heads"):
            result[name] = int(local.dims[name])
        elif name:
            result[name] = int(slice_size(name, int(view.dims[name]), by))
    return result


def gathered_stream_bytes(view: PlacedBlockView) -> float:
    """Bytes of the stream in front of a block with whole sequences; 0 where the stream is not in slices of them."""
    states = view.sharding.stream("input")
    if "S" not in states:
        return 0.0
    shares = int(count_slices(["B" if state == "B" else "R" for state in states], view.stage.mesh))
    whole = float(view.dims["batch"] * view.dims["seq"] * evaluate(view.block.stream, view.dims))
    return whole / shares * view.stage.compute_bytes


@dataclass(frozen=True)
class RolesBuilder(ActionBuilder):
    """One stage whose operators have roles of their own on its mesh."""

    view: StageView

    @staticmethod
    def of(
        job: TrainingJob, index: int, rank_of_stage: tuple[int, ...], late_per_member_s: float = 0.0
    ) -> RolesBuilder:
        """The builder of one stage of a job's plan; every member of a collective holds up the host for a time."""
        stage = (job.layout.stages or ())[index]
        view = StageView(job, stage, index, late_per_member_s * stage.num_devices)
        return RolesBuilder(view, rank_of_stage)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks in order."""
        return tuple(piece.block for piece in self.pieces[self.view.index])

    @cached_property
    def sync(self) -> Synchronisation:
        """The replicas of its parameters: ranks along the axes over which gradients are summed."""
        result: dict[str, ReplicaRanks] = {}
        for axes, gathered in sorted(self._held_by, key=lambda key: not key[1]):
            kind, size = self._kind(axes, gathered), prod(self.view.mesh[axis] for axis in axes)
            usual = ReplicaRanks.of(kind, size, self.job.layout)
            result[kind] = ReplicaRanks(kind, size, size, 3, gathered=True) if gathered else usual
        replicas = tuple(result.values()) or (ReplicaRanks(OWN_GROUP, 1, 1, 0),)
        cut = prod(self.view.mesh) // min(each.width for each in replicas)
        return Synchronisation(self.job, replicas, cut)

    @staticmethod
    def _kind(axes: Axes, gathered: bool = False) -> str:
        """Kind of replicas of parameters; OWN for those that only one rank holds, which never move."""
        return (axes_group(axes, DENSE) if axes else OWN_GROUP) + GATHERED * gathered

    @cached_property
    def _views(self) -> dict[str, PlacedBlockView]:
        distinct = {block.name: block for block in self.blocks}
        return {name: self.view.block(block) for name, block in distinct.items()}

    def _make_steps(self, piece: StageBlock) -> BlockSteps:
        return block_steps(self._views[piece.block.name], recompute=piece.recompute)

    def _activations(self, piece: StageBlock) -> BlockActivations:
        return activations(self._views[piece.block.name], piece.recompute)

    def _by_kind(self, blocks: Sequence[Block]) -> dict[str, float]:
        result = {each.kind: 0.0 for each in self.sync.replicas}
        for block in blocks:
            for key, count in self._weights[block.name].items():
                result[self._kind(*key)] += count
        return result

    @cached_property
    def _weights(self) -> dict[str, dict[tuple[Axes, bool], float]]:
        """Weights of every kind of block, a tied table twice."""
        return {name: block_weights(view) for name, view in self._views.items()}

    @property
    def _held_by(self) -> list[tuple[Axes, bool]]:
        """All pairs (axes over which gradients are summed, whether the parameters are gathered) of the stage."""
        return list(dict.fromkeys(key for weights in self._weights.values() for key in weights))

    @cached_property
    def tied(self) -> tuple[str, float]:
        """(Kind, parameters on one rank) of a table that embedding and head share and keep on the same ranks."""
        graph = self.job.graph
        ends = (graph.embedding.name, graph.head.name)
        if not (graph.tied_embeddings and all(name in self._views for name in ends)):
            return OWN_GROUP, 0.0
        view, projection = self._views[ends[1]], graph.head.operator("lm_head")
        key = (view.axes(projection, "batch", "sequence"), False)
        if not all(key in self._weights[name] for name in ends):
            return OWN_GROUP, 0.0
        return self._kind(*key), min(self._matrix(view, projection), self._weights[ends[0]][key])

    @staticmethod
    def _matrix(view: PlacedBlockView, op: Operator) -> float:
        """Elements of an operator's matrix or table on one rank."""
        return float(local_weights(op, view.dims, view.by(op))[0])

    @cached_property
    def groups(self) -> dict[str, tuple[Axes, tuple[str, ...]]]:
        """Process groups of the stage by name: their axes and the collectives that they run."""
        result: dict[str, tuple[Axes, tuple[str, ...]]] = {}

        def note(group: str, axes: Axes, *ops: str) -> None:
            axes, known = result.get(group, (axes, ()))
            result[group] = (axes, tuple(dict.fromkeys([*known, *ops])))

        distinct = {(piece.block.name, piece.recompute): piece for piece in self.pieces[self.view.index]}
        for steps in map(self.steps, distinct.values()):
            for kind in PASSES.values():
                for step in getattr(steps, kind).steps:
                    if step.collective is not None:
                        axis = int(step.collective.group.rpartition("_")[2])
                        note(step.collective.group, (axis,), step.collective.op)
        for axis in self._gathered_axes():
            note(axes_group((axis,)), (axis,), "all_gather")
        for axes, _ in self._held_by:
            if axes:
                note(axes_group(axes, DENSE), axes, "reduce_scatter", "all_gather", self.sync.late_gather_op)
        for each in self.sync.replicas:
            for group, op, _ in self.sync.reduce_ops(each):
                note(group, (), op)
        return result

    def _gathered_axes(self) -> list[int]:
        """Axes along which pieces from a neighbouring stage are gathered."""
        view, last = self.view, len(self.view.job.layout.stages or ()) - 1
        ends = [(self.blocks[0], "input")] * (view.index > 0) + [(self.blocks[-1], "output")] * (view.index < last)
        states = [view.stage.sharding[block.name].stream(which) for block, which in ends]
        return [
            axis
            for axis, size in enumerate(view.mesh)
            if size > 1 and any(each[axis] not in SHARDED for each in states)
        ]

    def _partial_sum_bytes(self, _pipeline_rank: int) -> float:
        largest = 0.0
        for block in self.blocks:
            view, layer = self._views[block.name], block.name in self.view.job.graph.blocks
            for op in block.operators if layer else ():
                if is_row_parallel(op) and view.axes(op, "row"):
                    local = view.local(op)
                    size = float(local.rows) * float(local.columns) * self.view.compute_bytes
                    largest = max(largest, size)
        return largest

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
        """Parameters, gradients and states: whole or sharded by the plan's ZeRO stage; gathered ones are sharded."""
        job = self.job
        late = self.sync.reduces_late or (self.sync.defers and job.accumulates)
        held, count = self.parameters_of_rank(pipeline_rank), defaultdict[str, float](float)
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
            job.layout,
            job.stack,
            stored=count["stored"],
            gradients=count["gradients"],
            states_bytes=count["states"] * parameter_widths(job.layout, job.stack).states,
            buckets=count["buckets"],
        )
        shares = [count["stored"] / max(sum(held.values()), 1.0)]
        weights = with_quantized(weights, [self._narrow_weights(pipeline_rank)], shares, job.layout, job.stack)
        buffers = buffer_terms(job.layout, job.stack, copied=count["copied"], rows_bytes=rows)
        placeholders = Term("transient", "empty weight gradients", self._placeholder_bytes())
        sharded = any(each.zero >= 2 and each.width > 1 for each in self.sync.replicas)
        cast = cast_term(job.layout, job.stack, self._cast_matrices(pipeline_rank), sharded=sharded)
        states, kept = count["states"], count["gradients"]
        update = update_term(job.layout, job.stack, shard=states, largest=states, gradients=kept)
        terms = (*weights, *buffers, update, cast, placeholders)
        return StaticMemory((*terms, *self._kept_outputs(pipeline_rank, terms)))

    def _kept_outputs(self, pipeline_rank: int, others: Sequence[Term]) -> tuple[Term, ...]:
        """Logits that the rank with the head keeps of a pipeline's microbatches, beside its other terms."""
        job, head = self.job, self.job.graph.head
        kept = min(job.num_microbatches, job.stack.memory.kept_outputs)
        here = head.name in (piece.block.name for piece in self.held(pipeline_rank))
        if not (kept and here and job.graph.has_vocabulary) or len(job.layout.stages or ()) < 2:
            return ()
        logits = self._views[head.name].local(head.operator("lm_head"))
        each_bytes = float(logits.rows * logits.columns) * activation_bytes(job.layout)
        return kept_terms(kept, each_bytes, sum(term.size_bytes for term in others if term.alive == UPDATE))

    def _narrow_weights(self, pipeline_rank: int) -> NarrowWeights:
        """What of these products read in 8 or 4 bits; nothing of it is frozen."""
        elements, whole, in_shard = 0.0, 0.0, 0.0
        precision, device = self.job.layout.precision, self.job.kernels.device
        for view in (self._views[piece.block.name] for piece in self.held(pipeline_rank)):
            for op in view.block.operators:
                of_all, of_shard = layout_bytes(op, precision, device)
                size = self._matrix(view, op) if of_all else 0.0
                elements, whole, in_shard = elements + size, whole + size * of_all, in_shard + size * of_shard
        return NarrowWeights(elements, whole, in_shard)

    def _cast_matrices(self, pipeline_rank: int) -> float:
        """Elements on one rank of the matrices that products of all its stages read."""
        views = [self._views[piece.block.name] for piece in self.held(pipeline_rank)]
        return sum(self._matrix(view, op) for view in views for op in view.block.operators if is_cast(op))
