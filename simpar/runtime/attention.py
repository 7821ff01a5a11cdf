"""Core attention on one rank: rotary positions, masks, and the rank's part of the sequence and of the heads."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from simpar.architectures.details import Details, Rope
from simpar.architectures.graph import AttentionPattern as Mask
from simpar.dataclass import dataclass
from simpar.runtime import banded, boundaries
from simpar.runtime.context import ContextRank
from simpar.runtime.context import attention as context_attention

SEEDS = 2**62


@dataclass(frozen=True)
class Place:
    """The part of the sequence that a rank works on, given by its place in context parallelism.

    Under sequence parallelism, rank ``sequence_rank`` of ``sequence_ranks`` holds a part of that part in the residual
    stream.
    """

    context: ContextRank = field(default_factory=ContextRank)
    sequence_ranks: int = 1
    sequence_rank: int = 0

    def positions(self, length: int, device: Any) -> Tensor:
        """Positions of this rank's ``length`` tokens in the whole sequence, int64[length], or in their documents.

        Those in documents differ between the sequences of a microbatch: int64[batch, length].
        """
        documents = boundaries.current()
        if documents is not None and self.context.cp == 1:
            return documents.positions
        here = self.context.positions(length).to(device)
        return here if documents is None else documents.positions[:, here]

    def residual_positions(self, length: int, device: Any) -> Tensor:
        """:meth:`positions` for the residual stream, if it is sharded over the sequence."""
        return self.positions(length * self.sequence_ranks, device).chunk(self.sequence_ranks, -1)[self.sequence_rank]


class Rotary(nn.Module):
    """Rotary position embedding of queries and keys [Su et al. 2021, arXiv 2104.09864].

    It rotates the first ``rope.turned`` features of a head, in pairs across their two halves or of neighbours.
    """

    def __init__(self, head_dim: int, rope: Rope, place: Place) -> None:
        super().__init__()
        self.head_dim, self.rope, self.place = head_dim, rope, place
        self.frequencies = rope.frequencies(head_dim)
        self._cached: tuple[Any, Tensor, Tensor] | None = None

    def forward(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes [batch, seq, heads x head_dim] in and out."""
        query, key, value = qkv
        cosine, sine = self._tables(query)
        return self._rotate(query, cosine, sine), self._rotate(key, cosine, sine), value

    def _tables(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cosine and sine by position and pair of features, [seq, 1, turned / 2], or with a batch before that.

        They are kept between calls. The default ``positions`` are those of this rank's part of the sequence.
        """
        wanted = (x.shape[1], x.dtype, x.device, boundaries.current())
        if self._cached is None or self._cached[0] != wanted:
            at = self.place.positions(x.shape[1], x.device) if positions is None else positions
            frequencies = torch.from_numpy(self.frequencies).to(x.device)
            angle, size = (at.double().unsqueeze(-1) * frequencies).unsqueeze(-2), self.rope.magnitude
            self._cached = wanted, (angle.cos() * size).to(x.dtype), (angle.sin() * size).to(x.dtype)
        return self._cached[1], self._cached[2]

    def _rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        heads, turned = x.unflatten(-1, (-1, self.head_dim)), 2 * cosine.shape[-1]
        turning, still = heads[..., :turned], heads[..., turned:]
        if self.rope.interleaved:
            first, second = turning.unflatten(-1, (-1, 2)).unbind(-1)
        else:
            first, second = turning.chunk(2, dim=-1)
        pair = first * cosine - second * sine, second * cosine + first * sine
        rotated = torch.stack(pair, dim=-1).flatten(-2) if self.rope.interleaved else torch.cat(pair, dim=-1)
        return torch.cat((rotated, still), dim=-1).flatten(-2) if still.shape[-1] else rotated.flatten(-2)


class CoreAttention(nn.Module):
    """Causal attention of query heads over key-value heads; ``recompute`` runs it again in the backward.

    Each of ``sinks`` heads has the logit of a key without a value, which takes part of the softmax.
    """

    def __init__(self, mask: Mask | None, head_dim: int, place: Place, details: Details, *, sinks: int = 0) -> None:
        super().__init__()
        assert mask is not None, "an attention operator carries its mask"
        self.mask, self.head_dim, self.place = mask, head_dim, place
        self.dropout = details.dropout.attention if mask.dropout else 0.0
        self.scale, self.cap, self.alibi = (details.scales.attention, details.caps.attention, details.positions.alibi)
        self.recompute = False
        self.sinks = nn.Parameter(torch.empty(sinks)) if sinks else None
        self.part = (0, 1)  # (index, number) of the parts into which heads are split

    def forward(self, qkv: tuple[Tensor, Tensor, Tensor], *, widths: tuple[int, int] | None = None) -> Tensor:
        """Shapes [batch, seq, heads x head_dim] in, that of the queries out; ``widths`` of queries and values."""
        of_query, of_value = widths or (self.head_dim, self.head_dim)
        sizes = zip(qkv, (of_query, of_query, of_value), strict=True)
        heads = [x.unflatten(-1, (-1, size)).transpose(1, 2) for x, size in sizes]
        core = partial(checkpoint, self._core, use_reentrant=False) if self.recompute else self._core
        out = core(*heads)
        return out.transpose(1, 2).flatten(-2)

    def _core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Shapes [batch, heads, seq, head_dim]."""
        if self.place.context.cp > 1:  # which knows the documents itself: its part holds parts of them
            return self._of_one(query, key, value)
        return boundaries.by_document(self._of_one, query, key, value, dim=2)

    def _of_one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The same of sequences that are one document each, but for context parallelism."""
        window, length = self.mask.window, key.shape[2]
        windowed = window is not None and window < length
        masked = windowed or self.alibi
        plain = not (self.alibi or self.cap or (self.dropout and self.training))
        in_kernel = windowed and plain and banded.is_fused(query)
        if self.place.context.cp > 1 or self.sinks is not None or in_kernel:
            here, parts = self.part
            sinks = None if self.sinks is None else self.sinks.chunk(parts)[here]
            usual = query.shape[-1] ** -0.5
            query = query if self.scale is None else query * (self.scale / usual)
            return context_attention(query, key, value, self.place.context, window, sinks)
        groups = query.shape[1] // key.shape[1]
        shares = not (masked or self.cap) and (query.device.type == "cpu" or banded.is_fused(query))
        if groups > 1 and not shares:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        if self.cap is not None:
            return self._capped(query, key, value, int(window or length))
        options: dict[str, Any] = {
            "scale": self.scale,
            "is_causal": self.mask.causal and not masked,
            "enable_gqa": groups > 1 and shares,
        }
        if masked:
            options["attn_mask"] = self._mask(query, int(window or length))
        if not (self.dropout and self.training):
            return functional.scaled_dot_product_attention(query, key, value, **options)
        with own_draws(self.part, query.device):
            return functional.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, **options)

    def _mask(self, query: Tensor, window: int) -> Tensor:
        """The keys that queries see, bool[seq, seq], or biases added to their scores, [heads, seq, seq]."""
        length, heads = query.shape[2], query.shape[1]
        seen = _band(length, window, query.device)
        if not self.alibi:
            return seen
        here, parts = self.part
        slopes = _slopes(heads * parts)[here * heads : (here + 1) * heads].to(query)
        position = torch.arange(length, device=query.device)
        falling = slopes[:, None, None] * (position[None, :] - position[:, None])
        return falling.masked_fill(~seen, -torch.inf)

    def _capped(self, query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
        """Attention with soft-capped scores; the softmax is at least in fp32."""
        assert self.cap is not None, "only called with a cap"
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = self.cap * torch.tanh(query @ key.transpose(-1, -2) * (scale / self.cap))
        scores = scores.masked_fill(~_band(key.shape[2], window, query.device), -torch.inf)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = torch.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
        if not (self.dropout and self.training):
            return weights @ value
        with own_draws(self.part, query.device):
            return functional.dropout(weights, self.dropout) @ value


@contextmanager
def own_draws(part: tuple[int, int], device: Any) -> Iterator[None]:
    """Inside, each of ``part[1]`` ranks draws numbers of its own, outside they go on drawing the same ones.

    Both follow from the generator's state, which a recomputation restores.
    """
    here, parts = part
    if parts == 1:
        yield
        return
    key = int(torch.randint(SEEDS, ()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(key + here)
        yield


def _slopes(heads: int) -> Tensor:
    """The slope at which scores of every head fall with distance [Press et al. 2021, arXiv 2108.12409, section 3]."""
    whole = 2 ** math.ceil(math.log2(heads))
    every = 2.0 ** (-8.0 * torch.arange(1, whole + 1, dtype=torch.float64) / whole)
    return every if whole == heads else torch.cat((every[1::2], every[::2]))[:heads]


def _band(length: int, window: int, device: Any) -> Tensor:
    """The keys that a query sees: itself and the ``window`` - 1 before it; bool[length, length]."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)
