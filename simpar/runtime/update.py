"""The update of one rank: gradients made whole, clipped, and given to an optimizer that works on local shards.

Elementwise optimizers need no other rank's part of a tensor, so every parameter, DTensor or not, is optimized
through a plain tensor that shares its storage. ZeRO-1 (torch's ZeroRedundancyOptimizer) then also works under
tensor parallelism, where it cannot broadcast DTensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from simpar.plan.plan import Plan
from simpar.runtime.decoder import TABLE
from simpar.runtime.job import Learning
from simpar.runtime.measure import Clock
from simpar.runtime.ranks import Ranks
from simpar.runtime.reduction import average
from simpar.runtime.rounds import meeting_of
from simpar.runtime.strategy import Strategy
from simpar.runtime.tensor_parallel import sum_partial

Tensor = Any
BETAS, EPS = (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class Owned:
    """A parameter of this rank: its name, itself, and the plain tensor that the optimizer sees.

    ``partial``: its gradient is one tensor-parallel rank's share of a sum. ``twin``: it is the second copy of
    tied embeddings, on the last stage. ``expert``: it is an expert's, whose copies are on ranks of their own.
    """

    name: str
    parameter: Any
    local: nn.Parameter
    partial: bool = False
    twin: bool = False
    expert: bool = False

    @staticmethod
    def of(
        name: str, parameter: Any, *, partial: bool = False, twin: bool = False, expert: bool = False
    ) -> Owned:
        """Wrap a module's parameter."""
        plain = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return Owned(name, parameter, nn.Parameter(plain.detach()), partial, twin, expert)

    def gradient(self) -> Tensor:
        """The local part of the gradient, complete in the parameter's own placements; zero where there is none."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.local)
        if isinstance(gradient, DTensor):
            wanted = self.parameter.placements
            if gradient.placements != wanted:
                gradient = gradient.redistribute(gradient.device_mesh, wanted)
            return gradient.to_local()
        return gradient


@dataclass(frozen=True)
class Scope:
    """What an update needs to know: resolved plan, the optimizer's numbers, strategy, this rank.

    ``embedding_group`` joins the ranks of both copies of tied embeddings; None where they are on one rank.
    """

    plan: Plan
    learning: Learning
    strategy: Strategy
    ranks: Ranks
    embedding_group: Any = None


def make_optimizers(scope: Scope, owned: Sequence[Owned]) -> list[Any]:
    """The plan's optimizer over local parameters; its states shared out over the ranks under ZeRO-1.

    Experts that are spread have one of their own then, whose states the ranks share that hold the same experts.
    """
    ranks, sharded = scope.ranks, scope.strategy.shard_optimizer
    apart = sharded and scope.strategy.spread
    common = [each.local for each in owned if not (apart and each.expert)]
    experts = [each.local for each in owned if apart and each.expert]
    shares = (
        (common, ranks.shard_group if sharded else None),
        (experts, ranks.expert_shard_group if apart else None),
    )
    return [_optimizer(scope, local, group) for local, group in shares if local]


def _optimizer(scope: Scope, local: list[nn.Parameter], group: Any) -> Any:
    kind, options = optimizer_of(scope.plan, scope.learning)
    if group is not None:
        return ZeroRedundancyOptimizer(local, optimizer_class=kind, process_group=group, **options)
    return kind(local, **options)


def optimizer_of(plan: Plan, learning: Learning) -> tuple[Any, dict[str, Any]]:
    """The class of a plan's optimizer and what it is made with."""
    options: dict[str, Any] = {"lr": learning.learning_rate, "weight_decay": learning.weight_decay}
    if plan.numerics.optimizer == "adamw":
        return torch.optim.AdamW, {**options, "betas": BETAS, "eps": EPS, "fused": True}
    momentum = learning.momentum if plan.numerics.optimizer == "sgd_momentum" else 0.0
    return torch.optim.SGD, {**options, "momentum": momentum, "fused": True}


class Update:
    """What happens between the last backward and the next forward."""

    def __init__(self, scope: Scope, owned: Sequence[Owned]) -> None:
        self.scope, self.ranks, self.owned = scope, scope.ranks, list(owned)
        self.optimizers = make_optimizers(scope, self.owned)
        self.meeting = meeting_of(scope, self.owned)

    def step(self, clock: Clock) -> float | None:
        """Complete the gradients, clip, update, forget the gradients. The gradient norm where it was asked for."""
        with clock.phase("communication"):
            for each in self.owned:
                each.local.grad = each.gradient()
            self._complete()
        with clock.phase("optimizer"):
            norm = self._clip()
            for optimizer in self.optimizers:
                optimizer.step()
        if self.meeting is not None:
            with clock.phase("communication"):
                self.meeting.after_step()
        for each in self.owned:
            each.parameter.grad = None
            each.local.grad = None
        return norm

    def _complete(self) -> None:
        """Sum what tensor parallelism, data parallelism and tied embeddings left apart."""
        sum_partial([each.local.grad for each in self.owned if each.partial], self.ranks.tensor_group)
        if self.scope.strategy.reduction == "explicit":
            bucket_bytes = float(self.scope.plan.data_parallel.bucket_bytes or math.inf)
            width = self.ranks.width
            common = [each.local.grad for each in self.owned if not each.expert]
            average(common, self.ranks.data_group, bucket_bytes, divisor=width)
            if experts := [each.local.grad for each in self.owned if each.expert]:
                average(experts, self.ranks.expert_copies_group, bucket_bytes, divisor=width)
        elif (
            self.scope.strategy.spread
        ):  # fully_shard took the mean over copies: each has seen the tokens of many ranks
            share = self.ranks.mesh.expert_data_parallel / self.ranks.width
            for each in self.owned:
                if each.expert:
                    each.local.grad.mul_(share)
        self._sum_tied()

    def _sum_tied(self) -> None:
        """First and last stage hold a copy each of tied embeddings: the gradient is the sum of both."""
        first = [each for each in self.owned if each.name == TABLE and not each.twin]
        last = [each for each in self.owned if each.twin]
        if first and last:
            first[0].local.grad.add_(last[0].local.grad)
            last[0].local.grad.copy_(first[0].local.grad)
        elif self.scope.embedding_group is not None:
            for each in (*first, *last):
                dist.all_reduce(each.local.grad, group=self.scope.embedding_group)

    def _clip(self) -> float | None:
        if self.scope.learning.clip_norm is None:
            return None
        norm = self.norm()
        if norm > self.scope.learning.clip_norm:
            for each in self.owned:
                each.local.grad.mul_(self.scope.learning.clip_norm / norm)
        return norm

    def norm(self) -> float:
        """L2 norm of the gradient of the whole model, every element counted once."""
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for each in self.owned:
            if not each.twin:
                copies = self._copies(each.parameter)
                total += each.local.grad.double().square().sum().to(total.device) / copies
        if self.ranks.mesh.world_size > 1:
            dist.all_reduce(total)
        return math.sqrt(float(total))

    def _copies(self, parameter: Any) -> int:
        """Ranks of the job that hold the same part of a parameter."""
        stage_ranks = self.ranks.mesh.world_size // self.ranks.mesh.pp
        if not isinstance(parameter, DTensor):
            return stage_ranks
        shards = 1
        for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
            shards *= 1 if placement.is_replicate() else size
        return stage_ranks // shards
