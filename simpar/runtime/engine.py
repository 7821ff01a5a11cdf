"""One rank's training engine: forward and backward of a global batch's local part, then the update."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from simpar.dataclass import dataclass
from simpar.plan.plan import Plan
from simpar.runtime.boundaries import PackedDocuments, within
from simpar.runtime.casts import cast_once
from simpar.runtime.loss import mean_loss
from simpar.runtime.measure import Clock
from simpar.runtime.pipeline import PipelineRank
from simpar.runtime.ranks import Ranks
from simpar.runtime.servers import RemoteUpdate
from simpar.runtime.sharded import plain
from simpar.runtime.stage_pipeline import StagePipeline
from simpar.runtime.update import Owned, StepUpdate


@dataclass
class TrainingEngine:
    """Modules by virtual stage, their parameters, and how a step runs through them.

    ``wrapped`` are the stages as they are called (under DDP); ``pipeline`` is None for a single stage.
    """

    plan: Plan
    ranks: Ranks
    stages: Mapping[int, Any]
    wrapped: Mapping[int, Any]
    owned: list[Owned]
    update: StepUpdate | RemoteUpdate
    microbatches: int
    pipeline: PipelineRank | StagePipeline | None = None
    clock: Clock = field(default_factory=lambda: Clock(torch.device("cpu")))
    documents: list[PackedDocuments] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before the backward, for gradients in few bits."""
        return self.update.scale if isinstance(self.update, StepUpdate) else 1.0

    def forward_backward(self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """Gradients of the mean loss over this rank's sequences int64[batch, seq]; the loss on the last stage.

        Targets are int64[batch, seq], or [batch, 1 + further, seq] for a model that predicts further tokens.
        ``positions`` on the host, int64[batch, seq], are those of tokens in documents that are kept apart.
        """
        self._note(positions, tokens.device)
        with self._loss_context(), cast_once():
            if self.pipeline is not None:
                losses = self.pipeline.step(tokens, targets)
                total = torch.stack([plain(loss.detach()).double() for loss in losses]).sum() if losses else None
                return None if total is None else total / self.scale
            return self._accumulate(tokens, targets)

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=tokens.device)
        batches = self._batches(tokens, targets)
        for number, batch in enumerate(batches):
            with self._synchronised(last=number == len(batches) - 1), within(self._documents_of(number)):
                with self.clock.phase("forward"):
                    loss = self._loss(*batch)
                with self.clock.phase("backward"):
                    (loss if self.scale == 1.0 else loss * self.scale).backward()
                    self.update.collect()
            total += plain(loss.detach())
        return total

    def _note(self, positions: Tensor | None, device: Any) -> None:
        """Take note of the documents of every microbatch."""
        parts = () if positions is None else positions.chunk(self.microbatches)
        self.documents = [PackedDocuments.of(each, device) for each in parts]

    def _documents_of(self, number: int) -> PackedDocuments | None:
        return self.documents[number] if self.documents else None

    def _synchronised(self, *, last: bool) -> AbstractContextManager[Any]:
        """Under DDP gradients are reduced with the last microbatch only, under FSDP where the plan has them wait."""
        model = self.wrapped[0]
        if isinstance(model, FSDPModule) and self.plan.data_parallel.defer_grad_reduce:
            model.set_requires_gradient_sync(last)
        return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()

    def _loss_context(self) -> AbstractContextManager[Any]:
        return loss_parallel() if self.plan.mesh.tp > 1 else nullcontext()

    def step(
        self, tokens: Tensor, targets: Tensor, factor: float = 1.0, positions: Tensor | None = None
    ) -> tuple[Tensor | None, float | None]:
        """One optimizer step; returns this rank's mean loss (None unless on the last stage), and the gradient norm.

        Loss and gradients are multiplied by a ``factor``. The norm is None unless it was asked for.
        """
        loss = self.forward_backward(tokens, targets, positions)
        return None if loss is None else loss * factor, self.update.step(self.clock, factor)

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """The mean loss of sequences without dropout and without gradients; None unless on the last stage.

        Shapes are those of :meth:`forward_backward`.
        """
        self._note(positions, tokens.device)
        for module in (*self.stages.values(), *self.wrapped.values()):
            module.eval()
        with self._loss_context():
            if isinstance(self.pipeline, PipelineRank):
                losses = [loss / self.scale for loss in self.pipeline.evaluate(tokens, targets)]
            else:
                assert self.pipeline is None, "stages of their own are refused"
                losses = []
                for number, batch in enumerate(self._batches(tokens, targets)):
                    with within(self._documents_of(number)):
                        losses.append(self._loss(*batch))
        for module in (*self.stages.values(), *self.wrapped.values()):
            module.train()
            for unit in module.modules():
                if isinstance(unit, FSDPModule):
                    unit.reshard()
        return torch.stack([plain(loss).double() for loss in losses]).sum() if losses else None

    def _batches(self, tokens: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The microbatches: inputs and targets of each."""
        return list(zip(tokens.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True))

    def _loss(self, inputs: Tensor, wanted: Tensor) -> Tensor:
        """The share of a microbatch in the mean loss, including that of further tokens if these are predicted."""
        model = self.wrapped[0]
        outputs = model(inputs, wanted[:, :-1]) if wanted.ndim > inputs.ndim else model(inputs)
        return mean_loss(outputs, wanted) / self.microbatches

    def measure(self, clock: Clock) -> None:
        """Record the time of forward, backward, communication after it, and update with a clock."""
        self.clock = clock
        if self.pipeline is not None:
            self.pipeline.measure(clock)

    def follow_documents(self) -> None:
        """Let a pipeline's stages know whose documents the microbatch has that they work on."""
        if isinstance(self.pipeline, PipelineRank):
            self.pipeline.follow(lambda: self.documents)


def average_loss(loss: Tensor | None, ranks: Ranks, device: Any) -> float:
    """The loss of the whole batch on every rank: the mean over the ranks of the last stage."""
    value = torch.zeros(2, dtype=torch.float64, device=device)
    if loss is not None:
        value += torch.stack([loss, torch.ones_like(loss)])
    if ranks.world_size > 1:
        dist.all_reduce(value)
    return float(value[0] / value[1])
