"""The update of one rank: gradients reduced, clipped, and given to an optimizer that works on local shards.

Elementwise optimizers do not need other ranks' parts of a tensor, so every parameter, DTensor or not, is optimized
through a plain tensor that shares its storage. ZeRO-1 (torch's ZeroRedundancyOptimizer), which cannot broadcast
DTensors, then also works under tensor parallelism. If the optimizer is offloaded and updates on the host, the tensors
on the device are still those that are sharded, clipped and broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from simpar.dataclass import dataclass
from simpar.plan.optimizers import in_torch
from simpar.plan.plan import Plan
from simpar.runtime.decoder import TABLE
from simpar.runtime.job import Learning
from simpar.runtime.loss_scale import LossScale, are_finite
from simpar.runtime.measure import Clock
from simpar.runtime.offload import Arrivals, OnHost, share_on_host
from simpar.runtime.ranks import Ranks, StageRanks
from simpar.runtime.reduction import average
from simpar.runtime.rounding import InSixteenBits, PlacedName, Rounding
from simpar.runtime.rounds import meeting_of
from simpar.runtime.sharded import local_part
from simpar.runtime.strategy import Strategy
from simpar.runtime.tensor_parallel import sum_partial

BETAS, EPS = (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class Owned:
    """A parameter of this rank: its name, itself, and the plain tensor that the optimizer sees.

    ``partial``: its gradient is one tensor-parallel rank's share of a sum. ``twin``: it is the second copy of tied
    embeddings, on the last stage. ``expert``: it belongs to an expert, whose copies are on ranks of their own.
    """

    name: str
    parameter: Any
    local: nn.Parameter
    partial: bool = False
    twin: bool = False
    expert: bool = False

    @staticmethod
    def of(name: str, parameter: Any, *, partial: bool = False, twin: bool = False, expert: bool = False) -> Owned:
        """Wrap a module's parameter."""
        plain = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return Owned(name, parameter, nn.Parameter(plain.detach()), partial, twin, expert)

    def gradient(self, *, summed: bool = True) -> Tensor:
        """The local part of the gradient, complete in the parameter's own placements; zero if there is none.

        Unless ``summed``, summands of different ranks stay apart on :meth:`axes_apart`.
        """
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.local)
        if isinstance(gradient, DTensor):
            wanted = self.parameter.placements
            if gradient.placements != wanted and summed:
                gradient = gradient.redistribute(gradient.device_mesh, wanted)
            return gradient.to_local()
        return gradient

    def axes_apart(self) -> tuple[int, ...]:
        """Axes of the parameter's mesh whose ranks have summands of its gradient."""
        placements = getattr(self.parameter.grad, "placements", ())
        return tuple(axis for axis, placement in enumerate(placements) if placement.is_partial())


@dataclass(frozen=True)
class Scope:
    """The context of an update: resolved plan, hyperparameters, strategy, this rank.

    ``sum_twins`` sums the gradients of both copies of tied embeddings, in place; None if they are on one rank.
    """

    plan: Plan
    learning: Learning
    strategy: Strategy
    ranks: Ranks
    sum_twins: Callable[[Tensor], object] | None = None


def make_optimizers(scope: Scope, owned: Sequence[Owned], rounding: Rounding | None = None) -> list[Any]:
    """The plan's optimizer over local parameters; its states are sharded over the ranks under ZeRO-1.

    Then experts that are spread have an optimizer of their own, whose states are sharded over the ranks that hold the
    same experts. Parameters that are updated on the host have one apart from the others. Parameters in 16 bits have a
    ``rounding``.
    """
    kind = _kind(scope, rounding)
    sharded = scope.strategy.shard_optimizer
    result = []
    for away in (False, True):
        shares: dict[Any, list[nn.Parameter]] = {}
        for each, there in zip(owned, on_host(scope, owned), strict=True):
            if there == away:
                expert = scope.strategy.spread and each.expert
                group = scope.ranks.states_group(each.parameter, expert=expert) if sharded else None
                shares.setdefault(group, []).append(each.local)
        here = partial(OnHost, kind=kind, delayed=scope.plan.offload.offload_delayed) if away else kind
        result += [_optimizer(scope, local, group, here) for group, local in shares.items()]
    return result


def on_host(scope: Scope, owned: Sequence[Owned]) -> list[bool]:
    """Which parameters on the device are updated on the host; none if parameters are on the host themselves.

    Both copies of tied embeddings are updated there.
    """
    offload = scope.plan.offload
    if not offload.ratio or offload.offload_parameters != "none":
        return [False] * len(owned)
    sizes = [each.parameter.numel() for each in owned]
    tied = [each.twin or (each.name == TABLE and scope.plan.mesh.pp > 1) for each in owned]
    there = sum(size for size, twin in zip(sizes, tied, strict=True) if twin)
    rest = [size for size, twin in zip(sizes, tied, strict=True) if not twin]
    wanted = max(0.0, offload.ratio * sum(sizes) - there) / max(1, sum(rest))
    chosen = iter(share_on_host(rest, min(wanted, 1.0)))
    return [twin or next(chosen) for twin in tied]


def rounding_of(scope: Scope, owned: Sequence[Owned]) -> Rounding | None:
    """How updates of parameters in 16 bits are rounded; None for wider ones. Twins are one tensor."""
    if scope.plan.execution.parameter_dtype != "bf16":
        return None
    if scope.learning.sixteen_bits.rounding == "nearest":
        return Rounding(None)
    places = {}
    for each in owned:
        name = TABLE if each.twin else each.name
        places[each.local] = PlacedName(name, tuple(each.parameter.shape), local_part(each.parameter)[1])
    return Rounding(scope.learning.seed, places)


def _kind(scope: Scope, rounding: Rounding | None) -> Any:
    """What makes an optimizer of parameters on one device, with the options of :func:`optimizer_of`."""
    kind, _ = optimizer_of(scope.plan, scope.learning)
    if rounding is None:
        return kind
    numerics, states = scope.plan.numerics, in_torch(scope.plan.numerics.optimizer).states
    kept = torch.bfloat16 if numerics.moment_dtype == "bf16" else torch.float32
    return partial(InSixteenBits, kind=kind, rounding=rounding, states=states, kept_dtype=kept)


def _optimizer(scope: Scope, local: list[nn.Parameter], group: Any, kind: Any) -> Any:
    _, options = optimizer_of(scope.plan, scope.learning)
    if group is not None:
        return ZeroRedundancyOptimizer(local, optimizer_class=kind, process_group=group, **options)
    return kind(local, **options)


def optimizer_of(plan: Plan, learning: Learning) -> tuple[Any, dict[str, Any]]:
    """The class of a plan's optimizer and its constructor arguments."""
    chosen = in_torch(plan.numerics.optimizer)
    of_run = {"betas": BETAS, "eps": EPS, "momentum": learning.momentum}
    options: dict[str, Any] = {"lr": learning.learning_rate, "weight_decay": learning.weight_decay}
    options |= {name: of_run[name] for name in chosen.options}
    return getattr(torch.optim, chosen.name), {**options, "fused": True}


class StepUpdate:
    """Everything between the last backward and the next forward.

    ``early`` are parameters whose gradients go to the host as they are produced: those that are updated there, if the
    plan says so and nothing on the device sums their gradients.
    """

    def __init__(self, scope: Scope, owned: Sequence[Owned]) -> None:
        self.scope, self.ranks, self.owned = scope, scope.ranks, list(owned)
        self.rounding = rounding_of(scope, self.owned)
        self.optimizers = make_optimizers(scope, self.owned, self.rounding)
        self.meeting = meeting_of(scope, self.owned)
        self.loss_scale = (
            LossScale(scope.learning.sixteen_bits.loss_scale) if scope.plan.numerics.precision == "fp16" else None
        )
        self.arrivals = Arrivals()
        away = zip(self.owned, on_host(scope, self.owned), strict=True)
        self.early = [each for each, there in away if there and self._leaves(each)]
        if scope.strategy.reduction != "fsdp":  # fully_shard sets gradients without autograd's hooks
            for each in self.early:
                each.parameter.register_post_accumulate_grad_hook(lambda _, each=each: self._send(each))
        self.gradients: dict[Any, Tensor] = {}

    def _leaves(self, each: Owned) -> bool:
        summed = each.partial or each.twin or (each.name == TABLE and self.scope.plan.mesh.pp > 1)
        reduced = self.scope.strategy.reduction == "explicit" and each.expert
        return bool(self.scope.plan.offload.offload_gradients) and not summed and not reduced

    def _send(self, each: Owned) -> None:
        self.arrivals.collect(each.local, each.gradient())
        each.parameter.grad = None

    def collect(self) -> None:
        """After a backward, send the remaining gradients that belong on the host."""
        for each in self.early:
            if each.parameter.grad is not None:
                self._send(each)

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before the backward."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def step(self, clock: Clock, factor: float = 1.0) -> float | None:
        """Complete the gradients, clip, update, clear the gradients; returns the gradient norm if asked for.

        Gradients are multiplied by a ``factor``, and divided by the scale of the loss. There is neither an update nor a
        norm if some are not finite then.
        """
        factor /= self.scale
        with clock.phase("communication"):
            self.collect()
            self.gradients = self.arrivals.take(each.local for each in self.early)
            for each in self.owned:
                if each.local not in self.gradients:
                    made = each.gradient(summed=self.scope.strategy.reduction != "stages")
                    each.local.grad = self.gradients[each.local] = made
            self._complete()
            if factor != 1.0:
                for gradient in self.gradients.values():
                    gradient.mul_(factor)
        norm = None
        if self._are_finite():
            with clock.phase("optimizer"):
                norm = self._clip()
                for optimizer in self.optimizers:
                    if isinstance(optimizer, OnHost):
                        optimizer.give({each.local: self.gradients[each.local] for each in self.early})
                    optimizer.step()
        if self.meeting is not None:
            with clock.phase("communication"):
                self.meeting.after_step()
        self.gradients = {}
        if self.rounding is not None:
            self.rounding.step += 1
        for each in self.owned:
            each.parameter.grad = None
            each.local.grad = None
        return norm

    def _are_finite(self) -> bool:
        """Whether there are gradients to update with; those of an unscaled loss are taken as they are."""
        if self.loss_scale is None:
            return True
        alone = self.meeting is not None  # a replica that steps on its own leaves out steps on its own, as it scales
        every = [dist.group.WORLD] if self.ranks.world_size > 1 else []
        groups = self.ranks.replica_groups if alone else every
        finite = are_finite(self.gradients.values(), self.ranks.device, groups)
        self.loss_scale.update(finite=finite)
        return finite

    def hosted(self) -> list[OnHost]:
        """The optimizers of this rank that update on the host."""
        local = [each.optim if isinstance(each, ZeroRedundancyOptimizer) else each for each in self.optimizers]
        return [each for each in local if isinstance(each, OnHost)]

    def _complete(self) -> None:
        """Sum what tensor parallelism, data parallelism and tied embeddings have left apart."""
        result = self.gradients
        sum_partial([result[each.local] for each in self.owned if each.partial], self.ranks.tensor_group)
        bucket_bytes = float(self.scope.plan.data_parallel.bucket_bytes or math.inf)
        if isinstance(self.ranks, StageRanks):
            apart: dict[tuple[int, ...], list[Tensor]] = {}
            for each in self.owned:
                apart.setdefault(each.axes_apart(), []).append(result[each.local])
            for axes, gradients in apart.items():
                if (group := self.ranks.here_mesh.group(axes)) is not None:
                    average(gradients, group, bucket_bytes, divisor=1)
        elif self.scope.strategy.reduction == "explicit":
            width, early = self.ranks.width, {each.local for each in self.early}
            common = [result[each.local] for each in self.owned if not each.expert and each.local not in early]
            average(common, self.ranks.data_group, bucket_bytes, divisor=width)
            if experts := [result[each.local] for each in self.owned if each.expert]:
                average(experts, self.ranks.expert_copies_group, bucket_bytes, divisor=width)
        elif (
            self.scope.strategy.spread
        ):  # fully_shard took the mean over copies, each of which saw the tokens of many ranks
            share = self.ranks.mesh.expert_data_parallel / self.ranks.width
            for each in self.owned:
                if each.expert:
                    result[each.local].mul_(share)
        self._sum_tied()

    def _sum_tied(self) -> None:
        """First and last stage each hold a copy of tied embeddings: the gradient is the sum of both."""
        first = [self.gradients[each.local] for each in self.owned if each.name == TABLE and not each.twin]
        last = [self.gradients[each.local] for each in self.owned if each.twin]
        if first and last:
            first[0].add_(last[0])
            last[0].copy_(first[0])
        elif self.scope.sum_twins is not None:
            for each in (*first, *last):
                self.scope.sum_twins(each)

    def _clip(self) -> float | None:
        if self.scope.learning.clip_norm is None:
            return None
        norm = self.norm()
        every = [self.gradients[each.local] for each in self.owned]
        if every and norm > self.scope.learning.clip_norm:  # a stage of frozen layers has none
            torch._foreach_mul_(every, self.scope.learning.clip_norm / norm)
        return norm

    def norm(self) -> float:
        """L2 norm of the gradient of the whole model, every element counted once."""
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        counted = [each for each in self.owned if not each.twin]
        # one norm per tensor, in at least fp32 and without copies; only the norms are squared and summed in fp64
        every = [self.gradients[each.local] for each in counted]
        wide = reduce(torch.promote_types, (gradient.dtype for gradient in every), torch.float32)
        norms = torch._foreach_norm(every, 2, dtype=wide) if every else []
        for each, norm in zip(counted, norms, strict=True):
            total += norm.to(total.device, torch.float64).square() / self._copies(each.parameter)
        if self.ranks.world_size > 1:
            dist.all_reduce(total)
        return math.sqrt(float(total))

    def _copies(self, parameter: Any) -> int:
        """The number of ranks of the job that hold the same part of a parameter."""
        stage_ranks = self.ranks.stage_size
        if not isinstance(parameter, DTensor):
            return stage_ranks
        shards = 1
        for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
            shards *= 1 if placement.is_replicate() else size
        return stage_ranks // shards
