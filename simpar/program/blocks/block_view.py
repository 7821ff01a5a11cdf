"""One block on one rank, as the walk through its operators sees it (:mod:`simpar.program.blocks.steps`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from simpar.cost.operators import OperatorTime
from simpar.models.graph import INPUT, Block, Operator, is_row_parallel
from simpar.plan.placement import States
from simpar.plan.stages import MEMORY
from simpar.program.blocks import context
from simpar.program.blocks.changes import Change, Flow, changes
from simpar.program.blocks.experts import Exchange
from simpar.program.blocks.phases import COMPUTE, TENSOR, CollectiveUse, Step, StepList
from simpar.program.blocks.rank_view import Job, RankView
from simpar.units import DTYPE_BYTES

LOSS_SUMS = 3
"""Vocabulary-parallel cross entropy sums three fp32 numbers a row: maximum, target logit, denominator."""


class BlockView(Protocol):
    """What is asked of a block on a rank: states of its tensors, kernel times, and what operators run of their own."""

    @property
    def block(self) -> Block:
        """The block."""

    @property
    def job(self) -> Job:
        """The job on the rank's device."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Where its tensors change states."""

    def group(self, axes: tuple[int, ...]) -> str:
        """Name of the process groups along some axes."""

    def ranks(self, axis: int) -> int:
        """Ranks along an axis."""

    def operator_times(self) -> list[OperatorTime]:
        """Kernel seconds of its operators, in order."""

    def rounds(self, op: Operator) -> int:
        """How often the kernels of an operator are launched."""

    def issue_s(self, block: Block, kernels: Iterable[float], collectives: int) -> float:
        """Seconds of the host for so many kernels of each operator of the block, or a part of it, and collectives."""

    def loss_sums(self, op: Operator) -> list[CollectiveUse]:
        """What the loss sums over ranks that share the vocabulary."""

    def attention_forward(self, steps: StepList, op: Operator, time: OperatorTime, *, kind: str) -> None:
        """Core attention with what moves for it; ``kind`` is forward or recompute."""

    def attention_again(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Core attention alone once more ahead of its backward."""

    def attention_backward(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Gradients of queries, keys and values."""

    def exchange(self, kind: str) -> Exchange:
        """How tokens travel to experts."""


def kernel_step(name: str, kind: str, duration_s: Any) -> Step:
    """A kernel on the compute stream."""
    return Step(name=name, kind=kind, stream=COMPUTE, duration_s=float(duration_s))


def loss_sums(group: str, rows: float) -> CollectiveUse:
    """What cross entropy over a shared vocabulary sums for so many rows."""
    return CollectiveUse(group, "all_reduce", DTYPE_BYTES["fp32"] * rows, LOSS_SUMS)


@dataclass(frozen=True)
class RankBlock:
    """A block on a rank of a uniform plan: one axis, that of the tensor-parallel ranks, in Megatron's roles."""

    view: RankView
    block: Block

    @staticmethod
    def of(block: Block, view: RankView) -> RankBlock:
        """The block with the dims of its tower."""
        return RankBlock(view.of_block(block), block)

    @property
    def job(self) -> Job:
        """The job on the rank's device."""
        return self.view.job

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Where rows of the stream are gathered, and summands summed."""
        if self.view.tensor_parallel == 1:
            return ()
        outside = {INPUT: (self._stream,), MEMORY: (self._stream,)}
        last = {self.block.operators[-1].name: (self._stream,)} if self._ends_in_sums else {}
        flow = Flow((self.view.tensor_parallel,), outside, last, self._reads, self._writes, self._size_bytes)
        return changes(self.block, flow)

    @property
    def _stream(self) -> str:
        return "S" if self.view.sequence_parallel else "R"

    @property
    def _ends_in_sums(self) -> bool:
        return self._writes(self.block.operators[-1]) == ("P",)

    def _reads(self, op: Operator, written: States) -> States:
        """Summands are read as a sum, the stream whole by operators of region "tensor"; the rest as it is."""
        if written == ("P",):
            return (self._stream,)
        whole = op.region == "tensor" and written == (self._stream,)
        return ("X",) if whole and op.kind not in ("embedding", "loss") else written

    def _writes(self, op: Operator) -> States:
        if is_row_parallel(op) or op.looks_up_vocabulary:
            return ("P",)
        return ("F",) if op.region == "tensor" else (self._stream,)

    def _size_bytes(self, tensor: str, reader: Operator | None) -> float:
        """Bytes of all rows of a tensor."""
        for op in self.block.operators:
            if op.name == tensor:
                return self.view.whole_bytes(op)
        assert reader is not None, "what comes from outside has a reader"
        return self.view.residual_bytes(reader)

    def group(self, _axes: tuple[int, ...]) -> str:
        """The tensor-parallel ranks."""
        return TENSOR

    def ranks(self, _axis: int) -> int:
        """The tensor-parallel degree."""
        return self.view.tensor_parallel

    def operator_times(self) -> list[OperatorTime]:
        """Kernel seconds of its operators, in order."""
        return self.view.operator_times(self.block)

    def rounds(self, op: Operator) -> int:
        """How often the kernels of an operator are launched."""
        return self.view.rounds(op)

    def issue_s(self, block: Block, kernels: Iterable[float], collectives: int) -> float:
        """Seconds of the host for so many kernels of each operator of the block, or a part of it, and collectives."""
        return self.view.issue_s(block, kernels, collectives)

    def loss_sums(self, op: Operator) -> list[CollectiveUse]:
        """What the loss sums over ranks that share the vocabulary."""
        if op.kind != "loss" or self.view.tensor_parallel == 1:
            return []
        return [loss_sums(TENSOR, self.view.rows(op, region="tensor"))]

    def attention_forward(self, steps: StepList, op: Operator, time: OperatorTime, *, kind: str) -> None:
        """Core attention, with the keys of other ranks where they are needed."""
        if context.splits_context(self.view) and time.forward_s > 0:
            context.attention_forward(steps, op, self.view, kind=kind)
        else:
            steps.add(kernel_step(op.name, kind, time.forward_s))

    def attention_again(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Core attention alone once more ahead of its backward."""
        if context.splits_context(self.view):
            context.attention_forward(steps, op, self.view, kind="recompute")
        else:
            steps.add(kernel_step(op.name, "recompute", time.forward_s))

    def attention_backward(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Gradients of queries, keys and values."""
        if context.splits_context(self.view):
            context.attention_backward(steps, op, self.view)
        else:
            steps.add(kernel_step(op.name, "input_gradient", time.backward_input_s))

    def exchange(self, kind: str) -> Exchange:
        """How tokens travel to experts."""
        return Exchange(self.view, kind)
