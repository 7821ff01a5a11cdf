"""State-space layers under context parallelism: tokens are exchanged for heads, and back.

A state runs along the whole sequence, so each context rank carries those of some heads of its tensor-parallel rank over
all tokens [Megatron-LM, core/ssm/mamba_context_parallel.py]. Everything that a layer's first product made goes to the
ranks of its heads in one all-to-all; groups of b and c that are fewer than the ranks go to several. It is what
:mod:`simpar.program.blocks.context` prices.
"""

from dataclasses import replace

import torch
from torch import Tensor

from simpar.runtime.context import ContextRank, Exchange


def of_rank(whole: Tensor, context: ContextRank, groups: int | None = None) -> Tensor:
    """What a context rank uses of a tensor, along its first dim: that of its heads, or of their ``groups``."""
    cp, rank = context.cp, context.rank
    if groups is not None and groups < cp:
        return whole.chunk(groups)[rank * groups // cp]
    return whole.chunk(cp)[rank] if cp > 1 else whole


def to_heads(projected: tuple[Tensor, ...], groups: int, context: ContextRank) -> tuple[Tensor, ...]:
    """Gates, inputs, b, c and steps [batch, local seq, features]: some heads of the whole sequence in its order."""
    gates, x, b, c, steps = projected
    b, c = (_for_every_rank(each, groups, context.cp) for each in (b, c))
    pieces = [each.chunk(context.cp, dim=-1) for each in (gates, x, b, c, steps)]
    sent = torch.cat([piece for of_one in zip(*pieces, strict=True) for piece in of_one], dim=-1)
    arrived = Exchange.apply(sent, context.whole_group, 2, 1)
    whole = arrived[:, _order(context, arrived).argsort()]
    return tuple(whole.split([piece[0].shape[-1] for piece in pieces], dim=-1))


def to_tokens(result: Tensor, context: ContextRank) -> Tensor:
    """Some heads of the whole sequence [batch, seq, features]: all heads of this rank's tokens."""
    sent = result[:, _order(context, result)]
    back: Tensor = Exchange.apply(sent, context.whole_group, 1, 2)
    return back


def _for_every_rank(x: Tensor, groups: int, ranks: int) -> Tensor:
    """Features of groups [batch, seq, groups x state], of each as often as it has ranks."""
    if groups >= ranks:
        return x
    return x.unflatten(-1, (groups, -1)).repeat_interleave(ranks // groups, dim=-2).flatten(-2)


def _order(context: ContextRank, whole: Tensor) -> Tensor:
    """Positions in the sequence of the tokens of all ranks, one rank after the other: int64[seq]."""
    local = whole.shape[1] // context.cp
    every = [replace(context, rank=rank).positions(local) for rank in range(context.cp)]
    return torch.cat(every).to(whole.device)
