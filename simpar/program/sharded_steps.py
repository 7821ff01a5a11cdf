"""Steps of a block whose operators have roles of their own on the axes of a stage's mesh.

The counterpart of :mod:`simpar.program.steps` for :class:`simpar.plan.stages.StagePlan`: kernels of local sizes, and a
collective wherever a tensor is read in other states than it was written in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simpar.cost.operators import OperatorTime
from simpar.cost.sharded import local_time, shared_keys_elements
from simpar.models.graph import Operator
from simpar.plan.placement import Transfer
from simpar.program.phases import COMPUTE, TENSOR, CollectiveUse, Phase, Step, StepList
from simpar.program.stage_view import BlockView, Change
from simpar.program.steps import BlockSteps, unsaved
from simpar.units import DTYPE_BYTES

LOSS_SUMS = 3
"""Vocabulary-parallel cross entropy sums three fp32 numbers a row: maximum, target logit, denominator."""


def sharded_block_steps(view: BlockView, *, recompute: str = "none") -> BlockSteps:
    """Steps of one block on one rank, for recompute ``none``, ``selective`` or ``full``."""
    walk = _Walk(view)
    operators = recompute == "selective" and view.stage.job.stack.memory.selective == "operators"
    again = Phase(())
    if recompute == "full":
        again = walk.forward("recompute", walk.times)
    elif operators:
        again = walk.forward("recompute", unsaved(walk.times, view.block))
    selective = recompute == "selective" and not operators
    return BlockSteps(
        forward=walk.forward("forward", walk.times),
        backward=again.then(walk.backward("both", selective=selective)),
        input_gradient=again.then(walk.backward("input", selective=selective)),
        weight_gradient=walk.backward("weight", selective=selective),
    )


@dataclass(frozen=True)
class _Walk:
    """Forward and backward through the operators of a block."""

    view: BlockView

    @cached_property
    def times(self) -> list[OperatorTime]:
        """Kernel seconds of every operator here."""
        view = self.view
        return [_scalar(local_time(view.local(op), view.machine)) for op in view.block.operators]

    @cached_property
    def _read(self) -> dict[str, tuple[Change, ...]]:
        return self.view.changes_by("reader")

    @cached_property
    def _made(self) -> dict[str, tuple[Change, ...]]:
        return self.view.changes_by("tensor")

    def forward(self, kind: str, times: Sequence[OperatorTime]) -> Phase:
        """The forward pass, or the same again as ``kind`` "recompute"."""
        sequence = StepList()
        for op, time in zip(self.view.block.operators, times, strict=True):
            for change in self._read.get(op.name, ()):
                self._serial(sequence, f"{change.tensor} to {op.name}", change, change.forward)
            for step in (*self._keys(op, "all_gather"), *self._loss_sums(op)):
                sequence.add(step)
            sequence.add(Step(name=op.name, kind=kind, stream=COMPUTE, duration_s=float(time.forward_s)))
        for change in self._read.get("", ()):
            self._serial(sequence, f"{change.tensor} out", change, change.forward)
        return self._phase(sequence, (int(time.forward_kernels) for time in times))

    def backward(self, which: str, *, selective: bool) -> Phase:
        """The backward pass in full ("both"), or its half for "input" or "weight" gradients."""
        sequence = StepList()
        pairs = list(zip(self.view.block.operators, self.times, strict=True))
        for op, time in reversed(pairs):
            if which != "weight":
                self._gradient_arrives(sequence, op.name)
            if selective and op.kind == "attention" and which != "weight":
                sequence.add(Step(op.name, "recompute", COMPUTE, float(time.forward_s)))
            self._operator(sequence, op, time, which)
        outside = {op.name for op in self.view.block.operators}
        for tensor in self._made if which != "weight" else ():
            if tensor not in outside:
                self._gradient_arrives(sequence, tensor)
        share = 1.0 if which == "both" else 0.5
        return self._phase(sequence, (share * int(time.backward_kernels) for time in self.times))

    def _phase(self, sequence: StepList, kernels: Iterable[float]) -> Phase:
        issue_s = self.view.stage.issue_s(self.view.block, kernels, sequence.num_collectives)
        return Phase(tuple(sequence.steps), issue_s)

    def _gradient_arrives(self, sequence: StepList, tensor: str) -> None:
        """Gradients that come in other states than their producer works in, summed ones aside."""
        for change in self._made.get(tensor, ()):
            if not change.sums_gradient:
                self._serial(sequence, f"gradient of {tensor}", change, change.backward)

    def _operator(self, sequence: StepList, op: Operator, time: OperatorTime, which: str) -> None:
        start = sequence.frontier
        weight, stage = which != "input", self.view.stage
        beside = bool(stage.job.stack.overlap.tensor_backward)
        gathered = self._gather_again(sequence, op, beside=beside) if weight else None
        for step in self._keys(op, "all_gather") if which != "weight" else ():
            sequence.add(step)
            start = sequence.frontier
        if which != "weight" and time.backward_input_s > 0:
            sequence.add(_kernel(op.name, "input_gradient", float(time.backward_input_s)), after=start)
        for step in self._keys(op, "reduce_scatter") if which != "weight" else ():
            sequence.add(step)
        summed = self._sum_gradients(sequence, op) if which != "weight" else None
        ends: tuple[int, ...] = ()
        if weight and time.backward_weight_s > 0:
            waits = sequence.frontier if summed is None else sequence.steps[summed[0]].after
            waits = (*waits, gathered) if gathered is not None else waits
            if summed is not None and not beside:
                waits = (*waits, summed[-1])
            kernel = _kernel(op.name, "weight_gradient", float(time.backward_weight_s))
            ends = (sequence.add(kernel, after=waits),)
        if summed is not None:
            sequence.frontier = (summed[-1], *ends)

    def _gather_again(self, sequence: StepList, op: Operator, *, beside: bool) -> int | None:
        """Only the slice of a gathered input is kept: the weight gradient needs all of it again."""
        if not op.weights or not self.view.stage.job.stack.overlap.regather_input:
            return None
        last = None
        for change in self._read.get(op.name, ()):
            for transfer in change.forward:
                if change.sums_gradient and transfer.op == "all_gather":
                    step = self._step(f"{op.name}.input again", change, transfer)
                    last = sequence.add(step, join=not beside)
        return last

    def _sum_gradients(self, sequence: StepList, op: Operator) -> tuple[int, ...] | None:
        """Sums of what the readers left as summands, closed by the first reader."""
        found: list[int] = []
        for change in self._read.get(op.name, ()):
            for transfer in change.backward if change.sums_gradient else ():
                step = self._step(f"{op.name}.gradient sum", change, transfer)
                after = (found[-1],) if found else None
                found.append(sequence.add(step, after=after, join=False))
        return tuple(found) or None

    def _keys(self, op: Operator, collective: str) -> list[Step]:
        """Keys and values (or their gradients) of a sequence that attention has in slices."""
        if op.kind != "attention":
            return []
        view, by = self.view, self.view.by(op)
        size = shared_keys_elements(op, view.dims) * view.stage.compute_bytes
        steps = []
        for axis in view.axes(op, "sequence"):
            others = by["batch"] * by["columns"] * by["seq"] / view.stage.mesh[axis]
            steps.append(self._collective(f"{op.name}.keys", axis, collective, size / others))
        return steps

    def _loss_sums(self, op: Operator) -> list[Step]:
        """What vocabulary-parallel cross entropy sums for every row."""
        axes = self.view.axes(op, "vocabulary") if op.kind == "loss" else ()
        size = float(self.view.local(op).rows) * DTYPE_BYTES["fp32"] if axes else 0.0
        return [self._collective(f"{op.name}.sums", axis, "all_reduce", size, LOSS_SUMS) for axis in axes]

    def _serial(self, sequence: StepList, name: str, change: Change, moves: Sequence[Transfer]) -> None:
        for transfer in moves:
            sequence.add(self._step(name, change, transfer))

    def _step(self, name: str, change: Change, transfer: Transfer) -> Step:
        size = change.size_bytes * transfer.share
        return self._collective(f"{name}.{transfer.op}", transfer.axis, transfer.op, size)

    def _collective(self, name: str, axis: int, op: str, size_bytes: float, count: int = 1) -> Step:
        use = CollectiveUse(self.view.stage.group((axis,)), op, size_bytes, count)
        return Step(name=name, kind=TENSOR, stream=TENSOR, collective=use)


def _kernel(name: str, kind: str, duration_s: float) -> Step:
    return Step(name=name, kind=kind, stream=COMPUTE, duration_s=duration_s)


def _scalar(time: OperatorTime) -> OperatorTime:
    """Times of one choice of roles as plain numbers."""
    return replace(
        time,
        forward_s=float(time.forward_s),
        backward_input_s=float(time.backward_input_s),
        backward_weight_s=float(time.backward_weight_s),
    )
