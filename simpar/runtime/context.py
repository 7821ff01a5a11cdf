"""Context parallelism: the tokens that a rank holds, and attention across ranks.

Groups of ``ulysses`` neighbouring ranks exchange heads for tokens [Jacobs et al. 2023, arXiv 2309.14509]. Between these
groups, keys and values travel around a ring while attention to the current block is computed [Liu et al. 2023, arXiv
2310.01889], or are gathered first. Partial results are joined by their log-sum-exp.

A rank's tokens are one or two runs of evenly spaced positions, so queries of a run see a band of the keys of any run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simpar.dataclass import dataclass
from simpar.runtime import banded, boundaries
from simpar.runtime.banded import Band, PositionRange, band


def runs(group: int, groups: int, seq_len: int, balance: str) -> tuple[PositionRange, ...]:
    """The tokens of one of ``groups`` equal parts of a sequence.

    "zigzag" takes a chunk from each end, "striped" every ``groups``-th token, "contiguous" one chunk.
    """
    size = seq_len // groups
    if groups == 1 or balance == "contiguous":
        return (PositionRange(group * size, 1, size),)
    if balance == "striped":
        return (PositionRange(group, groups, size),)
    half = size // 2
    return PositionRange(group * half, 1, half), PositionRange((2 * groups - 1 - group) * half, 1, half)


@dataclass(frozen=True)
class ContextRank:
    """One rank's place among ``cp`` ranks that share a sequence.

    ``ring_group`` are the ranks that pass keys and values on, ``head_group`` those that exchange heads; None for a
    single rank.
    """

    cp: int = 1
    rank: int = 0
    ulysses: int = 1
    method: str = "ring"
    balance: str = "contiguous"
    ring_group: Any = None
    head_group: Any = None

    @property
    def groups(self) -> int:
        """Parts of the sequence between which keys and values travel."""
        return self.cp // self.ulysses

    @property
    def group(self) -> int:
        """The index of this rank's group."""
        return self.rank // self.ulysses

    @property
    def whole_group(self) -> Any:
        """All ranks of the sequence, where they are one of the two groups: rings without heads, or heads alone."""
        assert self.ulysses in (1, self.cp), "rings of groups that exchange heads are refused for state-space layers"
        return self.ring_group if self.ulysses == 1 else self.head_group

    def runs(self, group: int, seq_len: int) -> tuple[PositionRange, ...]:
        """The tokens of a group."""
        return runs(group, self.groups, seq_len, self.balance)

    def positions(self, length: int) -> Tensor:
        """Positions of this rank's ``length`` tokens in the whole sequence: int64[length]."""
        whole = torch.cat([run.positions() for run in self.runs(self.group, length * self.cp)])
        return whole.chunk(self.ulysses)[self.rank % self.ulysses]


def attention(
    query: Tensor, key: Tensor, value: Tensor, context: ContextRank, window: int | None, sinks: Tensor | None = None
) -> Tensor:
    """Causal attention of local tokens to the whole sequence: shapes [batch, heads, local seq, head_dim].

    ``sinks`` [heads] are logits of a key without a value that every query of a head sees. Of documents that are kept
    apart, each token sees its own; a single rank is given one after the other.
    """
    known = boundaries.current() if context.cp > 1 else None
    documents = None if known is None else known.pieces
    if context.ulysses > 1:
        if key.shape[1] % context.ulysses:
            key, value = (x.repeat_interleave(context.ulysses // key.shape[1], dim=1) for x in (key, value))
        query, key, value = (Exchange.apply(x, context.head_group, 1, 2) for x in (query, key, value))
        if sinks is not None:
            sinks = sinks.chunk(context.ulysses)[dist.get_rank(context.head_group)]
    out = _BlockwiseAttention.apply(query, key, value, sinks, context, window, documents)
    return Exchange.apply(out, context.head_group, 2, 1) if context.ulysses > 1 else out


class Exchange(torch.autograd.Function):
    """All-to-all over a group: dim ``split`` is distributed, dim ``join`` is concatenated in rank order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, split: int, join: int) -> Tensor:
        """Exchange."""
        ctx.group, ctx.split, ctx.join = group, split, join
        return _exchange(x, group, split, join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Exchange back."""
        return _exchange(gradient, ctx.group, ctx.join, ctx.split), None, None, None


def _exchange(x: Tensor, group: Any, split: int, join: int) -> Tensor:
    ranks = dist.get_world_size(group)
    sent = torch.stack([part.contiguous() for part in x.chunk(ranks, dim=split)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(0), dim=join)


class _BlockwiseAttention(torch.autograd.Function):
    """Attention to blocks of keys and values of all groups, one at a time."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        """Join the results of all blocks; ``rest`` are sinks, context, window and every sequence's documents."""
        sinks, context, window, documents = rest
        seq_len = query.shape[2] * context.groups
        mine = context.runs(context.group, seq_len)
        out, lse = _empty(query)
        for group, block in _travel(torch.stack((key, value)), context):
            for each, seen in _seen(mine, context.runs(group, seq_len), window, documents):
                rows, (keys, values) = seen.rows, block[:, each, :, seen.columns].unbind(0)
                _join(out[each], lse[each], rows, banded.forward(query[each, :, rows], keys, values, seen))
        if sinks is not None:
            without, lse = lse, torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
            out *= (without - lse).exp().unsqueeze(-1)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks, out, lse)
        ctx.context, ctx.window, ctx.documents = context, window, documents
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of keys and values travel with their block until they reach its owner."""
        query, key, value, sinks, out, lse = ctx.saved_tensors
        context, window = ctx.context, ctx.window
        seq_len = query.shape[2] * context.groups
        mine = context.runs(context.group, seq_len)
        d_query = torch.zeros_like(query, dtype=lse.dtype)
        home = _Homecoming(context, torch.stack((key, value)))
        for group, block in _travel(torch.stack((key, value)), context):
            d_block = torch.zeros_like(block, dtype=lse.dtype)
            for each, seen in _seen(mine, context.runs(group, seq_len), window, ctx.documents):
                rows, (keys, values) = seen.rows, block[:, each, :, seen.columns].unbind(0)
                known = (gradient[each, :, rows], out[each, :, rows], lse[each, :, rows])
                d_ours, *d_theirs = banded.backward(query[each, :, rows], keys, values, known, seen)
                d_query[each, :, rows] += d_ours
                for place, theirs in zip(d_block.unbind(0), d_theirs, strict=True):
                    place[each, :, seen.columns] += theirs
            home.add(group, d_block)
        d_key, d_value = home.arrived().unbind(0)
        d_sinks = None if sinks is None else _of_sinks(sinks, gradient, out, lse)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_sinks, None, None, None


def _of_sinks(sinks: Tensor, gradient: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """Gradient of sinks [heads]: a sink's value is zero, so it only reduces the weights of the other keys."""
    # p = exp(sink - lse), d sink = -sum p (dO . O), because the sink's value is zero
    weights = (sinks.to(lse.dtype)[:, None] - lse).exp()
    taken = (gradient.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    return -(weights * taken).sum(dim=(0, 2)).to(sinks.dtype)


def _empty(query: Tensor) -> tuple[Tensor, Tensor]:
    """The result before any block is seen: zeros, and a log-sum-exp of minus infinity; at least in fp32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = torch.full(query.shape[:3], -torch.inf, dtype=wide, device=query.device)
    return torch.zeros_like(query, dtype=wide), lse


Placed = Sequence[tuple[int, PositionRange]]
"""Runs, each behind the index of its first position in the local tensors."""


def _seen(
    mine: Sequence[PositionRange],
    theirs: Sequence[PositionRange],
    window: int | None,
    documents: Sequence[Sequence[slice]] | None,
) -> Iterator[tuple[slice, Band]]:
    """Which sequences see what: the bands that runs of queries see of runs of keys, in indices of the local tensors.

    All sequences are one document unless ``documents`` lists those of each.
    """
    queries, keys = _placed(mine), _placed(theirs)
    if documents is None:
        yield from ((slice(None), band) for band in _bands(queries, keys, window))
        return
    for number, pieces in enumerate(documents):
        for piece in pieces:
            bands = _bands(_within(queries, piece), _within(keys, piece), window)
            yield from ((slice(number, number + 1), band) for band in bands)


def _bands(queries: Placed, keys: Placed, window: int | None) -> Iterator[Band]:
    for at, row in queries:
        for there, column in keys:
            if (seen := band(row, column, window)) is not None:
                yield replace(seen, rows=_moved(seen.rows, at), columns=_moved(seen.columns, there))


def _within(every: Placed, piece: slice) -> Placed:
    """What of the runs is inside a part of the sequence."""
    clipped = ((start, *run.within(piece)) for start, run in every)
    return [(start + before, run) for start, before, run in clipped if run.length]


def _moved(part: slice, start: int) -> slice:
    return slice(start + part.start, start + part.stop)


def _placed(every: Sequence[PositionRange]) -> Placed:
    starts = accumulate((run.length for run in every), initial=0)
    return [*zip(starts, every, strict=False)]


def _travel(block: Tensor, context: ContextRank) -> Iterator[tuple[int, Tensor]]:
    """Blocks of all groups with the group's index, this rank's own first; the next one is received meanwhile."""
    if context.groups == 1:
        yield 0, block
    elif context.method == "all_gather":
        every = [torch.empty_like(block) for _ in range(context.groups)]
        dist.all_gather(every, block.contiguous(), group=context.ring_group)
        yield from enumerate(every)
    else:
        block = block.contiguous()
        for hop in range(context.groups):
            coming = _pass_on(block, context) if hop < context.groups - 1 else None
            yield (context.group - hop) % context.groups, block
            if coming is not None:
                block = coming.wait()


@dataclass
class _Coming:
    """A tensor being received from the previous rank."""

    tensor: Tensor
    work: list[Any]
    sent: Tensor

    def wait(self) -> Tensor:
        """The tensor, once it has arrived."""
        for each in self.work:
            each.wait()
        return self.tensor


def _pass_on(block: Tensor, context: ContextRank) -> _Coming:
    """Send to the next group and receive from the previous one."""
    group, ranks = context.ring_group, context.groups
    coming = torch.empty_like(block)
    following = dist.get_global_rank(group, (context.group + 1) % ranks)
    before = dist.get_global_rank(group, (context.group - 1) % ranks)
    messages = [dist.P2POp(dist.isend, block, following, group), dist.P2POp(dist.irecv, coming, before, group)]
    return _Coming(coming, dist.batch_isend_irecv(messages), block)


class _Homecoming:
    """Sums the gradient of every block and brings it to the rank that owns the block."""

    def __init__(self, context: ContextRank, like: Tensor) -> None:
        self.context = context
        self.gathers = context.groups > 1 and context.method == "all_gather"
        self.every: dict[int, Tensor] = {}
        self.total: Tensor | None = None
        self.coming: _Coming | None = None
        self.like = like

    def add(self, group: int, gradient: Tensor) -> None:
        """Add this rank's gradient of one block, in the order in which the blocks travel."""
        if self.gathers:
            self.every[group] = gradient
            return
        self.total = gradient if self.coming is None else gradient + self.coming.wait()
        if self.context.groups > 1:
            self.coming = _pass_on(self.total, self.context)

    def arrived(self) -> Tensor:
        """The sum over all ranks of the gradient of this rank's own block."""
        if self.gathers:
            sent = torch.stack([self.every[group] for group in range(self.context.groups)])
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self.context.ring_group)
            return received.sum(0)
        return self.total if self.coming is None else self.coming.wait()


def _join(out: Tensor, lse: Tensor, rows: slice, part: tuple[Tensor, Tensor]) -> None:
    """Add a block's result: old and new are weighted by their share of the joined sum of exponentials."""
    block, block_lse = part
    before = lse[:, :, rows]
    joined = torch.logaddexp(before, block_lse.to(before.dtype))
    old, new = ((x - joined).exp().unsqueeze(-1) for x in (before, block_lse))
    out[:, :, rows] = out[:, :, rows] * old + block * new
    lse[:, :, rows] = joined
