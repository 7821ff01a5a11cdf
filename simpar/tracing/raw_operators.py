"""Operators of a trace before their sizes have names."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from simpar.architectures.graph import Selection, Size
from simpar.architectures.indexer import Indexer
from simpar.dataclass import dataclass

INPUT_VALUE = ""


@dataclass(frozen=True)
class DraftWeight:
    """A parameter (or slice) of a draft: the call that reads it, the parameter's name, its number of elements."""

    node: str
    parameter: str
    numel: int
    kind: str


@dataclass(frozen=True)
class Core:
    """Core attention: heads, key-value heads, their widths, and the lengths of queries and keys.

    Of the keys, queries see those of a ``selection``, which the value ``chosen`` names.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    queries: Size
    keys: Size
    causal: bool = False
    window: int | None = None
    dropout: bool = False
    count: int = 0
    selection: Selection | None = None
    chosen: str = ""


@dataclass(frozen=True)
class OperatorDraft:
    """One operator: a call, or several that run as one. A "mixing" is a product of two activations.

    ``rows`` is a polynomial in batch and seq. ``inputs`` and ``outputs`` are values (names of calls); ``saves`` are
    values kept for backward, or "stats", "mask", "lse". ``contraction`` is 0 for operators other than products;
    ``table`` is the number of rows of an embedding table.
    """

    name: str
    kind: str
    rows: Size
    columns: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    owners: tuple[tuple[str, str], ...]
    contraction: int = 0
    pieces: tuple[DraftWeight, ...] = ()
    saves: tuple[str, ...] = ()
    core: Core | None = None
    table: int = 0

    @property
    def is_heavy(self) -> bool:
        """Whether it is a product, core attention or a table lookup."""
        return self.kind in ("matmul", "mixing", "attention", "embedding")


@dataclass(frozen=True)
class RecurrenceDraft(OperatorDraft):
    """A pass over the sequence that carries a state: ``dims`` are the sizes of its state, by name."""

    dims: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ChoiceDraft(OperatorDraft):
    """A choice of keys, and the sizes of what chooses."""

    indexer: Indexer | None = None


@dataclass(frozen=True)
class PoolDraft(OperatorDraft):
    """Keys that each stand for several tokens, as every token's share of them; pieces that a sequence has."""

    pieces_of_sequence: int = 0


def merge_drafts(drafts: list[OperatorDraft], groups: list[list[str]]) -> list[OperatorDraft]:
    """The drafts with every group (by names) merged in place of its first: columns add up, weights are joined."""
    by_name = {draft.name: draft for draft in drafts}
    heads: dict[str, OperatorDraft] = {}
    gone: set[str] = set()
    for group in groups:
        parts = [by_name[name] for name in group]
        heads[group[0]] = _one(parts)
        gone.update(group[1:])
    return [heads.get(draft.name, draft) for draft in drafts if draft.name not in gone]


def _one(parts: list[OperatorDraft]) -> OperatorDraft:
    return replace(
        parts[0],
        columns=sum(part.columns for part in parts),
        inputs=_all(part.inputs for part in parts),
        outputs=_all(part.outputs for part in parts),
        pieces=tuple(dict.fromkeys(piece for part in parts for piece in part.pieces)),
        saves=_all(part.saves for part in parts),
    )


def _all(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))


def makers(drafts: list[OperatorDraft]) -> Mapping[str, OperatorDraft]:
    """Which draft makes each value."""
    return {value: draft for draft in drafts for value in draft.outputs}


def with_unread(drafts: list[OperatorDraft], parameters: Mapping[str, tuple[int, ...]]) -> list[OperatorDraft]:
    """The drafts, the first with all ``parameters`` (shapes) that no call reads or that several attentions share."""
    readers = Counter(piece.node for draft in drafts if draft.core for piece in draft.pieces)
    drafts = [
        replace(draft, pieces=tuple(p for p in draft.pieces if readers[p.node] == 1)) if draft.core else draft
        for draft in drafts
    ]
    held: Counter[str] = Counter()
    for piece in {piece.node: piece for draft in drafts for piece in draft.pieces}.values():
        held[piece.parameter] += piece.numel
    left = [
        DraftWeight(name, name, prod(sizes) - held[name], "vector")
        for name, sizes in parameters.items()
        if prod(sizes) > held[name]
    ]
    return [replace(drafts[0], pieces=(*drafts[0].pieces, *left)), *drafts[1:]]
