"""Steps of attention under context parallelism: what moves between the ranks, and beside which kernels.

A ring sends the next block of keys and values while the kernels of the present one run; in backward the gradient of
a block follows it round the ring, one hop behind. All ranks of a ring hop together, as one permute. Keys that are
gathered, and the heads of Ulysses, are exchanged in front of the kernels and behind them. See
:mod:`simpar.cost.context`.
"""

from __future__ import annotations

import numpy as np

from simpar.architectures.graph import Block, Operator, evaluate
from simpar.cost.context import ContextSplit, block_times_s, key_value_elements, query_elements
from simpar.dataclass import dataclass
from simpar.program.blocks.documents import exchange_host_s, loops_over_documents
from simpar.program.blocks.phases import CONTEXT, BlockStep, CollectiveUse, StepList
from simpar.program.blocks.rank_view import ANY, RankView
from simpar.units import Numbers, floats, scalar_truth

RING = "cp"
HEADS = "cp_heads"
OF_STATES = ("convolution", "scan")
"""Kinds of operators around which states' heads are exchanged."""


def splits_context(view: RankView) -> bool:
    """Whether the rank's queries meet keys of other ranks."""
    return max(int(view.tensor[by]) for by in ("blocks", "gathered", "ulysses")) > 1


def exchange_states(
    steps: StepList, block: Block, op: Operator, view: RankView, *, ahead: bool, backward: bool = False
) -> None:
    """Add the all-to-all in front of a state-space layer's convolution (``ahead``), or the ones behind its scan.

    A state runs along the whole sequence, so ranks exchange tokens for heads: everything that the first product made
    goes there, the scan's result (and the gate, where a norm reads both) comes back. Groups that are fewer than the
    ranks are sent to several [Megatron-LM, core/ssm/mamba_context_parallel.py].
    """
    moved = _entering(block, op, view) if ahead else _leaving(block, op, view)
    for number, elements in enumerate(moved):
        kind = RING if int(view.job.layout.ulysses_ranks) == 1 else HEADS
        what = "gradients" if backward else ("heads" if ahead else "tokens")
        use = CollectiveUse(kind, "all_to_all", elements * view.compute_bytes)
        steps.add(BlockStep.moving(f"{op.name}.all_to_all {what}{number or ''}", use, CONTEXT))


def _entering(block: Block, op: Operator, view: RankView) -> list[Numbers]:
    """Elements that go to the ranks of their heads in front of a convolution that a scan reads."""
    if op.kind != "convolution" or not any(each.kind == "scan" and op.name in each.inputs for each in block.operators):
        return []
    dims = view.tensor
    made = block.operator(op.inputs[0])
    groups, ranks = dims["mamba_groups"], int(view.job.layout.cp)
    again = np.maximum(ranks / groups, 1.0) - 1.0
    shared = floats(dims["batch"] * dims["seq"]) * 2.0 * dims["state"] * groups * again
    return [floats(evaluate(made.rows, dims)) * floats(evaluate(made.columns, dims)) + shared]


def _leaving(block: Block, op: Operator, view: RankView) -> list[Numbers]:
    """Elements that come back behind a scan."""
    if op.kind != "scan":
        return []
    result = floats(evaluate(op.rows, view.tensor)) * floats(evaluate(op.columns, view.tensor))
    gates = {each.name for each in block.operators if op.name in each.inputs}
    normed = any(each.kind == "norm" and gates.intersection(each.inputs) for each in block.operators)
    return [result] * (2 if normed else 1)


def attention(steps: StepList, op: Operator, view: RankView, kind: str) -> None:
    """Add attention with its collectives; ``kind`` is forward, recompute or input_gradient.

    In the last of these, gradients of gathered keys and values are reduce-scattered to their ranks.
    """
    split, backward = _RankAttention.of(op, view), kind == "input_gradient"
    inputs, output = ("query", "key", "value"), ("output",)
    split.exchange_heads(steps, *(output if backward else inputs))
    split.share_keys(steps, "all_gather")
    split.blocks(steps, kind, backward=backward)
    if backward:
        split.share_keys(steps, "reduce_scatter")
    split.exchange_heads(steps, *(inputs if backward else output))


@dataclass(frozen=True)
class _RankAttention:
    """One attention operator on one rank; sizes are bytes of the local tensors."""

    op: Operator
    view: RankView
    split: ContextSplit
    bytes_of: dict[str, Numbers]

    @staticmethod
    def of(op: Operator, view: RankView) -> _RankAttention:
        dims, width = view.tensor, view.compute_bytes
        keys, values = (floats(size) * width for size in key_value_elements(op, dims))
        queries = floats(query_elements(op, dims)) * width
        output = queries * values / keys
        layout, place = view.job.layout, view.context_rank
        if place != ANY:
            place //= int(layout.ulysses_ranks)
        split = ContextSplit(int(dims["blocks"]), int(dims["gathered"]), layout.cp_balance, place)
        sizes = {"query": queries, "key": keys, "value": values, "output": output}
        return _RankAttention(op, view, split, sizes)

    def exchange_heads(self, steps: StepList, *tensors: str) -> None:
        """Ulysses: one all-to-all per tensor, heads for tokens or back."""
        ranks = self.view.tensor["ulysses"]
        for tensor in tensors if ranks > 1 else ():
            if loops_over_documents(self.view.job):
                steps.host_s = steps.host_s + exchange_host_s(self.view.job, ranks)
                steps.in_turn = True
            self._move(steps, tensor, CollectiveUse(HEADS, "all_to_all", self.bytes_of[tensor]))

    def share_keys(self, steps: StepList, op: str) -> None:
        """Collectives of all keys, then of all values, or of their gradients, where they are gathered."""
        for tensor in ("key", "value") if self.split.gathered > 1 else ():
            if scalar_truth(self.bytes_of[tensor] == 0):
                continue
            self._move(steps, tensor, CollectiveUse(RING, op, self.bytes_of[tensor] * self.split.gathered))

    def blocks(self, steps: StepList, kind: str, *, backward: bool) -> None:
        """Kernels of one block after the other, while the next block arrives.

        In backward, the gradient of a block travels on once the block's kernels have added to it. A masked block takes
        no time, but its hops keep ranks in step.
        """
        model = self.view.job.kernels
        times = block_times_s(self.op, self.view.tensor, model, self.split, backward=backward)
        begin = arrived = steps.frontier
        gradient: tuple[int, ...] = ()
        for number, duration_s in enumerate(times):
            here = arrived
            if number + 1 < len(times):
                arrived = (self._hop(steps, "keys and values", after=arrived),)
            after = tuple(dict.fromkeys((*begin, *here)))
            kernel = steps.add(BlockStep.kernel(self.op.name, kind, duration_s), after=after)
            if backward and len(times) > 1:
                gradient = (self._hop(steps, "gradients", after=(*gradient, kernel)),)
                steps.frontier = (kernel, *gradient)

    def _hop(self, steps: StepList, what: str, *, after: tuple[int, ...]) -> int:
        use = CollectiveUse(RING, "permute", self.bytes_of["key"] + self.bytes_of["value"])
        return steps.add(BlockStep.moving(f"{self.op.name}.permute {what}", use, CONTEXT), after=after, join=False)

    def _move(self, steps: StepList, tensor: str, use: CollectiveUse) -> None:
        steps.add(BlockStep.moving(f"{self.op.name}.{use.op} {tensor}", use, CONTEXT))
