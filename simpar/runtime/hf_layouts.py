"""How parameters are read from and written to the tensors of checkpoints, for every packing that families declare.

torch is imported only when tensors are read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simpar.architectures.weights import Packing
from simpar.dataclass import dataclass

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Sequence["Tensor"]


@dataclass(frozen=True)
class Storage:
    """How a packing is executed: ``read`` makes parameters of tensors, its inverse ``write`` tensors of parameters.

    Both get the model's dims.
    """

    read: Callable[[Tensors, Mapping[str, int]], Tensors]
    write: Callable[[Tensors, Mapping[str, int]], Tensors]


def _cat(parts: Tensors, dim: int = 0) -> Tensor:
    import torch

    return torch.cat(list(parts), dim=dim)


def _stack(parts: Tensors, dim: int = 0) -> Tensor:
    import torch

    return torch.stack(list(parts), dim=dim)


def _heads(dims: Mapping[str, int]) -> tuple[int, int, int]:
    """Rows of queries, of keys and of values."""
    keys = dims["kv_heads"] * dims["head_dim"]
    return dims["heads"] * dims["head_dim"], keys, keys


def _each(turn: Callable[[Tensor], Tensor]) -> Storage:
    return Storage(lambda tensors, _: [turn(each) for each in tensors], lambda own, _: [turn(each) for each in own])


def _mixed_widths(dims: Mapping[str, int]) -> list[int]:
    """Rows of the first product of a mixer, by what they compute."""
    inner, shared = dims["mamba_heads"] * dims["mamba_head_dim"], dims["mamba_groups"] * dims["state"]
    return [inner, inner, shared, shared, dims["mamba_heads"]]


def _by_group(tensors: Tensors, dims: Mapping[str, int]) -> Tensors:
    """Rows are grouped as [key-value heads, their query heads and the two, head_dim]."""
    whole, groups = tensors[0], dims["kv_heads"]
    split = whole.unflatten(0, (groups, -1, dims["head_dim"]))
    parts = split[:, :-2], split[:, -2:-1], split[:, -1:]
    return [part.flatten(0, 2) for part in parts]


def _to_groups(own: Tensors, dims: Mapping[str, int]) -> Tensors:
    split = [part.unflatten(0, (dims["kv_heads"], -1, dims["head_dim"])) for part in own]
    return [_cat(split, dim=1).flatten(0, 2)]


def _latent(tensors: Tensors, dims: Mapping[str, int]) -> Tensors:
    """Rows of a product from the latent are [heads, plain and value features]."""
    split = tensors[0].unflatten(0, (dims["heads"], -1)).split((dims["plain_dim"], dims["value_dim"]), dim=1)
    return [part.flatten(0, 1) for part in split]


def _to_latent(own: Tensors, dims: Mapping[str, int]) -> Tensors:
    return [_cat([part.unflatten(0, (dims["heads"], -1)) for part in own], dim=1).flatten(0, 1)]


def _mixed(tensors: Tensors, _: Mapping[str, int]) -> Tensors:
    """Gate and up outputs alternate: [experts, hidden, 2 ffn] or [experts, 2 ffn]."""
    whole = tensors[0].unflatten(-1, (-1, 2))
    return [whole.movedim(-1, 1).transpose(2, 3) if whole.ndim > 3 else whole.movedim(-1, 1)]


def _to_mixed(own: Tensors, _: Mapping[str, int]) -> Tensors:
    whole = own[0].transpose(2, 3) if own[0].ndim > 3 else own[0]
    return [whole.movedim(1, -1).flatten(-2)]


def _stacked(tensors: Tensors, dims: Mapping[str, int]) -> Tensors:
    """One tensor per expert, or a pair of them: gates first, then ups."""
    count = dims["num_experts"]
    parts = [_stack(tensors[at : at + count]) for at in range(0, len(tensors), count)]
    return [parts[0] if len(parts) == 1 else _stack(parts, dim=1)]


def _apart(own: Tensors, _: Mapping[str, int]) -> Tensors:
    whole = own[0]
    return [*whole.unbind(0)] if whole.ndim == 3 else [each for part in whole.unbind(1) for each in part.unbind(0)]


def _side_by_side(own: Tensors, _: Mapping[str, int]) -> Tensors:
    return [_cat(own)]


def _of_experts(rows: Tensor, dims: Mapping[str, int]) -> Tensor:
    """Rows of all experts as [experts, rows, columns]."""
    return rows.unflatten(0, (dims["num_experts"], -1))


def _of_pairs(tensors: Tensors, _: Mapping[str, int]) -> Tensors:
    """Gates of an expert first, then its ups."""
    return [tensors[0].unflatten(1, (2, -1))]


def _to_pairs(own: Tensors, _: Mapping[str, int]) -> Tensors:
    return [own[0].flatten(1, 2)]


def _transposed(layout: Storage) -> Storage:
    """The storage with its tensors transposed."""
    turned = STORAGE[Packing.TRANSPOSED]
    return Storage(
        lambda tensors, dims: layout.read(turned.read(tensors, dims), dims),
        lambda own, dims: turned.write(layout.write(own, dims), dims),
    )


STORAGE: dict[Packing, Storage] = {
    Packing.SAME: _each(lambda x: x),
    Packing.TRANSPOSED: _each(lambda x: x.transpose(-1, -2) if x.ndim > 1 else x),
    Packing.QKV_ROWS: Storage(lambda tensors, dims: tensors[0].split(_heads(dims)), _side_by_side),
    Packing.QKV_GROUPS: Storage(_by_group, _to_groups),
    Packing.HALVES: Storage(lambda tensors, _: tensors[0].chunk(2), _side_by_side),
    Packing.KEY_VALUE_HEADS: Storage(_latent, _to_latent),
    Packing.LATENT_AND_KEY: Storage(
        lambda tensors, dims: tensors[0].split((dims["kv_rank"], dims["rotary_dim"])), _side_by_side
    ),
    Packing.SWAPPED_COLUMNS: _each(lambda x: _cat([*reversed(x.chunk(2, dim=1))], dim=1)),
    Packing.EXPERT_TENSORS: Storage(_stacked, _apart),
    Packing.EXPERT_HALVES: Storage(_of_pairs, _to_pairs),
    Packing.EXPERT_ALTERNATING: Storage(_mixed, _to_mixed),
    Packing.EXPERT_ROWS: Storage(
        lambda tensors, dims: [_stack([_of_experts(each, dims) for each in tensors], dim=1)],
        lambda own, _: [each.flatten(0, 1) for each in own[0].unbind(1)],
    ),
    Packing.EXPERT_ROWS_TRANSPOSED: Storage(
        lambda tensors, dims: [_of_experts(tensors[0], dims).transpose(1, 2)],
        lambda own, _: [own[0].transpose(1, 2).flatten(0, 1)],
    ),
    Packing.MIXER_ROWS: Storage(lambda tensors, dims: tensors[0].split(_mixed_widths(dims)), _side_by_side),
    Packing.DEPTHWISE: Storage(lambda tensors, _: [tensors[0].squeeze(1)], lambda own, _: [own[0].unsqueeze(1)]),
    Packing.ROW: Storage(lambda tensors, _: [tensors[0].squeeze(0)], lambda own, _: [own[0].unsqueeze(0)]),
}
STORAGE |= {
    Packing.QKV_COLUMNS: _transposed(STORAGE[Packing.QKV_ROWS]),
    Packing.EXPERT_HALVES_TRANSPOSED: _transposed(STORAGE[Packing.EXPERT_HALVES]),
}
