"""Replicas that step on their own: how they synchronise at the end of a round (local SGD, DiLoCo)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.plan.sync import replicas_are_independent
from simpar.runtime.ranks import Ranks
from simpar.runtime.reduction import average

if TYPE_CHECKING:
    from simpar.runtime.update import Owned, Scope

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # Douillard et al. 2023, arXiv 2311.08105, section 3.1


class Averaging:
    """Local SGD: every ``sync_every`` steps parameters become their mean over the replicas [arXiv 1805.09767]."""

    def __init__(self, plan: Plan, ranks: Ranks, owned: Sequence[Owned]) -> None:
        data = plan.data_parallel
        self.period = int(data.sync_every or 1)
        self.bucket_bytes = float(data.bucket_bytes or math.inf)
        self.group = ranks.submesh("replicate").get_group() if data.zero else ranks.data_group
        self.local = [each.local.detach() for each in owned]
        self.steps = 0

    def after_step(self) -> None:
        """Count a local step; synchronise if it ends a round."""
        self.steps += 1
        if self.steps % self.period == 0:
            self.meet()

    def leave_mean(self) -> None:
        """Leave the mean of all replicas' parameters on each of them: the model of a run, also within a round."""
        average(self.local, self.group, self.bucket_bytes)

    def meet(self) -> None:
        """Average over the replicas."""
        average(self.local, self.group, self.bucket_bytes)


class OuterOptimizer(Averaging):
    """DiLoCo: the mean change of a round is a gradient for an outer optimizer with Nesterov momentum.

    The parameters at the start of the round and the momentum are kept in at least fp32.
    """

    def __init__(self, plan: Plan, ranks: Ranks, owned: Sequence[Owned]) -> None:
        super().__init__(plan, ranks, owned)
        wide = [torch.promote_types(each.dtype, torch.float32) for each in self.local]
        self.begun = [each.to(dtype, copy=True) for each, dtype in zip(self.local, wide, strict=True)]
        self.momentum = [torch.zeros_like(each) for each in self.begun]

    def meet(self) -> None:
        """One outer step from the parameters at the start of the round, which the next round starts from."""
        changes = [begun - local for begun, local in zip(self.begun, self.local, strict=True)]
        average(changes, self.group, self.bucket_bytes)
        for begun, local, momentum, change in zip(self.begun, self.local, self.momentum, changes, strict=True):
            # m <- mu m + g;  start <- start - rate (g + mu m)
            momentum.mul_(OUTER_MOMENTUM).add_(change)
            begun.sub_(change + OUTER_MOMENTUM * momentum, alpha=OUTER_RATE)
            local.copy_(begun)


MEETINGS: dict[str, type[Averaging]] = {"local-sgd": Averaging, "diloco": OuterOptimizer}


def meeting_of(scope: Scope, owned: Sequence[Owned]) -> Averaging | None:
    """How the replicas of a plan synchronise; None if they reduce gradients in every step. Raises UserError."""
    if not replicas_are_independent(scope.plan):
        return None
    if scope.learning.clip_norm is not None:
        raise UserError(
            f"learning.clip_norm = {scope.learning.clip_norm} with plan.sync = {scope.plan.data_parallel.sync}: the "
            "norm is that of one gradient, replicas have their own; allowed: none"
        )
    return MEETINGS[scope.plan.data_parallel.sync](scope.plan, scope.ranks, owned)
