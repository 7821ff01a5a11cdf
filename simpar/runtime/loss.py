"""The training loss: cross entropy of the next token, and of further tokens if a model predicts them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from simpar.runtime.data import IGNORED_TARGET

WEIGHT = 0.3  # weight of the mean loss of further tokens [DeepSeek-AI 2024, arXiv 2412.19437, section 4.2]


def mean_loss(logits: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Mean cross entropy in fp32 of logits [batch, seq, vocab] and targets int64[batch, seq].

    Targets that are ignored count as zero in it, so that the means of parts have the mean of the whole.

    For several logits with targets int64[batch, 1 + further, seq], the first one's plus the weighted mean of the
    others'.
    """
    if isinstance(logits, tuple):
        first, *others = logits
        return mean_loss(first, targets[:, 0]) + extra_loss([_wide(each) for each in others], targets[:, 1:])
    return _sum(_wide(logits).flatten(0, 1), targets.flatten()) / targets.numel()


def _sum(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction="sum")


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def extra_loss(logits: Sequence[Tensor], targets: Tensor) -> Tensor:
    """The weighted mean of the cross entropies of [batch, seq, vocab] and int64[batch, depths, seq].

    Each is a sum over existing targets divided by the length of the sequences (equation 24 of the same paper).
    """
    losses = [
        _sum(each.flatten(0, 1), targets[:, depth].flatten()) / targets[:, depth].numel()
        for depth, each in enumerate(logits)
    ]
    return WEIGHT / len(losses) * torch.stack(losses).sum()
