"""A mixture of experts on one rank: routing, exchange of tokens between expert-parallel ranks, grouped products.

Every token goes to the ``topk`` experts with the highest softmax score, weighted by their scores divided by their sum
[Jiang et al. 2024, arXiv 2401.04088, section 2.1]. Nothing is dropped and nothing is padded. Experts are sharded by
number: rank r of an expert-parallel group holds the r-th part of each weight, as a DTensor, so that checkpoints know
where it belongs. Copies are ordered by expert, sent, worked on expert by expert, and sent back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from simpar.models.graph import Operator

Tensor = Any


@dataclass(frozen=True)
class Routing:
    """Where the copies of this rank's tokens went, and what came.

    ``order`` int64[copies] sorts copies by expert, ``scores`` [tokens, topk] weigh them; ``sent`` and ``received`` are
    copies by rank of the group, ``arrived`` sorts what came by expert, ``counts`` are copies of each local expert.
    """

    order: Tensor
    scores: Tensor
    shape: tuple[int, ...]
    sent: list[int]
    received: list[int]
    arrived: Tensor
    counts: list[int]


class Router(nn.Module):
    """Scores of experts, in at least fp32: the weights and numbers of the best ``topk``."""

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        self.topk = dims["topk"]
        self.weight = nn.Parameter(torch.empty(dims["num_experts"], dims["hidden"]))
        has_bias = any(weight.kind == "vector" for weight in op.weights)
        self.bias = nn.Parameter(torch.empty(dims["num_experts"])) if has_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shape [batch, seq, hidden] to scores [tokens, topk] in the dtype of ``x`` and experts int64[tokens, topk]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        logits = functional.linear(x.flatten(0, -2).to(wide), self.weight.to(wide), bias)
        best, experts = torch.topk(torch.softmax(logits, dim=-1), self.topk, dim=-1)
        return (best / best.sum(dim=-1, keepdim=True)).to(x.dtype), experts


class Dispatch(nn.Module):
    """Copies every token once for each of its experts and brings the copies to the ranks that hold them."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.group: Any = None

    def forward(self, x: Tensor, routed: tuple[Tensor, Tensor]) -> tuple[Tensor, Routing]:
        """Shape [batch, seq, hidden] to [copies of local experts, hidden], ordered by expert."""
        scores, experts = routed
        order = torch.argsort(experts.flatten(), stable=True)
        copies = x.flatten(0, -2)[order // scores.shape[1]]
        ranks = 1 if self.group is None else dist.get_world_size(self.group)
        counts = torch.bincount(experts.flatten(), minlength=self.num_experts).reshape(ranks, -1)
        coming = counts
        if ranks > 1:
            coming = torch.empty_like(counts)
            dist.all_to_all_single(coming, counts, group=self.group)
        local = torch.arange(counts.shape[1], device=x.device).repeat(ranks)
        arrived = torch.argsort(torch.repeat_interleave(local, coming.flatten()), stable=True)
        routing = Routing(
            order, scores, tuple(x.shape), counts.sum(1).tolist(), coming.sum(1).tolist(), arrived,
            coming.sum(0).tolist(),
        )  # fmt: skip
        if ranks > 1:
            copies = Exchange.apply(copies, routing.sent, routing.received, self.group)
        return copies[arrived], routing


class Combine(nn.Module):
    """Brings the experts' outputs back to where their tokens are and adds them up, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.group: Any = None

    def forward(self, outputs: tuple[Tensor, Routing]) -> Tensor:
        """Shape [copies of local experts, hidden] to [batch, seq, hidden]."""
        y, routing = outputs
        y = torch.zeros_like(y).index_copy(0, routing.arrived, y)
        if self.group is not None:
            y = Exchange.apply(y, routing.received, routing.sent, self.group)
        own = torch.zeros_like(y).index_copy(0, routing.order, y).unflatten(0, routing.scores.shape)
        return (own * routing.scores.unsqueeze(-1)).sum(dim=1).reshape(routing.shape)


class Experts(nn.Module):
    """A grouped product: the copies of every local expert times its own matrix, of one or two outputs."""

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        inner = dims["hidden"] if op.name.endswith("up") else dims["expert_ffn"]
        outer = 2 * dims["expert_ffn"] if op.name.endswith("up") else dims["hidden"]
        self.splits = 2 if op.name.endswith("up") else 1
        self.weight = nn.Parameter(torch.empty(dims["num_experts"], outer, inner))
        has_bias = len(op.weights) > 1
        self.bias = nn.Parameter(torch.empty(dims["num_experts"], outer)) if has_bias else None

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep this rank's part of the experts, of every weight."""
        for name, whole in list(self.named_parameters(recurse=False)):
            local = torch.empty(
                whole.shape[0] // mesh.size(), *whole.shape[1:], dtype=whole.dtype, device=whole.device
            )
            part = DTensor.from_local(
                local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
            )
            setattr(self, name, nn.Parameter(part))

    def forward(self, copies: tuple[Any, ...]) -> tuple[Any, ...]:
        """([copies, in], routing) to ([copies, out], routing), or with the two outputs of a gate apart."""
        x, routing = copies
        weight = _local(self.weight).to(x.dtype)
        bias = [None] * len(weight) if self.bias is None else _local(self.bias).to(x.dtype)
        pieces = x.split(routing.counts)
        y = torch.cat([functional.linear(*each) for each in zip(pieces, weight, bias, strict=True)])
        return (*y.chunk(self.splits, dim=-1), routing)


class ExpertActivation(nn.Module):
    """act(gate) x up of the experts' copies."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, copies: tuple[Any, ...]) -> tuple[Any, ...]:
        """([copies, ffn], [copies, ffn], routing) to ([copies, ffn], routing)."""
        gate, up, routing = copies
        return self.activation((gate, up)), routing


class Exchange(torch.autograd.Function):
    """An all-to-all of rows with different numbers for every rank; gradients travel back the same way."""

    @staticmethod
    def forward(context: Any, x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        """Rows [sum(sent), width] to [sum(received), width]."""
        context.counts, context.group = (sent, received), group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The same rows back."""
        sent, received = context.counts
        return _exchanged(gradient, received, sent, context.group), None, None, None


def _exchanged(x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


def _local(parameter: Any) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def spread(model: nn.Module, mesh: DeviceMesh) -> None:
    """Share the experts of a model, and the copies of tokens, among the ranks of a mesh of one axis, in place."""
    group = mesh.get_group()
    for module in model.modules():
        if isinstance(module, Experts):
            module.spread(mesh)
        elif isinstance(module, Dispatch | Combine):
            module.group = group
