"""The plan's action table executed by torch.distributed.pipelining.

torch's runtime takes compute actions per rank, adds sends, receives and unsharding, and executes them. The table is the
one that was simulated and verified; torch's own schedule classes are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from simpar.dataclass import dataclass
from simpar.plan.schedules.actions import Schedule
from simpar.runtime.boundaries import PackedDocuments, following
from simpar.runtime.measure import Clock
from simpar.runtime.ranks import Ranks

BACKWARD = (
    _ComputationType.FULL_BACKWARD, _ComputationType.BACKWARD_INPUT, _ComputationType.BACKWARD_WEIGHT,
    _ComputationType.RECV_B, _ComputationType.REDUCE_GRAD,
)  # fmt: skip
BACKWARD_PARTS = (*BACKWARD, _ComputationType.SEND_B)


@dataclass(frozen=True)
class MicrobatchTensors:
    """Meta tensors of one microbatch: the tokens, the hidden states between stages, the logits.

    The last stage has one output of logits or, if further tokens are predicted, several (``outputs``).
    """

    tokens: Tensor
    hidden: Tensor
    logits: Tensor
    outputs: int = 1

    @staticmethod
    def of(batch: int, lengths: tuple[int, int], widths: tuple[int, int], dtype: Any) -> MicrobatchTensors:
        """Shapes for (tokens, residual rows) in ``lengths`` and (hidden, vocab) in ``widths``."""
        tokens = torch.empty(batch, lengths[0], dtype=torch.int64, device="meta")
        hidden = torch.empty(batch, lengths[1], widths[0], dtype=dtype, device="meta", requires_grad=True)
        return MicrobatchTensors(tokens, hidden, torch.empty(batch, lengths[0], widths[1], dtype=dtype, device="meta"))


class PipelineRank:
    """One rank of a pipeline: its stages, and torch's runtime loaded with the action table."""

    def __init__(
        self,
        schedule: Schedule,
        stages: dict[int, Any],
        shapes: MicrobatchTensors,
        loss: Callable[..., Tensor],
        ranks: Ranks,
    ) -> None:
        last = schedule.num_stages - 1
        self.first, self.last = 0 in stages, last in stages
        built = [
            PipelineStage(
                module, index, schedule.num_stages, ranks.device, group=ranks.pipeline_group,
                input_args=(shapes.tokens if index == 0 else shapes.hidden,),
                output_args=(shapes.logits,) * shapes.outputs if index == last else (shapes.hidden,),
            )
            for index, module in sorted(stages.items())
        ]  # fmt: skip
        self.stages = built
        self.runtime = _PipelineScheduleRuntime(built, schedule.num_microbatches, loss_fn=loss, scale_grads=False)
        self.runtime._prepare_schedule_with_comms(actions(schedule))

    def rest(self, stages: int) -> None:
        """Leave out the backward of the first ``stages`` stages, which train nothing, and the gradients sent there."""
        for rank, table in self.runtime.pipeline_order_with_comms.items():
            kept = [action for action in table if not _goes_below(action, stages)]
            self.runtime.pipeline_order_with_comms[rank] = kept

    def step(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Forward and backward of all microbatches of int64[batch, seq]; their losses on the last stage.

        Targets are int64[batch, seq], or [batch, 1 + further, seq] for a model that predicts further tokens.
        """
        return self._run(self.runtime.step, tokens, targets)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """The same losses from the forwards of the table only."""
        table = self.runtime.pipeline_order_with_comms
        forwards = {
            rank: [each for each in actions if each.computation_type not in BACKWARD_PARTS]
            for rank, actions in table.items()
        }
        self.runtime.pipeline_order_with_comms = forwards
        try:
            return self._run(self.runtime.eval, tokens, targets)
        finally:
            self.runtime.pipeline_order_with_comms = table

    def _run(self, call: Callable[..., object], tokens: Tensor, targets: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (tokens,) if self.first else ()
        wanted = targets if self.last else None
        named = {"further": targets[:, :-1]} if self.last and targets.ndim > 2 else {}
        call(*inputs, target=wanted, losses=losses, return_outputs=False, **named)
        return losses

    def follow(self, documents: Callable[[], Sequence[PackedDocuments]]) -> None:
        """Run every pass within the documents of its microbatch."""
        for stage in self.stages:
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                setattr(stage, name, following(getattr(stage, name), documents))

    def measure(self, clock: Clock) -> None:
        """Record the stages' own work; the rest of a step is messages and waiting."""
        for stage in self.stages:
            stage.forward_one_chunk = clock.timed(stage.forward_one_chunk, "forward")
            stage.backward_one_chunk = clock.timed(stage.backward_one_chunk, "backward")
            stage.backward_weight_one_chunk = clock.timed(stage.backward_weight_one_chunk, "backward")


def _goes_below(action: Any, stages: int) -> bool:
    """Whether an action belongs to the backward of the first ``stages`` stages."""
    if action.computation_type == _ComputationType.SEND_B:
        return bool(action.stage_index <= stages) and stages > 0
    return bool(action.stage_index < stages) and action.computation_type in BACKWARD


def actions(schedule: Schedule) -> dict[int, list[Any]]:
    """The table as torch's actions; overlapped pairs run one after the other."""
    return {rank: [_Action.from_str(text) for text in texts(schedule, rank)] for rank in range(schedule.num_ranks)}


def texts(schedule: Schedule, rank: int) -> Sequence[str]:
    """One rank's actions as torch writes them."""
    letters, stages, microbatches = schedule.letters(rank)
    return [
        f"{stage}{letter}{microbatch}"
        for letter, stage, microbatch in zip(letters, stages.tolist(), microbatches.tolist(), strict=True)
    ]
