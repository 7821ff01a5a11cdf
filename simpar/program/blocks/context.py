"""Steps of attention under context parallelism: what moves between the ranks, and beside which kernels.

A ring sends the next block of keys and values while the kernels of the present one run; in backward the gradient of
a block follows it round the ring, one hop behind. All ranks of a ring hop together, as one permute. Collected keys
and the heads of Ulysses are exchanged in front of the kernels and after them. See :mod:`simpar.cost.context`.
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.context import (
    ContextSplit,
    block_times_s,
    has_context_parallelism,
    key_value_elements,
    query_elements,
)
from simpar.models.graph import Operator
from simpar.program.blocks.phases import COMPUTE, CONTEXT, CollectiveUse, Step, StepList
from simpar.program.blocks.rank_view import RankView

RING = "cp"
HEADS = "cp_heads"


def splits_context(view: RankView) -> bool:
    """Whether the rank's queries meet keys of other ranks."""
    return has_context_parallelism(view.tensor)


def attention_forward(steps: StepList, op: Operator, view: RankView, *, kind: str) -> None:
    """Attention with everything that moves for it; ``kind`` is forward or recompute."""
    split = _Attention.of(op, view)
    split.exchange_heads(steps, "query", "key", "value")
    split.gather(steps)
    split.forward(steps, kind)
    split.exchange_heads(steps, "output")


def attention_backward(steps: StepList, op: Operator, view: RankView) -> None:
    """Gradients of queries, keys and values."""
    split = _Attention.of(op, view)
    split.exchange_heads(steps, "output")
    split.gather(steps)
    split.backward(steps)
    split.reduce(steps)
    split.exchange_heads(steps, "query", "key", "value")


@dataclass(frozen=True)
class _Attention:
    """One attention operator on one rank; sizes are bytes of the local tensors."""

    op: Operator
    view: RankView
    split: ContextSplit
    bytes_of: dict[str, float]

    @staticmethod
    def of(op: Operator, view: RankView) -> _Attention:
        dims, width = view.tensor, view.compute_bytes
        keys, values = (float(size) * width for size in key_value_elements(op, dims))
        queries = float(query_elements(op, dims)) * width
        output = queries * values / keys
        choice = view.job.plan.context_parallel
        split = ContextSplit(
            dims["blocks"], dims["gathered"], choice.cp_balance or "zigzag", view.ring_position
        )
        sizes = {"query": queries, "key": keys, "value": values, "output": output}
        return _Attention(op, view, split, sizes)

    def exchange_heads(self, steps: StepList, *tensors: str) -> None:
        """Ulysses: one all-to-all a tensor, heads for tokens or back."""
        if self.view.tensor["ulysses"] > 1:
            for tensor in tensors:
                self._add(steps, tensor, "all_to_all", self.bytes_of[tensor], group=HEADS)

    def gather(self, steps: StepList) -> None:
        """All keys, then all values."""
        for tensor in ("key", "value") if self.split.gathered > 1 else ():
            self._add(steps, tensor, "all_gather", self.bytes_of[tensor] * self.split.gathered)

    def reduce(self, steps: StepList) -> None:
        """Gradients of gathered keys and values go home."""
        for tensor in ("key", "value") if self.split.gathered > 1 else ():
            self._add(steps, tensor, "reduce_scatter", self.bytes_of[tensor] * self.split.gathered)

    def forward(self, steps: StepList, kind: str) -> None:
        """Block after block; the next block arrives meanwhile."""
        times = self._block_times(backward=False)
        begin = arrived = steps.frontier
        for number, duration_s in enumerate(times):
            here = arrived
            if number + 1 < len(times):
                arrived = (self._hop(steps, "keys and values", after=arrived),)
            self._kernel(steps, kind, duration_s, after=(*begin, *here))

    def backward(self, steps: StepList) -> None:
        """As forward; the gradient of a block travels on once the block's kernels have added to it."""
        times = self._block_times(backward=True)
        begin = arrived = steps.frontier
        gradient: tuple[int, ...] = ()
        for number, duration_s in enumerate(times):
            here = arrived
            if number + 1 < len(times):
                arrived = (self._hop(steps, "keys and values", after=arrived),)
            kernel = self._kernel(steps, "input_gradient", duration_s, after=(*begin, *here))
            if len(times) > 1:
                gradient = (self._hop(steps, "gradients", after=(*gradient, kernel)),)
                steps.frontier = (kernel, *gradient)

    def _block_times(self, *, backward: bool) -> list[float]:
        return block_times_s(self.op, self.view.tensor, self.view.job.kernels, self.split, backward=backward)

    def _kernel(self, steps: StepList, kind: str, duration_s: float, *, after: tuple[int, ...]) -> int:
        """Kernels of one block; a masked block takes no time but keeps ranks in step."""
        return steps.add(Step(self.op.name, kind, COMPUTE, duration_s), after=tuple(dict.fromkeys(after)))

    def _hop(self, steps: StepList, what: str, *, after: tuple[int, ...]) -> int:
        use = CollectiveUse(RING, "permute", self.bytes_of["key"] + self.bytes_of["value"])
        step = Step(f"{self.op.name}.permute {what}", CONTEXT, CONTEXT, collective=use)
        return steps.add(step, after=after, join=False)

    def _add(self, steps: StepList, tensor: str, op: str, size_bytes: float, *, group: str = RING) -> None:
        use = CollectiveUse(group, op, size_bytes)
        steps.add(Step(f"{self.op.name}.{op} {tensor}", CONTEXT, CONTEXT, collective=use))
