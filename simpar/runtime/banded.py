"""Attention to one block of keys and values, of which every query sees a band, with the log-sum-exp of its scores.

Outputs of several blocks are joined by their log-sum-exp, and the backward recomputes each block's probabilities from
the joined one [Dao 2023, arXiv 2307.08691]. Both passes use torch's flash kernels: on CUDA those with windows, for 16
bits and heads of up to 256; on a CPU for blocks that are seen whole or causally. Everything else is two products and a
softmax, for some queries at a time, so that scores never take more than SCORES_BYTES. In all of them query heads share
key-value heads without copies.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from simpar.dataclass import dataclass
from simpar.units import MIB

Known = tuple[Tensor, Tensor, Tensor]  # gradient of the output, output, log-sum-exp
SCORES_BYTES = 256 * MIB
HALF = (torch.bfloat16, torch.float16)
WIDEST_HEAD = 256
HEAD_MULTIPLE = 8  # the features of a head are padded to a multiple of this
AMPERE = (8, 0)


@dataclass(frozen=True)
class PositionRange:
    """Evenly spaced positions: ``start``, ``start + step``, ... (``length`` of them)."""

    start: int
    step: int
    length: int

    def within(self, part: slice) -> tuple[int, "PositionRange"]:
        """Those of its positions that are in a part of the sequence, behind the number of those before it."""
        first, end = (min(max(0, -(-(at - self.start) // self.step)), self.length) for at in (part.start, part.stop))
        return first, PositionRange(self.start + first * self.step, self.step, end - first)

    @property
    def last(self) -> int:
        """The largest position."""
        return self.start + self.step * (self.length - 1)

    def positions(self) -> Tensor:
        """All positions: int64[length]."""
        return torch.arange(self.start, self.last + 1, self.step)


@dataclass(frozen=True)
class Band:
    """Query i of ``rows`` sees key j of ``columns`` if -left <= j - i <= right; None is no limit.

    Both limits are at least 0, so every query sees a key.
    """

    rows: slice
    columns: slice
    left: int | None = None
    right: int | None = None

    @property
    def is_simple(self) -> bool:
        """Whether queries see all keys, or of as many keys all that are not later."""
        return self.left is None and (self.right is None or (self.right == 0 and self.is_square))

    @property
    def is_square(self) -> bool:
        """Whether there are as many keys as queries, without which kernels count from another corner."""
        return bool(self.rows.stop - self.rows.start == self.columns.stop - self.columns.start)

    @property
    def is_causal(self) -> bool:
        """Whether a query sees exactly the keys up to its own index."""
        return self.left is None and self.right == 0

    def mask(self, first: int, last: int, device: Any) -> Tensor | None:
        """The keys that queries ``first`` to ``last`` - 1 see, bool[queries, keys]; None for all."""
        if self.left is None and self.right is None:
            return None
        size = self.columns.stop - self.columns.start
        ahead = torch.arange(size, device=device) - torch.arange(first, last, device=device)[:, None]
        low, high = last if self.left is None else self.left, size if self.right is None else self.right
        return (ahead >= -low) & (ahead <= high)


def band(query: PositionRange, key: PositionRange, window: int | None) -> Band | None:
    """The keys that queries see under a causal mask and, if given, a window; None if they see nothing.

    Query i is at q + s i and key j at k + s j. Their distance must be at least 0 and below the window, which gives two
    limits of j - i. Queries and keys at either end that are left with nothing are cut off.
    """
    assert query.step == key.step, "parts of a sequence are spaced alike"
    ahead = query.start - key.start
    # 0 <= ahead + s (i - j) < window  <=>  -(window - 1 - ahead) / s <= j - i <= ahead / s
    right = ahead // query.step
    left = query.length if window is None else (window - 1 - ahead) // query.step
    rows = slice(max(0, -right), min(query.length, key.length + left))
    columns = slice(max(0, -left), min(key.length, query.length + right))
    if rows.stop <= rows.start or columns.stop <= columns.start or left + right < 0:
        return None
    last, latest = rows.stop - rows.start - 1, columns.stop - columns.start - 1
    left, right = (left + right if right < 0 else max(left, 0)), (left + right if left < 0 else max(right, 0))
    return Band(rows, columns, left if left < last else None, right if right < latest else None)


def is_fused(query: Tensor) -> bool:
    """Whether the flash kernels with windows and shared heads accept queries [..., head_dim] on their device."""
    fits = query.dtype in HALF and query.shape[-1] <= WIDEST_HEAD
    return bool(query.device.type == "cuda" and fits and has_flash(query.device))


@cache
def has_flash(device: Any) -> bool:
    """Whether torch was built with its flash kernels and a CUDA device runs them."""
    capable = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= AMPERE
    return bool(torch.backends.cuda.is_flash_attention_available() and capable)


def forward(query: Tensor, key: Tensor, value: Tensor, seen: Band) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp [batch, heads, queries] of a band of [batch, heads, queries or keys, head_dim]."""
    if _takes(query, seen):
        options = _windows(query, seen)
        outputs = torch.ops.aten._flash_attention_forward(
            *_swapped(query, key, value), None, None, query.shape[2], key.shape[2], 0.0, seen.is_causal, False,
            **options,
        )  # fmt: skip
        return outputs[0].transpose(1, 2)[..., : query.shape[-1]], outputs[1]
    if query.device.type == "cpu" and seen.is_simple:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = flash(query, key, value, 0.0, seen.is_causal)
        return out, lse
    return _plain_forward(query, key, value, seen)


def backward(query: Tensor, key: Tensor, value: Tensor, known: Known, seen: Band) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from the joined output and log-sum-exp."""
    if _takes(query, seen):
        gradient, out, lse = known
        gradient, ours, theirs, values, out = _swapped(gradient, query, key, value, out)
        drawn = torch.zeros(2, dtype=torch.uint64, device=query.device)  # state of unused dropout
        gradients = torch.ops.aten._flash_attention_backward(
            gradient, ours, theirs, values, out, lse.contiguous(), None, None, query.shape[2], key.shape[2],
            0.0, seen.is_causal, drawn, drawn[0], **_windows(query, seen),
        )  # fmt: skip
        dq, dk, dv = (x.transpose(1, 2)[..., : query.shape[-1]] for x in gradients)
        return dq, dk, dv
    if query.device.type == "cpu" and seen.is_simple:
        gradient, out, lse = known
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = flash(gradient.contiguous(), query, key, value, out, lse, 0.0, seen.is_causal)
        return dq, dk, dv
    return _plain_backward(query, key, value, known, seen)


def _takes(query: Tensor, seen: Band) -> bool:
    """Whether CUDA's kernels compute this band; AMD's have no windows."""
    return is_fused(query) and (seen.is_simple or (seen.is_square and torch.version.hip is None))


def _windows(query: Tensor, seen: Band) -> dict[str, Any]:
    """Scale and window arguments of the CUDA kernels; the scale is that of unpadded heads."""
    options: dict[str, Any] = {"scale": query.shape[-1] ** -0.5}
    if not seen.is_simple:
        options["window_size_left"] = -1 if seen.left is None else seen.left
        options["window_size_right"] = -1 if seen.right is None else seen.right
    return options


def _swapped(*tensors: Tensor) -> list[Tensor]:
    """[batch, heads, seq, head_dim] as [batch, seq, heads, head_dim], features padded to a multiple of ALIGNED."""
    missing = -tensors[0].shape[-1] % HEAD_MULTIPLE
    padded = (functional.pad(x, (0, missing)) if missing else x for x in tensors)
    return [x.transpose(1, 2) for x in padded]


def _parts(query: Tensor, key: Tensor) -> Iterator[slice]:
    """Slices of queries whose scores are computed together."""
    wide = torch.promote_types(query.dtype, torch.float32).itemsize
    row_bytes = query.shape[0] * query.shape[1] * key.shape[2] * wide
    size = max(1, int(SCORES_BYTES // row_bytes))
    for start in range(0, query.shape[2], size):
        yield slice(start, min(start + size, query.shape[2]))


def _plain_forward(query: Tensor, key: Tensor, value: Tensor, seen: Band) -> tuple[Tensor, Tensor]:
    outputs, sums = [], []
    for rows in _parts(query, key):
        scores = _scores(query[:, :, rows], key, seen.mask(rows.start, rows.stop, query.device))
        lse = scores.logsumexp(-1)
        weights = (scores - lse.unsqueeze(-1)).exp().to(value.dtype)
        outputs.append(_by_heads(_grouped(weights, key) @ value, weights))
        sums.append(lse)
    return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)


def _plain_backward(
    query: Tensor, key: Tensor, value: Tensor, known: Known, seen: Band
) -> tuple[Tensor, Tensor, Tensor]:
    d_query = []
    d_key, d_value = (torch.zeros_like(x, dtype=known[2].dtype) for x in (key, value))
    for rows in _parts(query, key):
        ours, (gradient, out, lse) = query[:, :, rows], (x[:, :, rows] for x in known)
        scores = _scores(ours, key, seen.mask(rows.start, rows.stop, query.device))
        weights = (scores - lse.unsqueeze(-1)).exp()
        delta = (gradient.to(lse.dtype) * out.to(lse.dtype)).sum(-1, keepdim=True)
        of_weights = _by_heads(_grouped(gradient, key) @ value.transpose(-1, -2), gradient).to(lse.dtype)
        d_scores = (weights * (of_weights - delta) * query.shape[-1] ** -0.5).to(query.dtype)
        d_query.append(_by_heads(_grouped(d_scores, key) @ key, d_scores))
        d_key += _grouped(d_scores, key).transpose(-1, -2) @ _grouped(ours, key)
        d_value += _grouped(weights.to(query.dtype), key).transpose(-1, -2) @ _grouped(gradient, key)
    return torch.cat(d_query, dim=2), d_key, d_value


def _scores(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled scores, at least in fp32; minus infinity for keys that are not seen."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = _by_heads(_grouped(query, key) @ key.transpose(-1, -2), query).to(wide) * query.shape[-1] ** -0.5
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def _grouped(x: Tensor, key: Tensor) -> Tensor:
    """[batch, heads, rows, width] with the rows of all heads that share a key-value head stacked."""
    return x.unflatten(1, (key.shape[1], -1)).flatten(2, 3)


def _by_heads(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_grouped`, for the heads and rows of the tensor ``like``."""
    return x.unflatten(2, (-1, like.shape[2])).flatten(1, 2)
