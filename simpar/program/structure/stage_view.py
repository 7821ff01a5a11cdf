"""What one rank of a stage with a mesh of its own sees and holds: states of tensors and changes, sizes, activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.operators import OperatorTime
from simpar.cost.sharded import (
    LocalOperator,
    local_operator,
    local_time,
    local_weights,
    shared_keys_elements,
    sliced,
    tensor_elements,
)
from simpar.models.flops import shape_dims
from simpar.models.graph import INPUT, Block, Dims, Operator
from simpar.plan.placement import Role, States, sharding
from simpar.plan.sharding import RankDims, context_dims
from simpar.plan.slices import divisors, sized_names
from simpar.plan.stages import MEMORY, BlockSharding, StagePlan
from simpar.program.blocks.block_view import BlockView, loss_sums
from simpar.program.blocks.changes import Change, Flow, changes
from simpar.program.blocks.phases import TENSOR, CollectiveUse, Step, StepList
from simpar.program.blocks.rank_view import Job
from simpar.units import DTYPE_BYTES, handed_dtype

Axes = tuple[int, ...]


def axes_group(axes: tuple[int, ...], kind: str = TENSOR) -> str:
    """Name of the process groups along some axes of a stage."""
    return f"{kind}_{''.join(str(axis) for axis in axes)}"


@dataclass(frozen=True)
class StageView:
    """One stage of a job: its mesh, and how often a host is held up by each collective (``late_s``)."""

    job: Job
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
        precision = self.job.plan.numerics.precision
        return DTYPE_BYTES[handed_dtype(precision)]

    def dims(self, block: Block) -> Dims:
        """Global dims of a block with the shape of one microbatch."""
        job = self.job
        shape = shape_dims(job.graph, job.training.seq_len, batch=job.plan.micro_batch)
        return block.view({**shape, **context_dims(job.plan.context_parallel, 1)})

    def block(self, block: Block) -> StageBlock:
        """The block under its roles on this stage."""
        sharding, roles = self.stage.sharding[block.name], self.stage.roles(block)
        return StageBlock(self.job, block, self.late_s, self, sharding, roles)


@dataclass(frozen=True)
class StageBlock(BlockView):
    """One block on one stage."""

    stage: StageView
    sharding: BlockSharding
    roles: Mapping[str, tuple[Role, ...]]

    @cached_property
    def dims(self) -> Dims:
        """Global dims with the shape of one microbatch."""
        return self.stage.dims(self.block)

    def by(self, op: Operator) -> dict[str, int]:
        """By what the sizes of an operator are divided."""
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
        """Axes on which an operator has one of some roles."""
        found = enumerate(self.roles[op.name])
        return tuple(axis for axis, role in found if role.name in names and self.stage.mesh[axis] > 1)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Changes of states inside the block and at its end."""
        outside = {INPUT: self.sharding.stream("input"), MEMORY: self.sharding.stream("memory")}
        if self.block.name == self.job.graph.embedding.name:
            del outside[INPUT]  # every rank loads the data that it needs
        ends = {self.block.operators[-1].name: self.sharding.stream("output")}
        if MEMORY in self.roles:
            ends[MEMORY] = self.sharding.stream("memory")
        flow = Flow(
            self.stage.mesh, outside, ends, lambda op, _: self.reads(op), self.writes, self._size_bytes
        )
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
        """What the loss sums over ranks that share the vocabulary."""
        axes = self.axes(op, "vocabulary") if op.kind == "loss" else ()
        return [loss_sums(self.group((axis,)), float(self.local(op).rows)) for axis in axes]

    def share_keys(self, steps: StepList, op: Operator, collective: str) -> None:
        """Keys and values (or their gradients) of a sequence that attention has in slices."""
        by = self.by(op)
        size = shared_keys_elements(op, self.dims) * self.stage.compute_bytes
        for axis in self.axes(op, "sequence"):
            others = by["batch"] * by["columns"] * by["seq"] / self.stage.mesh[axis]
            use = CollectiveUse(self.group((axis,)), collective, size / others)
            steps.add(Step.moving(f"{op.name}.keys", use))


def block_weights(view: StageBlock) -> dict[tuple[Axes, bool], float]:
    """Parameters of one rank for a block by the axes over which their gradients are summed, and whether gathered.

    Gathered ones are sharded and gathered for every pass, others stay whole. Vectors are summed over the axes that
    share out the batch only, and stay.
    """
    found: dict[tuple[Axes, bool], float] = {}
    for op in (op for op in view.block.operators if op.weights):
        matrices, vectors = (float(count) for count in local_weights(op, view.dims, view.by(op)))
        rows, batch = view.axes(op, "batch", "sequence"), view.axes(op, "batch")
        gathered = bool(rows) and op.name in view.sharding.gathered
        for key, count in (((rows, gathered), matrices), ((batch, False), vectors)):
            found[key] = found.get(key, 0.0) + count
    return {key: count for key, count in found.items() if count}


@dataclass(frozen=True)
class _StageDims(RankDims):
    """Dims of one rank, operator by operator, as activations are measured with."""

    own: Mapping[str, Dims] = field(default_factory=dict)

    def of_block(self, _block: Block) -> RankDims:
        """They are already those of the block."""
        return self

    def of(self, op: Operator) -> Dims:
        """Dims of the operator's output."""
        return self.own[op.name]


def activations(view: StageBlock, recompute: str = "none") -> BlockActivations:
    """Saved and transient bytes of one microbatch on one rank."""
    job = view.stage.job
    return block_activations(view.block, stage_dims(view), job.stack, job.plan.numerics, recompute)


def stage_dims(view: StageBlock) -> RankDims:
    """Dims of a block on one rank: of the stream between blocks, of the products inside, of every output."""
    own = {
        op.name: {**view.dims, **_rows(view, view.writes(op)), **_divided(view, op)}
        for op in view.block.operators
    }
    inner: dict[str, int] = {}
    for op in view.block.operators:
        inner |= {name: size for name, size in _divided(view, op).items() if name != "hidden"}
    product = next((op for op in view.block.operators if op.kind == "matmul"), view.block.operators[0])
    tensor = {**view.dims, **_rows(view, view.reads(product)), **inner}
    stream = {**view.dims, **_rows(view, view.sharding.stream("input"))}
    return _StageDims(tensor, stream, own=own)


def _rows(view: StageBlock, states: States) -> dict[str, int]:
    """Batch and sequence of a tensor in some states on one rank."""
    shares = {"B": 1, "S": 1}
    for state, size in zip(states, view.stage.mesh, strict=True):
        if state in shares:
            shares[state] *= size
    batch, seq = view.dims["batch"] // shares["B"], view.dims["seq"] // shares["S"]
    return {"batch": max(int(batch), 1), "seq": max(int(seq), 1)}


def _divided(view: StageBlock, op: Operator) -> dict[str, int]:
    """Column dims of an operator that its roles divide."""
    by = view.by(op)["columns"]
    if by == 1:
        return {}
    local = view.local(op)
    found = {}
    for name in sized_names(op.columns):
        if name in ("heads", "kv_heads"):
            found[name] = int(local.dims[name])
        elif name:
            found[name] = int(sliced(name, int(view.dims[name]), by))
    return found


def gathered_stream_bytes(view: StageBlock) -> float:
    """Bytes of the stream in front of a block with whole sequences, 0 where it is not kept in slices of them."""
    states = view.sharding.stream("input")
    if "S" not in states:
        return 0.0
    shares = int(sharding(["B" if state == "B" else "R" for state in states], view.stage.mesh))
    whole = float(view.dims["batch"] * view.dims["seq"] * view.dims["hidden"])
    return whole / shares * view.stage.compute_bytes
