"""Documents of packed sequences: attention stays inside each of them, and positions count from its beginning.

Modules read here which documents the microbatch has that is under way, as they read weights that were cast once: every
stage of a pipeline knows them from the data. Attention computes one document after the other, so that its work is that
of the documents, as it is simulated (:mod:`simpar.architectures.documents`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from simpar.dataclass import dataclass

_current: list["PackedDocuments | None"] = [None]


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """Positions in their documents of a microbatch's tokens, int64[batch, seq], and every sequence's documents."""

    positions: Tensor
    pieces: tuple[tuple[slice, ...], ...]

    @staticmethod
    def of(positions: Tensor, device: Any) -> "PackedDocuments":
        """Those of positions on the host; a document begins wherever one is zero."""
        pieces = []
        for row in positions:
            starts = [*(row == 0).nonzero().flatten().tolist(), len(row)]
            pieces.append(tuple(slice(start, stop) for start, stop in pairwise(starts)))
        return PackedDocuments(positions.to(device), tuple(pieces))


def current() -> PackedDocuments | None:
    """The documents of the microbatch that is under way; None if sequences are whole."""
    return _current[-1]


@contextmanager
def within(documents: PackedDocuments | None) -> Iterator[None]:
    """Inside this context modules work on a microbatch of these documents, recomputation in a backward included."""
    _current.append(documents)
    try:
        yield
    finally:
        _current.pop()


def following(function: Callable[..., Any], documents: Callable[[], Sequence[PackedDocuments]]) -> Callable[..., Any]:
    """A function whose first argument is the number of a microbatch, within its documents, if there are any."""

    def call(number: int, *arguments: Any, **options: Any) -> Any:
        known = documents()
        with within(known[number] if known else None):
            return function(number, *arguments, **options)

    return call


def by_document(core: Callable[..., Tensor], *heads: Tensor) -> Tensor:
    """A core attention of [batch, heads, seq, head_dim], within the present documents."""
    documents = current()
    if documents is None:
        return core(*heads)
    rows = []
    for row, pieces in enumerate(documents.pieces):
        mine = [x[row : row + 1] for x in heads]
        rows.append(torch.cat([core(*(x[:, :, piece] for x in mine)) for piece in pieces], dim=2))
    return torch.cat(rows)
