"""Movements of rows between the ranks that share a mixture of experts and within a rank, with their gradients.

None of them saves rows for the backward; at most it saves where they went.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllToAllRows(torch.autograd.Function):
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
    """A tensor that several ranks add to one of their sums: each adds its share, each gets the whole gradient."""

    @staticmethod
    def forward(_: Any, x: Tensor, ranks: int) -> Tensor:
        """The share of one of ``ranks``."""
        return x / ranks if ranks > 1 else x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradient as it is."""
        return gradient, None


class Spread(torch.autograd.Function):
    """A tensor that all ranks of a group hold and use in part: their gradients are summed."""

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
    """The sum over a group of its ranks' tensors, which all of them use in the same way."""

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


class Reordered(torch.autograd.Function):
    """Rows, ``times`` copies of each, in a given order; gradients are reordered by its inverse and summed over copies.

    Torch's own gradient of indexing sorts the index, and sums even if no row occurs twice.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, order: Tensor, inverse: Tensor, times: int) -> Tensor:
        """Rows [rows, width] to [rows x times, width]; copy i is of row i // times, and ``order`` permutes copies."""
        context.save_for_backward(inverse)
        context.times = times
        return x[order // times if times > 1 else order]

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The sum over the copies of every row."""
        (inverse,) = context.saved_tensors
        back, times = gradient[inverse], context.times
        return back.unflatten(0, (-1, times)).sum(1) if times > 1 else back, None, None, None


class ScatteredRows(torch.autograd.Function):
    """Rows at given places among zeros. Torch's ``index_copy`` would save them just for the shape of a gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, places: Tensor, count: int) -> Tensor:
        """Rows [rows, width] to [count, width]."""
        context.save_for_backward(places)
        return x.new_zeros(count, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradient at the places."""
        (places,) = context.saved_tensors
        return gradient[places], None, None


def inverse_of(order: Tensor) -> Tensor:
    """The inverse of a permutation, both int64[rows]."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
