"""What tensors do between the ranks that share a mixture, and what their gradients do on the way back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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


class Shared(torch.autograd.Function):
    """A tensor that several ranks add to a sum of theirs: each adds its share, each gets the whole gradient."""

    @staticmethod
    def forward(_: Any, x: Tensor, ranks: int) -> Tensor:
        """The share of one of ``ranks``."""
        return x / ranks if ranks > 1 else x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradient as it is."""
        return gradient, None


class Spread(torch.autograd.Function):
    """A tensor that all ranks of a group have and use in part: their gradients are added up."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        """The tensor as it is."""
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The sum over the group."""
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class Summed(torch.autograd.Function):
    """The sum over a group of what its ranks have, which all of them use in the same way."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: Any) -> Tensor:
        """The sum over the group."""
        total = x.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradient as it is."""
        return gradient, None
