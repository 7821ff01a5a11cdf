"""From a block of operators to the steps one rank executes: kernels, tensor-parallel collectives, host gaps.

The collectives are not listed anywhere: they follow from the graph. A tensor that is read in a state other than it was
written in is changed by a collective in front of its first reader, and its gradient by another one behind that reader's
backward (:mod:`simpar.program.blocks.changes`). Ranks of uniform plans and of stages with meshes of their own differ
only in these states, so they share this walk [Korthikanti et al. 2022, arXiv 2205.05198, section 4.2].
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress, groupby
from typing import Literal

from simpar.architectures.graph import Block, Operator
from simpar.architectures.recompute import is_full
from simpar.architectures.recompute import operators as recomputed_operators
from simpar.cost.products import OperatorTime
from simpar.dataclass import dataclass
from simpar.plan.placement import Transfer
from simpar.program.blocks import documents, experts
from simpar.program.blocks.block_view import BlockView
from simpar.program.blocks.changes import Change
from simpar.program.blocks.phases import COMPUTE, BlockStep, CollectiveUse, Phase, StepList
from simpar.units import Numbers, scalar_truth

NOTHING = Phase(())
Half = Literal["both", "input", "weight"]
"""What a backward walk through a block computes: all gradients, those of inputs, or those of weights."""
_Timed = tuple[Operator, OperatorTime]


@dataclass(frozen=True)
class BlockSteps:
    """The phases of one block: forward, full backward (F, B) and its two halves (I, W), made when asked for.

    Backwards begin with the recomputation ``first``; ``again`` is the recomputation of plans that run it ahead of the
    backward (``recompute_early``).
    """

    forward: Phase
    walk: Callable[[Half], Phase] = lambda _: NOTHING
    first: Phase = NOTHING
    again: Phase = NOTHING

    @cached_property
    def backward(self) -> Phase:
        """All gradients."""
        return self.first.then(self.walk("both"))

    @cached_property
    def input_gradient(self) -> Phase:
        """Gradients of inputs, for which the stage before waits."""
        return self.first.then(self.walk("input"))

    @cached_property
    def weight_gradient(self) -> Phase:
        """Gradients of weights, for which no other pass waits."""
        return self.walk("weight")


def block_steps(view: BlockView, *, recompute: str = "none") -> BlockSteps:
    """Steps of one block on a rank, for recompute ``none``, ``selective`` (core attention), ``full`` or modules."""
    return BlockWalk(view).steps(recompute)


@dataclass(frozen=True)
class BlockWalk:
    """Walks through the operators of a block, forward and backward: each is made once for all ways of recomputation."""

    view: BlockView

    def steps(self, recompute: str) -> BlockSteps:
        """The phases with one way of recomputation; see :func:`block_steps`."""
        if self.view.block.has_no_backward:
            return BlockSteps(self._whole)
        operators = recompute == "selective" and self.view.job.stack.memory.selective == "operators"
        again = self.again(recompute, operators=operators)
        selective = recompute == "selective" and not operators
        early = self.view.job.layout.recompute_early
        back = partial(self._back, selective)
        return BlockSteps(self._whole, back, *((NOTHING, again) if early else (again, NOTHING)))

    @cached_property
    def _whole(self) -> Phase:
        """The forward pass."""
        return self.forward("forward", self.view.times)

    @cached_property
    def _known(self) -> dict[tuple[bool, Half], Phase]:
        return {}

    def _back(self, selective: bool, half: Half) -> Phase:
        """:meth:`backward`, made once."""
        if (selective, half) not in self._known:
            self._known[selective, half] = self.backward(selective, half)
        return self._known[selective, half]

    @cached_property
    def _read(self) -> Mapping[str, tuple[Change, ...]]:
        """Changes by their first reader."""
        ordered = sorted(self.view.changes, key=lambda change: change.reader)
        return {name: tuple(some) for name, some in groupby(ordered, key=lambda change: change.reader)}

    @cached_property
    def _made(self) -> Mapping[str, tuple[Change, ...]]:
        """Changes by the tensor that they change; several partial sums change with the last of them."""
        ordered = sorted(self.view.changes, key=lambda change: change.tensors[-1])
        return {name: tuple(some) for name, some in groupby(ordered, key=lambda change: change.tensors[-1])}

    @property
    def _logits_again(self) -> frozenset[str]:
        """Losses and their projections, where losses of pieces keep no logits and backward makes them again."""
        habits, block = self.view.job.stack.memory, self.view.block
        if not (habits.loss_again and habits.loss_chunks > 1):
            return frozenset()
        return frozenset(name for op in block.operators if op.kind == "loss" for name in (op.name, *op.inputs))

    def again(self, recompute: str, *, operators: bool) -> Phase:
        """The recomputation: of everything, of the chosen modules' operators, or of a share of every operator."""
        block, times = self.view.block, self.view.times
        if is_full(recompute):
            return self._whole.recomputed
        if operators:  # half of the matmuls, and all but attention of the rest
            share = [{"attention": 0.0, "matmul": 0.5}.get(op.kind, 1.0) for op in block.operators]
            some = [replace(t, forward_s=of_op * t.forward_s) for of_op, t in zip(share, times, strict=True)]
            return self.forward("recompute", some)
        if chosen := recomputed_operators(recompute) | self._logits_again:
            kept = [op.name in chosen for op in block.operators]
            part = replace(block, operators=tuple(compress(block.operators, kept)))
            return self.forward("recompute", list(compress(times, kept)), part=part)
        return NOTHING

    def forward(self, kind: str, times: Sequence[OperatorTime], *, part: Block | None = None) -> Phase:
        """The forward pass as ``kind`` "forward" or "recompute", of the whole block or of a part of its operators."""
        sequence, block = StepList(), part or self.view.block
        pairs, beside = self._apart(block, times)
        for op, time in pairs:
            self._runs(sequence, op, time, kind, beside.get(op.name, ()))
        for change in self._read.get("", ()) if part is None else ():
            self._ahead(sequence, "output", change)
        rounds = (self.view.rounds(op) for op in block.operators)
        own = (
            documents.kernels_of(self.view.job, op, time.forward_kernels, backward=False)
            for op, time in zip(block.operators, times, strict=True)
        )
        kernels = (number * each for number, each in zip(own, rounds, strict=True))
        hooks_s = self.view.hooks_s(sum(time.modules for time in times), float(part is None))
        hooks_s = hooks_s + self.view.dtensors_s(zip(block.operators, times, strict=True))
        return self._phase(sequence, block, kernels, hooks_s)

    def _apart(
        self, block: Block, times: Sequence[OperatorTime]
    ) -> tuple[Sequence[_Timed], Mapping[str, list[_Timed]]]:
        """Operators with their times: those that follow one another, and those that run beside the exchange of one."""
        pairs, beside = list(zip(block.operators, times, strict=True)), experts.run_beside(self.view.job.layout, block)
        if not beside:
            return pairs, {}
        named = {op.name: (op, time) for op, time in pairs}
        moved = {name for names in beside.values() for name in names}
        return [pair for pair in pairs if pair[0].name not in moved], {
            move: [named[name] for name in names] for move, names in beside.items()
        }

    def _runs(
        self, sequence: StepList, op: Operator, time: OperatorTime, kind: str, beside: Sequence[_Timed] = ()
    ) -> None:
        """Add an operator's forward, with those that run ``beside`` its exchange."""
        for change in self._read.get(op.name, ()):
            self._ahead(sequence, op.name, change)
        for use in self.view.loss_sums(op):
            sequence.add(BlockStep.moving(f"{op.name}.sums", use))
        sequence.in_turn |= documents.rotates_in_loop(self.view.job, op)
        if op.kind == "attention":
            self.view.attention(sequence, op, time, kind)
        elif op.kind in experts.MOVES:

            def run_others() -> None:
                for each in beside:
                    self._runs(sequence, *each, kind)

            others = run_others if beside else None
            self.view.exchange(kind).run(sequence, op, time, backward=False, beside=others)
        else:
            self.view.exchange_states(sequence, op, ahead=True)
            sequence.add(BlockStep.kernel(op.name, kind, time.forward_s))
            self.view.exchange_states(sequence, op, ahead=False)

    def backward(self, selective: bool, half: Half) -> Phase:
        """The backward pass, in full or one half of it; ``selective`` runs core attention forward again first."""
        input_gradient, sequence, block = half != "weight", StepList(), self.view.block
        pairs = list(zip(block.operators, self.view.times, strict=True))
        in_turn, beside = self._apart(block, self.view.times)
        for op, time in reversed(in_turn):
            self._runs_back(sequence, op, time, selective, half, beside.get(op.name, ()))
        inside = {op.name for op in block.operators}
        for tensor in self._made if input_gradient else ():
            if tensor not in inside:
                self._gradient_arrives(sequence, tensor)
        share = 1.0 if half == "both" else 0.5
        kernels = (
            share * documents.kernels_of(self.view.job, op, time.backward_kernels, backward=True) * self.view.rounds(op)
            for op, time in pairs
        )
        hooks_s = share * self.view.hooks_s(sum(time.modules for time in self.view.times), 1.0)
        hooks_s = hooks_s + share * self.view.dtensors_s(pairs, backward=True)
        return self._phase(sequence, block, kernels, hooks_s)

    def _runs_back(
        self,
        sequence: StepList,
        op: Operator,
        time: OperatorTime,
        selective: bool,
        half: Half,
        beside: Sequence[_Timed] = (),
    ) -> None:
        """Add an operator's backward, with those that run ``beside`` its exchange."""
        input_gradient = half != "weight"
        if input_gradient:
            self._gradient_arrives(sequence, op.name)
        if op.kind == "attention" and input_gradient:
            if selective:
                self.view.attention(sequence, op, time, "recompute", alone=True)
            self.view.attention(sequence, op, time, "input_gradient")
        elif op.kind in experts.MOVES:

            def run_others() -> None:
                for each in reversed(beside):
                    self._runs_back(sequence, *each, selective, half)

            if input_gradient:
                others = run_others if beside else None
                self.view.exchange("input_gradient").run(sequence, op, time, backward=True, beside=others)
            else:
                run_others()
        else:
            if input_gradient:
                self.view.exchange_states(sequence, op, ahead=False, backward=True)
            self._operator(sequence, op, time, half)
            if input_gradient:
                self.view.exchange_states(sequence, op, ahead=True, backward=True)

    def _phase(self, sequence: StepList, block: Block, kernels: Iterable[Numbers], hooks_s: Numbers) -> Phase:
        issue_s = self.view.issue_s(block, kernels, sequence.num_collectives)
        if sequence.shared:  # called part by part, those of another microbatch in between
            issue_s = issue_s * self.view.job.stack.experts.overlap_launches
        host_s = issue_s + sequence.host_s + hooks_s
        if sequence.in_turn:
            sequence.add(BlockStep("launches", "host", COMPUTE, host_s))
            host_s = 0.0
        return Phase(tuple(sequence.steps), host_s, sequence.shared)

    def _ahead(self, sequence: StepList, reader: str, change: Change) -> None:
        """Add the forward collectives of a change, in front of its first reader."""
        for transfer in change.forward:
            if transfer.op == "all_gather" and change.sums_gradient:
                self._gather(sequence, f"{reader}.all_gather", change, transfer)
            elif transfer.op == "reduce_scatter":
                self._reduce_product(sequence, f"{reader}.reduce", change, transfer)
            else:
                name = f"{reader}.reduce" if transfer.op == "all_reduce" else f"{reader}.{transfer.op}"
                sequence.add(self._move(name, change, transfer))

    def _gradient_arrives(self, sequence: StepList, tensor: str) -> None:
        """Add the collectives of gradients that arrive in other states than their producer needs, sums excepted."""
        for change in self._made.get(tensor, ()):
            name = f"{tensor}.gradient_gather" if change.reader else "output.all_gather"
            for transfer in () if change.sums_gradient else change.backward:
                if transfer.op == "all_gather":
                    self._gather(sequence, name, change, transfer)
                else:
                    sequence.add(self._move(f"{tensor}.gradient_{transfer.op}", change, transfer))

    def _gather(self, sequence: StepList, name: str, change: Change, transfer: Transfer) -> None:
        """Add an all-gather; overlapped, the product behind it starts with the first of as many chunks as ranks."""
        step = self._move(name, change, transfer)
        if not self.view.job.layout.tp_overlap:
            sequence.add(step)
            return
        assert step.collective is not None, "a gather is a collective"
        chunk = step.collective.size_bytes / self.view.ranks(transfer.axis)
        sequence.add(_resized(step, f"{name}.first", chunk))
        sequence.add_beside(_resized(step, f"{name}.rest", step.collective.size_bytes - chunk))

    def _reduce_product(self, sequence: StepList, name: str, change: Change, transfer: Transfer) -> None:
        """Add the reduce-scatter of a row-parallel product; overlapped, all but its last chunk run beside it."""
        step, product = self._move(name, change, transfer), sequence.steps[-1] if sequence.steps else None
        alone = product is not None and not product.collective and (product.name,) == change.tensors
        if product is None or not alone or not self.view.job.layout.tp_overlap:
            sequence.add(step)
            return
        assert step.collective is not None, "a reduction is a collective"
        sequence.steps.pop()
        share, size = 1.0 / self.view.ranks(transfer.axis), step.collective.size_bytes
        first = replace(product, name=f"{product.name}.first", duration_s=product.duration_s * share)
        rest = replace(product, name=f"{product.name}.rest", duration_s=product.duration_s * (1.0 - share))
        sequence.add(first, after=product.after)
        sequence.add_beside(_resized(step, f"{name}.first", size * (1.0 - share)))
        sequence.add(rest)
        sequence.add(_resized(step, f"{name}.last", size * share))

    def _operator(self, sequence: StepList, op: Operator, time: OperatorTime, half: Half) -> None:
        input_gradient, weight_gradient = half != "weight", half != "input"
        start, beside = sequence.frontier, bool(self.view.job.stack.overlap.tensor_backward)
        gathered = self._gather_again(sequence, op, beside=beside) if weight_gradient else None
        if input_gradient and scalar_truth(time.backward_input_s > 0):
            sequence.add(BlockStep.kernel(op.name, "input_gradient", time.backward_input_s), after=start)
        sums = self._sum_gradients(sequence, op) if input_gradient else ()
        ends: tuple[int, ...] = ()
        if weight_gradient and scalar_truth(time.backward_weight_s > 0):
            waits = sequence.steps[sums[0]].after if sums else sequence.frontier
            waits = (*waits, gathered) if gathered is not None else waits
            waits = waits if beside else (*waits, *sums[-1:])
            ends = (self._weight_gradient(sequence, op, time, waits),)
        if sums:
            sequence.frontier = (sums[-1], *ends)

    def _weight_gradient(self, sequence: StepList, op: Operator, time: OperatorTime, waits: tuple[int, ...]) -> int:
        """Add the gradient of an operator's weights and the kernels that sum it up; the position of the last one."""
        own = time.backward_weight_s - sum(time.sums_s.values())
        parts = {op.name: own} | {f"{op.name}.{name}": seconds for name, seconds in time.sums_s.items()}
        kernels = [(name, seconds) for name, seconds in parts.items() if scalar_truth(seconds > 0)]
        for name, seconds in kernels:
            step = BlockStep.kernel(name, "weight_gradient", seconds)
            waits = (sequence.add(step, after=waits, join=name == kernels[-1][0]),)
        return waits[-1]

    def _gather_again(self, sequence: StepList, op: Operator, *, beside: bool) -> int | None:
        """Gather an input of which only the slice was kept once more, for the weight gradient; its position or None."""
        if not op.weights or not self.view.job.stack.overlap.regather_input:
            return None
        last = None
        for change in self._read.get(op.name, ()):
            for transfer in change.forward if change.sums_gradient else ():
                if transfer.op == "all_gather":
                    last = sequence.add(self._move(f"{op.name}.input_gather", change, transfer), join=not beside)
        return last

    def _sum_gradients(self, sequence: StepList, op: Operator) -> tuple[int, ...]:
        """Add the sums over ranks of gradients that readers left as partial sums; the first reader does it."""
        result: list[int] = []
        for change in self._read.get(op.name, ()):
            for transfer in change.backward if change.sums_gradient else ():
                after = (result[-1],) if result else None
                step = self._move(f"{op.name}.gradient_reduce", change, transfer)
                result.append(sequence.add(step, after=after, join=False))
        return tuple(result)

    def _move(self, name: str, change: Change, transfer: Transfer) -> BlockStep:
        use = CollectiveUse(self.view.group((transfer.axis,)), transfer.op, change.moved_bytes(transfer))
        return BlockStep.moving(name, use)


def _resized(step: BlockStep, name: str, size_bytes: Numbers) -> BlockStep:
    assert step.collective is not None, "only collectives are cut"
    return replace(step, name=name, collective=replace(step.collective, size_bytes=size_bytes))
