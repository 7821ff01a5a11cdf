"""Multi-head latent attention on one rank: operators between its products [DeepSeek-AI 2024, arXiv 2405.04434, 2.1].

Keys have features per head, which come from the latent, and rotary features that all heads share. The shared key is
computed from this rank's rows of the sequence; ``share`` brings it to the ranks that split the heads.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simpar.architectures.details import Details, Rope
from simpar.architectures.graph import Operator
from simpar.runtime.attention import CoreAttention, Place, Rotary

NORMS, NORM_EPS = ("q_norm", "kv_norm"), 0.000001
"""Norms of latents, and what they add to the mean square, whatever a config says of the other norms [Hugging Face
transformers, DeepseekV3RMSNorm's default]."""


class KeyRotary(Rotary):
    """Rotary position embedding of the key that all heads share, on the rows of the residual stream."""

    def forward(self, compressed: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """([batch, rows, kv_rank], [batch, rows, rotary_dim]) to [batch, rows, rotary_dim]."""
        _, key = compressed
        place = self.place
        positions = place.residual_positions(key.shape[1], key.device)
        return self._rotate(key, *self._tables(key, positions))


class LatentRotary(Rotary):
    """Queries and keys of all local heads: plain features, then rotary ones; all heads share the key's rotary ones."""

    def __init__(self, plain: int, rotary: int, rope: Rope, place: Place) -> None:
        super().__init__(rotary, rope, place)
        self.plain = plain
        self.share: Callable[[Tensor], Tensor] = lambda key: key

    def forward(  # type: ignore[override]
        self, query: Tensor, key_value: tuple[Tensor, Tensor], shared: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[batch, seq, heads x qk_dim], ([.., heads x plain], values), [batch, rows, rotary] to two like the first."""
        shared = self.share(shared)
        heads = query.unflatten(-1, (-1, self.plain + self.head_dim))
        plain, turned = heads.split((self.plain, self.head_dim), dim=-1)
        turned = self._rotate(turned.flatten(-2), *self._tables(query)).unflatten(-1, (-1, self.head_dim))
        key = key_value[0].unflatten(-1, (-1, self.plain))
        common = shared.unsqueeze(2).expand(*key.shape[:3], self.head_dim)
        return torch.cat((plain, turned), -1).flatten(-2), torch.cat((key, common), -1).flatten(-2)


class Values(nn.Module):
    """The second output of the product from the latent."""

    def forward(self, key_value: tuple[Tensor, Tensor]) -> Tensor:
        """(keys, values [batch, seq, heads x value_dim]) to the values."""
        return key_value[1]


class LatentAttention(CoreAttention):
    """Causal attention whose values have their own width."""

    def __init__(self, mask: Any, widths: tuple[int, int], place: Place, details: Details) -> None:
        super().__init__(mask, widths[0], place, details)
        self.value_dim = widths[1]

    def forward(self, query_key: tuple[Tensor, Tensor], value: Tensor) -> Tensor:  # type: ignore[override]
        """Two of [batch, seq, heads x qk_dim] and [batch, seq, heads x value_dim] to the shape of the last."""
        missing = self.head_dim - self.value_dim if self.place.context.cp > 1 else 0
        heads = value.unflatten(-1, (-1, self.value_dim))
        if missing:  # key and value travel as one tensor
            heads = functional.pad(heads, (0, missing))
        out = super().forward((*query_key, heads.flatten(-2)), widths=(self.head_dim, heads.shape[-1]))
        return out.unflatten(-1, (-1, heads.shape[-1]))[..., : self.value_dim].flatten(-2) if missing else out


def makers(dims: Mapping[str, int], details: Details, place: Place) -> dict[str, Callable[[Operator], nn.Module]]:
    """The makers of the operators that differ from other attention."""

    def rope(op: Operator) -> nn.Module:
        if op.region == "sequence":
            return KeyRotary(dims["rotary_dim"], details.positions.rope, place)
        return LatentRotary(dims["plain_dim"], dims["rotary_dim"], details.positions.rope, place)

    widths = dims["qk_dim"], dims["value_dim"]
    return {
        "rope": rope,
        "attention": lambda op: LatentAttention(op.attention, widths, place, details),
        "copy": lambda _: Values(),
    }
