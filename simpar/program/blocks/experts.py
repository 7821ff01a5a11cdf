"""Steps of a mixture of experts: tokens travel to the ranks that hold their experts, and back.

| | expert-parallel ranks (ep) | ranks that share an expert (etp) |
|---|---|---|
| dispatch | all-to-all of every copy of every token | all-gather of what arrived |
| combine | all-to-all back | reduce-scatter of partial sums |

A dispatcher that gathers ("all_gather") sends no copies: every rank gets all tokens of the group and takes those of its
experts, and partial sums of all of them are reduced and scattered back.

Without expert parallelism tokens are gathered before they are copied. Backward mirrors forward. The fullest rank sets
the time of an exchange. Where Python sorts what arrived, it does so for tokens and their scores at the dispatch and for
what goes back at the combine, a piece for each sender and expert [Megatron Core, sort_chunks_by_idxs without
``moe_permute_fusion``], and a forward waits for it. With ``ep_overlap`` an exchange runs beside the compute of another
microbatch: it is waited for only at the end of the block, and kernels do without the multiprocessors that it holds
[Megatron Core's token dispatcher; DeepSeek-AI 2024, arXiv 2412.19437, section 3.2]. With ``shared_expert_overlap`` a
block's own shared experts run there: what leads to their activation beside the dispatch, their last product beside the
combine, and so their gradients [Megatron Core, SharedExpertMLP].
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from simpar.architectures.graph import Block, Operator
from simpar.architectures.recompute import MODULES
from simpar.cost.products import OperatorTime
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.program.blocks.phases import COMPUTE, EXPERT, BlockStep, CollectiveUse, StepList
from simpar.program.blocks.rank_view import RankView
from simpar.units import Numbers, scalar_truth

RANKS = "ep"
SLICES = "etp"
MOVES = ("dispatch", "combine")
LAST = "shared_down"
"""The last product of shared experts."""


def run_beside(layout: Layout, block: Block) -> Mapping[str, tuple[str, ...]]:
    """Operators of a block's shared experts that run beside the exchange of each of MOVES, by the name of that one."""
    if not layout.shared_expert_overlap or not scalar_truth(layout.ep > 1):
        return {}
    moves = {op.kind: op.name for op in block.operators if op.kind in MOVES}
    shared = [op.name for op in block.operators if op.name.partition(".")[0] in MODULES["shared_experts"]]
    parts = {move: tuple(name for name in shared if name.startswith(LAST) == (move == "combine")) for move in MOVES}
    return {moves[move]: part for move, part in parts.items() if part and move in moves}


@dataclass(frozen=True)
class TokenExchange:
    """Steps of tokens that move between the ranks that share a mixture; ``kind`` is that of their kernels."""

    view: RankView
    kind: str

    def run(
        self,
        steps: StepList,
        op: Operator,
        time: OperatorTime,
        *,
        backward: bool,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Add a dispatch or a combine; gradients of a combine travel like a dispatch, and the other way round.

        ``beside`` adds kernels that wait for what the exchange waits for; what follows waits for both.
        """
        outward = (op.kind == "dispatch") != backward
        kernel_s = time.backward_input_s if backward else time.forward_s
        view, name = self.view, f"{op.name}.{'gradient_' if backward else ''}"
        spread, kernel = scalar_truth(view.job.layout.ep > 1), BlockStep.kernel(op.name, self.kind, kernel_s)
        if outward:
            if not spread and view.sequence_parallel:
                self._slices(steps, name, "all_gather", view.token_bytes)
            if not backward:
                self._count_tokens(steps)
            steps.add(kernel)
            start = steps.frontier
            if spread and self._gathers:
                self._among_ranks(steps, name, "all_gather")
            elif spread:
                self._between_ranks(steps, name, view.sent_bytes)
                if not backward:
                    self._send_scores(steps, name)
                self._slices(steps, name, "all_gather", view.routed_bytes * self._sharers)
                self._sort_on_host(steps, 1 if backward else 2, backward=backward)
            _run_beside(steps, start, beside)
            return
        start = steps.frontier
        if spread:
            self._slices(steps, name, "reduce_scatter", view.routed_bytes * self._sharers)
            if self._gathers:
                self._among_ranks(steps, name, "reduce_scatter")
            else:
                self._sort_on_host(steps, 2 if backward else 1, backward=backward)
                self._between_ranks(steps, name, view.routed_bytes)
                if backward:
                    self._send_scores(steps, name)
        _run_beside(steps, start, beside)
        steps.add(kernel)
        if not spread:
            summed = "reduce_scatter" if view.sequence_parallel else "all_reduce"
            self._slices(steps, name, summed, view.token_bytes)

    @property
    def _sharers(self) -> Numbers:
        """Ranks that share an expert."""
        return self.view.job.layout.expert_tensor_parallel

    @property
    def _gathers(self) -> bool:
        """Whether all tokens of the expert-parallel ranks go to each of them."""
        return self.view.job.layout.dispatcher == "all_gather"

    def _among_ranks(self, steps: StepList, name: str, op: str) -> None:
        """Add a collective of the tokens of all expert-parallel ranks, without copies."""
        self._exchange(steps, f"{name}{op}", CollectiveUse(RANKS, op, self.view.gathered_bytes))

    def _count_tokens(self, steps: StepList) -> None:
        """Add the wait in which the device idles until the host knows the sizes of the next kernels."""
        if self._sizes_found_late and self.view.job.stack.experts.sync_s > 0:
            steps.add(BlockStep("token counts", "host", COMPUTE, self.view.job.stack.experts.sync_s))

    @property
    def _sizes_found_late(self) -> bool:
        """Whether the host must read sizes from the device: not with a capacity factor, nor in a captured step."""
        job = self.view.job
        return job.layout.capacity_factor is None and "step" not in job.stack.launch.graphs

    def _between_ranks(self, steps: StepList, name: str, size_bytes: Numbers) -> None:
        """Add one all-to-all of the copies of a rank's own tokens."""
        layout = self.view.job.layout
        if self._sizes_found_late and layout.token_dispatch == "per_expert":
            steps.host_s += self.view.job.stack.experts.exchange_host_s
        self._exchange(steps, f"{name}all_to_all", CollectiveUse(RANKS, self.view.exchange_op, size_bytes))

    def _sort_on_host(self, steps: StepList, sorts: int, *, backward: bool) -> None:
        """Add the host's time to sort ``sorts`` tensors piece by piece; in a forward it has the device wait."""
        habits, layout = self.view.job.stack.experts, self.view.job.layout
        if not habits.sorts_on_host or not self._sizes_found_late or layout.token_dispatch != "per_expert":
            return
        assert self.view.dims.expert is not None, "only mixtures route tokens"
        local = self.view.dims.expert["experts"]
        steps.host_s = steps.host_s + sorts * habits.piece_s * local * layout.ep * self._sharers * (local > 1)
        steps.in_turn = steps.in_turn or not backward

    def _send_scores(self, steps: StepList, name: str) -> None:
        """Add the exchange of the scores that weigh what experts return, or of their gradients."""
        if self.view.job.stack.experts.sends_scores and self.view.job.layout.token_dispatch == "per_expert":
            use = CollectiveUse(RANKS, "all_to_all", self.view.scores_bytes)
            self._exchange(steps, f"{name}scores", use)

    def _exchange(self, steps: StepList, name: str, use: CollectiveUse) -> None:
        """Add a collective of the expert-parallel ranks; overlapped, it waits for earlier exchanges alone."""
        sms = self.view.job.kernels.device.share_held(self.view.job.stack.experts.exchange_sms)
        step = replace(BlockStep.moving(name, use, EXPERT), sms=sms)
        if self.view.job.layout.ep_overlap:
            earlier = [index for index, other in enumerate(steps.steps) if other.stream == EXPERT]
            steps.shared = True
            steps.add(step, after=tuple(earlier[-1:]), join=False)
        else:
            steps.add(step)

    def _slices(self, steps: StepList, name: str, op: str, size_bytes: Numbers) -> None:
        """Add a collective among the ranks that share an expert, if several do."""
        if scalar_truth(self._sharers > 1):
            steps.add(BlockStep.moving(f"{name}{op}", CollectiveUse(SLICES, op, size_bytes)))


def _run_beside(steps: StepList, start: tuple[int, ...], beside: Callable[[], None] | None) -> None:
    """Add the kernels of ``beside`` behind ``start``; the next step waits for them and for the frontier so far."""
    if beside is None:
        return
    waited, steps.frontier = steps.frontier, start
    beside()
    steps.frontier = (*waited, *(at for at in steps.frontier if at not in waited))
