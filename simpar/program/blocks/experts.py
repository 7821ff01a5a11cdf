"""Steps of a mixture of experts: tokens travel to the ranks that hold their experts, and back.

| | expert-parallel ranks (ep) | ranks that share an expert (etp) |
|---|---|---|
| dispatch | all-to-all of every copy of every token | all-gather of what arrived |
| combine | all-to-all back | reduce-scatter of partial sums |

Without expert parallelism tokens are gathered before they are copied. Backward mirrors it. The fullest rank sets the
time of an exchange. Run beside the compute of another microbatch, an exchange is only waited for at the end of the
block [Megatron Core's token dispatcher; DeepSeek-AI 2024, arXiv 2412.19437, section 3.2].
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.operators import OperatorTime
from simpar.models.graph import Operator
from simpar.program.blocks.phases import COMPUTE, EXPERT, TENSOR, CollectiveUse, Step, StepList
from simpar.program.blocks.rank_view import RankView

RANKS = "ep"
SLICES = "etp"
MOVES = ("dispatch", "combine")


@dataclass(frozen=True)
class Exchange:
    """What moves between the ranks that share a mixture; sizes in bytes."""

    view: RankView
    kind: str

    def forward(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Dispatch or combine in a forward pass."""
        self._run(steps, op, float(time.forward_s), outward=op.kind == "dispatch", backward=False)

    def backward(self, steps: StepList, op: Operator, time: OperatorTime) -> None:
        """Their gradients: those of a combine travel like a dispatch, and the other way round."""
        self._run(steps, op, float(time.backward_input_s), outward=op.kind == "combine", backward=True)

    def _run(self, steps: StepList, op: Operator, kernel_s: float, *, outward: bool, backward: bool) -> None:
        kernel = Step(op.name, self.kind, COMPUTE, kernel_s)
        name = f"{op.name}.{'gradient_' if backward else ''}"
        if outward:
            self._gather_tokens(steps, name)
            self._count_tokens(steps, backward=backward)
            steps.add(kernel)
            self._between_ranks(steps, name)
            self._slices(steps, name, "all_gather")
            return
        self._slices(steps, name, "reduce_scatter")
        self._between_ranks(steps, name)
        steps.add(kernel)
        self._reduce_tokens(steps, name)

    @property
    def _slices_of_expert(self) -> int:
        return self.view.job.plan.mesh.expert_tensor_parallel

    @property
    def _spread(self) -> bool:
        return self.view.job.plan.mesh.ep > 1

    def _count_tokens(self, steps: StepList, *, backward: bool) -> None:
        """The device idles until the host knows the sizes of what it launches next."""
        wait_s = self.view.job.stack.experts.sync_s
        if wait_s and not backward and self._sizes_found_late:
            steps.add(Step("token counts", "host", COMPUTE, wait_s))

    @property
    def _sizes_found_late(self) -> bool:
        """Whether the host has to ask for sizes: a cap makes them known, a captured step leaves them on the device."""
        job = self.view.job
        return job.plan.experts.capacity_factor is None and "step" not in job.stack.launch.graphs

    def _between_ranks(self, steps: StepList, name: str) -> None:
        """One all-to-all of the copies of a rank's own tokens."""
        if not self._spread:
            return
        if self._sizes_found_late and self.view.job.plan.experts.token_dispatch == "per_expert":
            steps.host_s += self.view.job.stack.experts.exchange_host_s
        use = CollectiveUse(RANKS, "all_to_all", self.view.routed_bytes)
        step = Step(f"{name}all_to_all", EXPERT, EXPERT, collective=use)
        if self.view.overlap_experts:
            steps.add(step, after=self._last_exchange(steps), join=False)
        else:
            steps.add(step)

    @staticmethod
    def _last_exchange(steps: StepList) -> tuple[int, ...]:
        earlier = [index for index, step in enumerate(steps.steps) if step.stream == EXPERT]
        return (earlier[-1],) if earlier else ()

    def _slices(self, steps: StepList, name: str, op: str) -> None:
        """Among the ranks that share an expert: copies that arrived at all of them."""
        if self._spread and self._slices_of_expert > 1:
            size = self.view.routed_bytes * self._slices_of_expert
            steps.add(Step(f"{name}{op}", TENSOR, TENSOR, collective=CollectiveUse(SLICES, op, size)))

    def _gather_tokens(self, steps: StepList, name: str) -> None:
        if not self._spread and self._slices_of_expert > 1 and self.view.sequence_parallel:
            self._tokens(steps, name, "all_gather")

    def _reduce_tokens(self, steps: StepList, name: str) -> None:
        if not self._spread and self._slices_of_expert > 1:
            self._tokens(steps, name, "reduce_scatter" if self.view.sequence_parallel else "all_reduce")

    def _tokens(self, steps: StepList, name: str, op: str) -> None:
        use = CollectiveUse(SLICES, op, self.view.token_bytes)
        steps.add(Step(f"{name}{op}", TENSOR, TENSOR, collective=use))
