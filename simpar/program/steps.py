"""From a block of operators to the steps one rank executes: kernels, tensor-parallel collectives, host gaps.

The collectives are not listed anywhere: they follow from the graph. Operators of region "sequence" need the
residual stream (sharded over the sequence under sequence parallelism), operators of region "tensor" need whole
rows; a contraction over a sharded dim leaves a partial sum. Walking the data flow, a change of region or a
partial sum that is read is where a collective stands [Korthikanti et al. 2022, arXiv 2205.05198, section 4.2].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simpar.cost.operators import OperatorTime
from simpar.models.graph import Block, Operator, is_row_parallel
from simpar.models.recompute import is_full
from simpar.models.recompute import operators as recomputed_operators
from simpar.plan.grid import grid_of
from simpar.program import context, experts
from simpar.program.grid import GridSteps
from simpar.program.phases import COMPUTE, TENSOR, CollectiveUse, Phase, Step, StepList
from simpar.program.rank_view import RankView

NOTHING = Phase(())


@dataclass(frozen=True)
class BlockSteps:
    """The phases of one block: forward, full backward (F, B) and its two halves (I, W).

    ``again`` is the forward that is run once more ahead of the backward, where the plan has it apart.
    """

    forward: Phase
    backward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    again: Phase = NOTHING


def block_steps(block: Block, view: RankView, *, recompute: str = "none") -> BlockSteps:
    """Steps of one block on one rank, for recompute ``none``, ``selective`` (core attention), ``full`` or modules."""
    view = view.of_block(block)
    times = view.operator_times(block)
    if (grid := grid_of(view.job.plan)) is not None:
        return _on_grid(GridSteps(grid, block, view, times, recompute))
    traffic = _Traffic.of(block, view)
    forward = _forward(block, times, traffic, view, kind="forward")
    if block.still:
        return BlockSteps(forward, Phase(()), Phase(()), Phase(()))
    chosen = recomputed_operators(recompute)
    operators = recompute == "selective" and view.job.stack.memory.selective == "operators"
    again = Phase(())
    if is_full(recompute):
        again = _forward(block, times, traffic, view, kind="recompute")
    elif chosen:
        again = _again(block, times, traffic, view, chosen)
    elif operators:
        again = _forward(block, unsaved(times, block), traffic, view, kind="recompute")
    walk = _Backward(block, times, traffic, view, selective=recompute == "selective" and not operators)
    early = again if view.job.plan.memory.recompute_early else Phase(())
    again = Phase(()) if view.job.plan.memory.recompute_early else again
    return BlockSteps(
        again=early,
        forward=forward,
        backward=again.then(walk.phase(input_gradient=True, weight_gradient=True)),
        input_gradient=again.then(walk.phase(input_gradient=True, weight_gradient=False)),
        weight_gradient=walk.phase(input_gradient=False, weight_gradient=True),
    )


def _on_grid(steps: GridSteps) -> BlockSteps:
    """The phases of a block whose products run on a grid of ranks."""
    again = steps.forward("recompute") if is_full(steps.recompute) else Phase(())
    return BlockSteps(
        forward=steps.forward("forward"),
        backward=again.then(steps.backward("input_gradient", "weight_gradient")),
        input_gradient=again.then(steps.backward("input_gradient")),
        weight_gradient=steps.backward("weight_gradient"),
    )


def _again(
    block: Block, times: Sequence[OperatorTime], traffic: _Traffic, view: RankView, chosen: frozenset[str]
) -> Phase:
    """Another forward of some operators, with the collectives in front of them."""
    pairs = [(op, time) for op, time in zip(block.operators, times, strict=True) if op.name in chosen]
    part = replace(block, operators=tuple(op for op, _ in pairs))
    inside = replace(traffic, ends_partial=0.0)
    return _forward(part, [time for _, time in pairs], inside, view, kind="recompute")


def unsaved(times: Sequence[OperatorTime], block: Block) -> list[OperatorTime]:
    """What per-operator selective recompute runs again: half of the matmuls, and all but attention of the rest."""
    share = {"attention": 0.0, "matmul": 0.5}
    return [
        replace(time, forward_s=share.get(op.kind, 1.0) * time.forward_s)
        for op, time in zip(block.operators, times, strict=True)
    ]


@dataclass(frozen=True)
class _Traffic:
    """Where collectives stand: per operator, the tensors gathered before it and those reduced before it."""

    gathers: dict[str, float]
    reduces: dict[str, float]
    first_reader: dict[str, str]
    reduced_producers: dict[str, str]
    ends_partial: float

    @staticmethod
    def of(block: Block, view: RankView) -> _Traffic:
        """Walk the data flow of the block once. Bytes are those of the whole (unsharded) tensor of a microbatch."""
        traffic = _Traffic({}, {}, {}, {}, 0.0)
        if view.tensor_parallel == 1:
            return traffic
        partial: dict[str, float] = {}
        available: set[str] = set()
        ends_partial = 0.0
        for op in block.operators:
            summed = [name for name in op.inputs if name in partial]
            if summed:
                traffic.reduces[op.name] = max(partial.pop(name) for name in summed)
                traffic.reduced_producers.update(dict.fromkeys(summed, op.name))
            if op.region == "tensor":
                _note_gathers(block, op, view, traffic, available)
            if is_row_parallel(op) or _is_sharded_embedding(op):
                partial[op.name] = view.elements(op, region="tensor") * view.compute_bytes
        if partial:
            ends_partial = max(partial.values())
        return replace(traffic, ends_partial=ends_partial)


def _note_gathers(block: Block, op: Operator, view: RankView, traffic: _Traffic, available: set[str]) -> None:
    producers = {other.name: other for other in block.operators}
    for name in op.inputs:
        source = producers.get(name)
        from_sequence = source.region == "sequence" if source else op.kind not in ("embedding", "loss")
        if from_sequence and name not in available:
            available.add(name)
            width = source if source else op
            traffic.gathers[op.name] = view.whole_bytes(width) if source else view.residual_bytes(op)
            traffic.first_reader[name] = op.name


def _is_sharded_embedding(op: Operator) -> bool:
    return op.kind == "embedding" and any("vocab" in dims for w in op.weights for _, dims in w.size)


def _forward(
    block: Block, times: Sequence[OperatorTime], traffic: _Traffic, view: RankView, *, kind: str
) -> Phase:
    sequence = StepList()
    for op, time in zip(block.operators, times, strict=True):
        if op.name in traffic.reduces:
            producers = [name for name, by in traffic.reduced_producers.items() if by == op.name]
            _reduce_product(sequence, f"{op.name}.reduce", traffic.reduces[op.name], producers, view)
        if op.kind == "loss" and view.tensor_parallel > 1:
            sequence.add(_loss_statistics(op, view))
        compute = Step(name=op.name, kind=kind, stream=COMPUTE, duration_s=float(time.forward_s))
        gather = traffic.gathers.get(op.name, 0.0)
        if op.kind == "attention" and context.splits_context(view) and time.forward_s > 0:
            context.attention_forward(sequence, op, view, kind=kind)
        elif op.kind in experts.MOVES:
            experts.Exchange(view, kind).forward(sequence, op, time)
        elif gather and view.sequence_parallel:
            _gather_then_compute(sequence, compute, gather, view)
        else:
            sequence.add(compute)
    if traffic.ends_partial:
        last = [op.name for op in block.operators[-1:]]
        _reduce_product(sequence, "output.reduce", traffic.ends_partial, last, view)
    kernels = (
        int(time.forward_kernels) * view.rounds(op) for op, time in zip(block.operators, times, strict=True)
    )
    issue_s = view.issue_s(block, kernels, sequence.num_collectives) + sequence.host_s
    return Phase(tuple(sequence.steps), issue_s)


def _gather_then_compute(sequence: StepList, compute: Step, size_bytes: float, view: RankView) -> None:
    """All-gather before a column-parallel product."""
    _gather(sequence, f"{compute.name}.all_gather", size_bytes, view)
    sequence.add(compute)


def _gather(sequence: StepList, name: str, size_bytes: float, view: RankView) -> None:
    """An all-gather; decomposed, the product that follows starts with the first of tp chunks."""
    if not view.overlap_tensor_parallel:
        sequence.add(_collective(name, "all_gather", size_bytes))
        return
    chunk = size_bytes / view.tensor_parallel
    sequence.add(_collective(f"{name}.first", "all_gather", chunk))
    sequence.add_beside(_collective(f"{name}.rest", "all_gather", size_bytes - chunk))


def _reduce_product(
    sequence: StepList, name: str, size_bytes: float, producers: Sequence[str], view: RankView
) -> None:
    """Sum of what row-parallel products leave; decomposed, all but the last of tp chunks go beside the product."""
    product = sequence.steps[-1] if sequence.steps else None
    alone = product is not None and not product.collective and [product.name] == list(producers)
    if product is None or not alone or not view.overlap_tensor_parallel or not view.sequence_parallel:
        sequence.add(_reduce(name, size_bytes, view))
        return
    sequence.steps.pop()
    share = 1.0 / view.tensor_parallel
    first = replace(product, name=f"{product.name}.first", duration_s=product.duration_s * share)
    rest = replace(product, name=f"{product.name}.rest", duration_s=product.duration_s * (1.0 - share))
    sequence.add(first, after=product.after)
    sequence.add_beside(_reduce(f"{name}.first", size_bytes * (1.0 - share), view))
    sequence.add(rest)
    sequence.add(_reduce(f"{name}.last", size_bytes * share, view))


@dataclass(frozen=True)
class _Backward:
    """The backward walk of one block, in full or one half of it (input or weight gradients)."""

    block: Block
    times: Sequence[OperatorTime]
    traffic: _Traffic
    view: RankView
    selective: bool

    def phase(self, *, input_gradient: bool, weight_gradient: bool) -> Phase:
        sequence = StepList()
        pairs = list(zip(self.block.operators, self.times, strict=True))
        if self.traffic.ends_partial and self.view.sequence_parallel and input_gradient:
            _gather(sequence, "output.all_gather", self.traffic.ends_partial, self.view)
        for op, time in reversed(pairs):
            self._gather_gradient(sequence, op, input_gradient=input_gradient)
            self._operator(sequence, op, time, input_gradient=input_gradient, weight_gradient=weight_gradient)
        share = 1.0 if input_gradient and weight_gradient else 0.5
        kernels = (share * int(time.backward_kernels) * self.view.rounds(op) for op, time in pairs)
        issue_s = self.view.issue_s(self.block, kernels, sequence.num_collectives) + sequence.host_s
        return Phase(tuple(sequence.steps), issue_s)

    def _gather_gradient(self, sequence: StepList, op: Operator, *, input_gradient: bool) -> None:
        """The gradient of a reduce-scattered partial sum arrives sharded: gather it before the producer."""
        reader = self.traffic.reduced_producers.get(op.name)
        producers = [name for name, by in self.traffic.reduced_producers.items() if by == reader]
        is_last_producer = bool(producers) and producers[-1] == op.name
        if reader and is_last_producer and self.view.sequence_parallel and input_gradient:
            _gather(sequence, f"{op.name}.gradient_gather", self.traffic.reduces[reader], self.view)

    def _operator(
        self,
        sequence: StepList,
        op: Operator,
        time: OperatorTime,
        *,
        input_gradient: bool,
        weight_gradient: bool,
    ) -> None:
        if op.kind == "attention" and input_gradient:
            self._attention(sequence, op, time)
            return
        if op.kind in experts.MOVES:
            if input_gradient:
                experts.Exchange(self.view, "input_gradient").backward(sequence, op, time)
            return
        start = sequence.frontier
        gathered = self._gather_input_again(sequence, op) if weight_gradient else None
        ends: tuple[int, ...] = ()
        if input_gradient and time.backward_input_s > 0:
            sequence.add(_kernel(op.name, "input_gradient", float(time.backward_input_s)), after=start)
        reduced = self._reduce_input_gradient(sequence, op) if input_gradient else None
        if weight_gradient and time.backward_weight_s > 0:
            waits = sequence.frontier if reduced is None else sequence.steps[reduced].after
            waits = (*waits, gathered) if gathered is not None else waits
            if reduced is not None and not self.view.overlap_backward:
                waits = (*waits, reduced)
            ends = (
                sequence.add(_kernel(op.name, "weight_gradient", float(time.backward_weight_s)), after=waits),
            )
        if reduced is not None:
            sequence.frontier = (reduced, *ends)

    def _attention(self, sequence: StepList, op: Operator, time: OperatorTime) -> None:
        """Input gradients of core attention, after another forward of it where that was not kept."""
        split = context.splits_context(self.view)
        if self.selective and split:
            context.attention_forward(sequence, op, self.view, kind="recompute")
        elif self.selective:
            sequence.add(Step(op.name, "recompute", COMPUTE, float(time.forward_s)))
        if split:
            context.attention_backward(sequence, op, self.view)
        else:
            sequence.add(_kernel(op.name, "input_gradient", float(time.backward_input_s)))

    def _gather_input_again(self, sequence: StepList, op: Operator) -> int | None:
        """Only the sequence shard of a gathered input is kept: the weight gradient needs all of it again."""
        size = self.traffic.gathers.get(op.name, 0.0)
        if not size or not self.view.sequence_parallel or not self.view.regathers_input or not op.weights:
            return None
        step = _collective(f"{op.name}.input_gather", "all_gather", size)
        return sequence.add(step, join=not self.view.overlap_backward)

    def _reduce_input_gradient(self, sequence: StepList, op: Operator) -> int | None:
        """Input gradients of column-parallel products are partial sums; the first reader closes the sum."""
        size = self.traffic.gathers.get(op.name, 0.0)
        if not size or op.kind == "embedding":
            return None
        return sequence.add(_reduce(f"{op.name}.gradient_reduce", size, self.view), join=False)


def _kernel(name: str, kind: str, duration_s: float) -> Step:
    return Step(name=name, kind=kind, stream=COMPUTE, duration_s=duration_s)


def _collective(name: str, op: str, size_bytes: float) -> Step:
    return Step(name=name, kind=TENSOR, stream=TENSOR, collective=CollectiveUse(TENSOR, op, size_bytes))


def _loss_statistics(op: Operator, view: RankView) -> Step:
    """Vocabulary-parallel cross entropy sums three fp32 numbers a row: maximum, target logit, denominator."""
    size = 4.0 * view.rows(op, region="tensor")
    return Step(
        f"{op.name}.sums", TENSOR, TENSOR, collective=CollectiveUse(TENSOR, "all_reduce", size, count=3)
    )


def _reduce(name: str, size_bytes: float, view: RankView) -> Step:
    op = "reduce_scatter" if view.sequence_parallel else "all_reduce"
    return _collective(name, op, size_bytes)
