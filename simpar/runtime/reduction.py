"""Means of tensors over ranks, in flat buckets."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def average(gradients: Iterable[Tensor], group: Any, bucket_bytes: float, *, divisor: int | None = None) -> None:
    """All-reduce gradients to their mean over a group, in flat buckets of at least ``bucket_bytes``, last first.

    ``divisor`` replaces the group's size. A group of None is one rank.
    """
    size = divisor or dist.get_world_size(group)
    for bucket in buckets(list(gradients)[::-1], bucket_bytes):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket]).div_(size)
        if group is not None:
            dist.all_reduce(flat, group=group)
        for gradient, mean in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def buckets(gradients: Sequence[Tensor], bucket_bytes: float) -> list[list[Tensor]]:
    """Gradients in order, in buckets that are filled in turn; each bucket has one dtype."""
    result: list[list[Tensor]] = []
    room, dtype = 0.0, None
    for gradient in gradients:
        if room <= 0 or gradient.dtype != dtype:
            result.append([])
            room, dtype = bucket_bytes, gradient.dtype
        result[-1].append(gradient)
        room -= gradient.numel() * gradient.element_size()
    return result
