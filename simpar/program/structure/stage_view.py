"""What one rank of a stage with a mesh of its own sees: states of tensors, changes between them, local sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simpar.cost.operators import OperatorTime
from simpar.cost.sharded import (
    LocalOperator,
    local_operator,
    local_time,
    shared_keys_elements,
    tensor_elements,
)
from simpar.models.flops import shape_dims
from simpar.models.graph import INPUT, Block, Dims, Operator
from simpar.plan.placement import Role, States
from simpar.plan.sharding import context_dims
from simpar.plan.slices import divisors
from simpar.plan.stages import MEMORY, BlockSharding, StagePlan
from simpar.program.blocks.block_view import BlockView, loss_sums
from simpar.program.blocks.changes import Change, Flow, changes
from simpar.program.blocks.phases import TENSOR, CollectiveUse, Step, StepList
from simpar.program.blocks.rank_view import Job
from simpar.units import DTYPE_BYTES, handed_dtype


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
