"""Dynamic scaling of the loss for gradients in fp16, whose smallest numbers are 6e-8.

The loss is multiplied before the backward, gradients are divided by the same number before they are clipped. Where any
of any rank is not finite, the step is left out and the scale halved; after 2,000 steps without that it is doubled
[Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; torch.amp.GradScaler has the same numbers].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """The present scale, the steps since it last changed, and the steps that were left out, as one tensor."""

    def __init__(self, first: float) -> None:
        self.state = torch.tensor([first, 0.0, 0.0], dtype=torch.float64)

    @property
    def value(self) -> float:
        """What the loss is multiplied by."""
        return float(self.state[0])

    @property
    def left_out(self) -> int:
        """The number of steps without an update."""
        return int(self.state[2])

    def update(self, *, finite: bool) -> None:
        """After a step whose gradients were all finite, or not."""
        if not finite:
            self.state *= torch.tensor([BACKOFF, 0.0, 1.0], dtype=torch.float64)
            self.state[2] += 1
            return
        self.state[1] += 1
        if self.state[1] == INTERVAL:
            self.state *= torch.tensor([GROWTH, 0.0, 1.0], dtype=torch.float64)


def are_finite(gradients: Iterable[Tensor], device: Any, groups: Iterable[Any]) -> bool:
    """Whether every element is finite on every rank that one is joined to by groups; all of them must call this.

    ``groups`` are axes of a mesh, one after another, or the group of all ranks.
    """
    bad = torch.zeros((), device=device)
    for gradient in gradients:
        bad += (~torch.isfinite(gradient).all()).to(bad)
    for group in groups:
        dist.all_reduce(bad, group=group)
    return not bool(bad)
