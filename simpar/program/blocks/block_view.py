"""One block on one rank, as the walk through its operators sees it (:mod:`simpar.program.blocks.steps`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from simpar.architectures.graph import INPUT, Block, Operator, evaluate, is_row_parallel
from simpar.cost.operators import operator_times
from simpar.cost.products import OperatorTime, is_frozen
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.placement import States
from simpar.plan.stages import MEMORY
from simpar.program.blocks import context
from simpar.program.blocks.changes import Change, Flow, changes
from simpar.program.blocks.experts import TokenExchange
from simpar.program.blocks.graphs import launches
from simpar.program.blocks.phases import TENSOR, BlockStep, CollectiveUse, StepList
from simpar.program.blocks.rank_view import RankView
from simpar.program.job import TrainingJob
from simpar.stacks.stack import DTENSOR_BACKWARD, DTENSOR_BACKWARD_FROZEN
from simpar.units import DTYPE_BYTES, Numbers, floats, scalar_truth

LOSS_SUMS = 3
"""Vocabulary-parallel cross entropy sums three fp32 numbers a row: maximum, target logit, denominator."""


@dataclass(frozen=True)
class BlockView(ABC):
    """A block on a rank: states of its tensors, kernel times, and collectives that belong to single operators.

    ``job`` has the kernel model of the rank's device. Each tensor-parallel collective holds up the rank's host for
    ``late_s`` seconds.
    """

    job: TrainingJob
    block: Block
    late_s: Numbers

    @property
    @abstractmethod
    def times(self) -> list[OperatorTime]:
        """Kernel seconds of its operators, in order."""

    @property
    @abstractmethod
    def changes(self) -> tuple[Change, ...]:
        """Where its tensors change states."""

    @abstractmethod
    def group(self, axes: tuple[int, ...]) -> str:
        """Name of the process groups along some axes."""

    @abstractmethod
    def ranks(self, axis: int) -> Numbers:
        """Ranks along an axis."""

    @abstractmethod
    def loss_sums(self, op: Operator) -> list[CollectiveUse]:
        """What the loss sums over ranks that share the vocabulary."""

    def rounds(self, _op: Operator) -> int:
        """How often the kernels of an operator are launched."""
        return 1

    def issue_s(self, block: Block, kernels: Iterable[Numbers], collectives: int) -> Numbers:
        """Seconds of the host to launch the ``kernels`` of each operator of a block (or a part), and collectives."""
        launch = self.job.stack.launch
        each_s = launch.host_time_per_collective_s + self.late_s
        return launches(block, kernels, launch.graphs) * launch.host_time_per_kernel_s + collectives * each_s

    def dtensors_s(self, pairs: Iterable[tuple[Operator, OperatorTime]], *, backward: bool = False) -> Numbers:
        """Seconds of the host for tensor-parallel modules as DTensors, in a forward or ``backward``; 0 without."""
        launch = self.job.stack.launch
        if not launch.host_time_per_dtensor_s or not self._is_split or "step" in launch.graphs:
            return 0.0
        split = [(op, time.modules) for op, time in pairs if op.kind == "matmul"]
        if backward:
            split = [(op, number * _of_backward(op)) for op, number in split]
        return sum(number for _, number in split) * launch.host_time_per_dtensor_s

    @property
    def _is_split(self) -> bool:
        """Whether its tensors change states among several ranks: roles have states on axes of one rank, too."""
        moves = (move for change in self.changes for move in (*change.forward, *change.backward))
        return any(np.any(np.asarray(self.ranks(move.axis)) > 1) for move in moves)

    def hooks_s(self, modules: Numbers, units: float) -> Numbers:
        """Seconds of the host in the hooks of ``modules`` with parameters and of wrapped ``units`` in a pass.

        They run where data parallelism works block by block, whatever the tokens, and with ``hooks_alone`` where nobody
        shares a block, too.
        """
        launch, layout = self.job.stack.launch, self.job.layout
        if layout.kind != "fsdp" or "step" in launch.graphs:
            return 0.0
        every_s = modules * launch.host_time_per_module_s + units * launch.host_time_per_unit_s
        return every_s if launch.hooks_alone else every_s * (layout.width > 1)

    def share_keys(self, steps: StepList, op: Operator, collective: str) -> None:  # noqa: B027
        """Add the collective that shares keys and values, or their gradients, among slices of a sequence: none here."""

    def attention(self, steps: StepList, op: Operator, time: OperatorTime, kind: str, *, alone: bool = False) -> None:
        """Add core attention with its collectives, as ``kind`` forward, recompute or input_gradient.

        In backward, gradients of keys of other slices are sent back to their ranks. ``alone``: recomputed right ahead
        of its backward, it needs no collective of its own.
        """
        backward = kind == "input_gradient"
        if not alone:
            self.share_keys(steps, op, "all_gather")
        steps.add(BlockStep.kernel(op.name, kind, time.backward_input_s if backward else time.forward_s))
        if backward:
            self.share_keys(steps, op, "reduce_scatter")

    def exchange_states(self, steps: StepList, op: Operator, *, ahead: bool, backward: bool = False) -> None:  # noqa: B027
        """Add what context-parallel ranks exchange around the scan of a state-space layer: nothing here."""

    def exchange(self, _kind: str) -> TokenExchange:
        """How tokens travel to experts. Raises UserError where they do not."""
        raise UserError(f"plan.stages: {self.block.name} routes tokens to experts; allowed: stages of dense models")


def _of_backward(op: Operator) -> float:
    """Host seconds of a module as DTensors in a backward, over those in a forward."""
    return DTENSOR_BACKWARD_FROZEN if is_frozen(op) else DTENSOR_BACKWARD


def loss_sums(group: str, rows: Numbers) -> CollectiveUse:
    """The sums of cross entropy over ranks that share the vocabulary, for ``rows`` rows."""
    return CollectiveUse(group, "all_reduce", DTYPE_BYTES["fp32"] * rows, LOSS_SUMS)


@dataclass(frozen=True)
class RankBlock(BlockView):
    """A block on a rank of a uniform plan: one axis, that of the tensor-parallel ranks, in Megatron's roles."""

    view: RankView

    @staticmethod
    def of(block: Block, view: RankView) -> RankBlock:
        """The block on the rank of a view, with the dims of its tower."""
        return RankBlock(view.job, block, view.late_s, view.of_block(block))

    @cached_property
    def times(self) -> list[OperatorTime]:
        """Kernel seconds of its operators, in order."""
        return operator_times(self.block.operators, self.view.dims, self.job.kernels, self.job.stack)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Where rows of the stream are gathered and partial sums are reduced."""
        if not self.view.has_tensor_ranks:
            return ()
        last = self.block.operators[-1]
        outside = {INPUT: (self._stream,), MEMORY: (self._stream,)}
        ends = {last.name: (self._stream,)} if self._writes(last) == ("P",) else {}
        flow = Flow((self.view.tensor_parallel,), outside, ends, self._reads, self._writes, self._size_bytes)
        return changes(self.block, flow)

    @property
    def _stream(self) -> str:
        return "S" if self.view.sequence_parallel and not self.view.dims.is_whole else "R"

    def _joins_text(self, op: Operator) -> bool:
        """Whether an operator of a tower that is not divided puts its tokens between those of the text, which are."""
        own_rows = f"{self.block.scope}.seq" in self.job.graph.dims
        return self.view.dims.is_whole and not own_rows and op is self.block.operators[-1]

    def _reads(self, op: Operator, written: States) -> States:
        """Partial sums are read as their sum; operators of region "tensor" read the stream whole; the rest as it is.

        Of a tower that every rank computes whole, the text takes its rows: their gradients are gathered.
        """
        if self.view.dims.is_whole:
            return ("S",) if self._joins_text(op) and self.view.sequence_parallel else ("R",)
        if written == ("P",):
            return (self._stream,)
        whole = op.region == "tensor" and written == (self._stream,)
        return ("X",) if whole and op.kind not in ("embedding", "loss") else written

    def _writes(self, op: Operator) -> States:
        if self.view.dims.is_whole:
            return ("R",)
        if is_row_parallel(op) or op.looks_up_vocabulary:
            return ("P",)
        return ("F",) if op.region == "tensor" else (self._stream,)

    def _size_bytes(self, tensor: str, reader: Operator | None) -> Numbers:
        """Bytes of all rows of a tensor: an operator's output, or what ``reader`` reads of the stream."""
        for op in self.block.operators:
            if op.name == tensor:
                return self.view.elements(op) * self.view.compute_bytes
        assert reader is not None, "what comes from outside has a reader"
        width = reader.columns if reader.region == "sequence" else reader.contraction or reader.columns
        return self._rows(reader) * floats(evaluate(width, self.view.tensor)) * self.view.compute_bytes

    def _rows(self, op: Operator) -> Numbers:
        """All rows (tokens) of an operator's output."""
        return floats(evaluate(op.rows, self.view.tensor))

    def group(self, _axes: tuple[int, ...]) -> str:
        """The tensor-parallel ranks."""
        return TENSOR

    def ranks(self, _axis: int) -> Numbers:
        """The tensor-parallel degree."""
        return self.view.tensor_parallel

    def rounds(self, op: Operator) -> int:
        """How often the kernels of an operator are launched: attention once per block of a ring."""
        return int(self.view.tensor["blocks"]) if op.kind == "attention" else 1

    def loss_sums(self, op: Operator) -> list[CollectiveUse]:
        """What the loss sums over ranks that share the vocabulary."""
        divided = any("vocab" in names for _, names in op.columns)
        shared = op.kind == "loss" and divided and self.view.has_tensor_ranks
        return [loss_sums(TENSOR, self._rows(op))] if shared else []

    def attention(self, steps: StepList, op: Operator, time: OperatorTime, kind: str, *, alone: bool = False) -> None:
        """Core attention, with the keys of other ranks where they are needed."""
        runs = alone or kind == "input_gradient" or scalar_truth(time.forward_s > 0)
        if runs and context.splits_context(self.view):
            context.attention(steps, op, self.view, kind)
        else:
            super().attention(steps, op, time, kind, alone=alone)

    def exchange_states(self, steps: StepList, op: Operator, *, ahead: bool, backward: bool = False) -> None:
        """Exchange tokens of a sequence for heads of a state-space layer, or back."""
        if op.kind in context.OF_STATES and context.splits_context(self.view):
            context.exchange_states(steps, self.block, op, self.view, ahead=ahead, backward=backward)

    def exchange(self, kind: str) -> TokenExchange:
        """How tokens travel to experts."""
        return TokenExchange(self.view, kind)
