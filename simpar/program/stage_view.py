"""What one rank of a stage with a mesh of its own sees: states of tensors, changes between them, local sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from simpar.cost.graphs import issue_s
from simpar.cost.sharded import (
    LocalOperator,
    Machine,
    divisors,
    local_operator,
    output_elements,
)
from simpar.models.flops import shape_dims
from simpar.models.graph import INPUT, Block, Dims, Operator, evaluate
from simpar.plan.placement import Role, States, Transfer, transfers
from simpar.plan.sharding import context_dims
from simpar.plan.stages import MEMORY, BlockSharding, StagePlan
from simpar.program.rank_view import Job
from simpar.units import DTYPE_BYTES, handed_dtype


@dataclass(frozen=True)
class Change:
    """A tensor that one operator wrote in some states and others read in other states; bytes of the whole tensor.

    ``reader`` is the first operator that needs it so, "" behind the last one. ``sums_gradient``: its backward sums
    gradients that the readers left as summands, beside the reader's weight gradient.
    """

    tensor: str
    reader: str
    states: States
    size_bytes: float
    forward: tuple[Transfer, ...]
    backward: tuple[Transfer, ...]

    @property
    def sums_gradient(self) -> bool:
        """Whether readers leave the gradient as summands."""
        return "X" in self.states


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

    def group(self, axes: tuple[int, ...], kind: str = "tp") -> str:
        """Name of the process groups along some axes of this stage."""
        return f"{kind}_{self.index}_{''.join(str(axis) for axis in axes)}"

    def issue_s(self, block: Block, kernels: Iterable[float], collectives: int) -> float:
        """Seconds the host needs to launch each operator's kernels in a block and collectives."""
        return issue_s(self.job.stack.launch, block, kernels, collectives, self.late_s)

    def dims(self, block: Block) -> Dims:
        """Global dims of a block with the shape of one microbatch."""
        job = self.job
        shape = shape_dims(job.graph, job.training.seq_len, batch=job.plan.micro_batch)
        return block.view({**shape, **context_dims(job.plan.context_parallel, 1)})

    def block(self, block: Block) -> BlockView:
        """The block under its roles on this stage."""
        return BlockView(self, block, self.stage.sharding[block.name], self.stage.roles(block))


@dataclass(frozen=True)
class BlockView:
    """One block on one stage."""

    stage: StageView
    block: Block
    sharding: BlockSharding
    roles: Mapping[str, tuple[Role, ...]]

    @cached_property
    def dims(self) -> Dims:
        """Global dims with the shape of one microbatch."""
        return self.stage.dims(self.block)

    @property
    def machine(self) -> Machine:
        """What prices the kernels."""
        return Machine(self.stage.job.kernels, self.stage.job.stack)

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
        """Changes of states inside the block and at its end, in the order of their first readers.

        A tensor is changed once for all that read it in the same states.
        """
        written: dict[str, States] = {
            INPUT: self.sharding.stream("input"), MEMORY: self.sharding.stream("memory"),
        }  # fmt: skip
        found: dict[tuple[str, States], Change] = {}
        for op in self.block.operators:
            for name in self._tensors_read(op):
                self._note(found, written, name, op)
            written[op.name] = self.writes(op)
        ends = {self.block.operators[-1].name: self.sharding.stream("output")}
        if MEMORY in (op.name for op in self.block.operators):
            ends[MEMORY] = self.sharding.stream("memory")
        for name, states in ends.items():
            key = (name, states)
            if states and states != written[name] and key not in found:
                size = output_elements(self.block.operator(name), self.dims)
                found[key] = self._change(name, "", (written[name], states), size)
        return tuple(found.values())

    def _tensors_read(self, op: Operator) -> tuple[str, ...]:
        """Inputs that are tensors of the model: data is loaded by every rank as it needs it."""
        data = self.block.name == self.stage.job.graph.embedding.name
        inputs = op.inputs if op.kind != "embedding" else ()
        return tuple(name for name in inputs if not (data and name == INPUT))

    def _note(
        self,
        found: dict[tuple[str, States], Change],
        written: Mapping[str, States],
        name: str,
        op: Operator,
    ) -> None:
        needed = self.reads(op)
        if written[name] == needed or (name, needed) in found:
            return
        found[name, needed] = self._change(name, op.name, (written[name], needed), self.elements(name, op))

    def elements(self, name: str, reader: Operator) -> float:
        """Elements of the whole tensor of that name: an output, or what a reader takes from outside the block."""
        for op in self.block.operators:
            if op.name == name:
                return output_elements(op, self.dims)
        width = reader.contraction or reader.columns
        return float(evaluate(reader.rows, self.dims)) * float(evaluate(width, self.dims))

    def _change(self, tensor: str, reader: str, states: tuple[States, States], elements: float) -> Change:
        pair = transfers(*states, self.stage.mesh)
        assert pair is not None, f"{self.block.name}.{tensor}: no way from {states[0]} to {states[1]}"
        size = elements * self.stage.compute_bytes
        return Change(tensor, reader, states[1], size, *pair)

    def changes_by(self, attribute: str) -> dict[str, tuple[Change, ...]]:
        """Changes grouped by "tensor" or by "reader", in order."""
        ordered = sorted(self.changes, key=lambda change: str(getattr(change, attribute)))
        return {
            name: tuple(group) for name, group in groupby(ordered, key=lambda each: getattr(each, attribute))
        }
