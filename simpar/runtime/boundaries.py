"""Documents of packed sequences: attention stays inside each of them, and positions count from its beginning.

Modules read here which documents the microbatch has that is under way, as they read weights that were cast once: every
stage of a pipeline knows them from the data. Attention, and what carries a state along the sequence, compute one
document after the other, so that their work is that of the documents, as it is simulated
(:mod:`simpar.architectures.documents`).
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
    """Positions in their documents of a microbatch's tokens, int64[batch, seq], and every sequence's documents.

    Both are of whole sequences, also where a rank has a part of them.
    """

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


def by_document(core: Callable[..., Tensor], *whole: Tensor, dim: int) -> Tensor:
    """A function of tensors [batch, ...] whose ``dim`` is the sequence, within the present documents."""
    documents = current()
    if documents is None:
        return core(*whole)
    rows = []
    for row, pieces in enumerate(documents.pieces):
        mine = [x[row : row + 1] for x in whole]
        parts = [core(*(x.narrow(dim, each.start, each.stop - each.start) for x in mine)) for each in pieces]
        rows.append(torch.cat(parts, dim=dim))
    return torch.cat(rows)
