"""Hyper-connections in a trace: residual streams that maps of every token add up, spread and mix.

A product of all streams behind a norm without a weight makes the maps of one branch; one sum with some of them is what
the branch reads, and the streams behind it are its output spread by others and the streams before mixed by the rest
[Xie et al. 2025, arXiv 2512.24880, section 4.1]. They become the operators of :mod:`simpar.architectures.streams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simpar.dataclass import dataclass
from simpar.tracing.paths import readers_of
from simpar.tracing.raw_operators import OperatorDraft, makers
from simpar.tracing.stream_roles import MIX


@dataclass(frozen=True)
class _Merge:
    """What ends a branch: the calls that make its maps of streams, spread its output, mix the streams, and add both."""

    bend: OperatorDraft
    spread: OperatorDraft
    mixing: OperatorDraft
    last: OperatorDraft


@dataclass(frozen=True)
class _Connection:
    """One product of maps with its norm, and the sum that a branch reads; without a merge in front of a head."""

    norm: OperatorDraft
    maps: OperatorDraft
    collapse: OperatorDraft
    merge: _Merge | None

    @property
    def source(self) -> str:
        return self.norm.inputs[0]

    @property
    def streams(self) -> int:
        return self.norm.columns // self.collapse.columns


def hyper_connections(drafts: list[OperatorDraft]) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts with passes over the streams, and roles by the names of what belongs to them."""
    roles: dict[str, str] = {}
    made = makers(drafts)
    for maps in [draft for draft in drafts if draft.kind == "matmul"]:
        connection = _connection(drafts, made, maps)
        if connection is not None:
            drafts, more = _passes(drafts, connection)
            made, roles = makers(drafts), roles | more
    return drafts, roles


def _connection(
    drafts: list[OperatorDraft], made: Mapping[str, OperatorDraft], maps: OperatorDraft
) -> _Connection | None:
    norm = made.get(maps.inputs[0])
    if norm is None or norm.kind != "norm" or norm.pieces or norm.columns != maps.contraction:
        return None
    read, readers = maps.outputs[-1], readers_of(drafts, maps)
    both = (each for each in readers if {*each.inputs} == {read, norm.inputs[0]} and norm.columns % each.columns == 0)
    collapse = next((each for each in both if each.columns < norm.columns), None)
    if collapse is None or len(readers_of(drafts, norm)) > 1:
        return None
    streams = norm.columns // collapse.columns
    if maps.columns == streams and readers == [collapse]:
        return _Connection(norm, maps, collapse, None)
    merge = _merge(drafts, maps, norm.inputs[0], [each for each in readers if each is not collapse])
    whole = maps.columns == streams * (streams + 2)
    return _Connection(norm, maps, collapse, merge) if whole and merge is not None else None


def _merge(
    drafts: list[OperatorDraft], maps: OperatorDraft, source: str, readers: list[OperatorDraft]
) -> _Merge | None:
    bends = [each for each in readers if {*each.inputs} <= {*maps.outputs}]
    spreads = [each for each in readers if each not in bends]
    if len(bends) != 1 or len(spreads) != 1:
        return None
    mixings = [each for each in readers_of(drafts, bends[0]) if each.kind == "mixing" and source in each.inputs]
    for mixing in mixings:
        for last in readers_of(drafts, mixing):
            if last.kind == "add" and {*last.inputs} & {*spreads[0].outputs}:
                return _Merge(bends[0], spreads[0], mixing, last)
    return None


def _passes(drafts: list[OperatorDraft], own: _Connection) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts with the operators of one connection, and their roles."""
    made, merge, wide = makers(drafts), own.merge, own.norm.columns
    maps, source = own.maps, own.source
    parts = (own.collapse, *((merge.bend, merge.spread) if merge else ()))
    vectors = (replace(piece, kind="vector") for part in parts for piece in part.pieces)
    product = replace(maps, inputs=(source,), saves=(source,), pieces=(*maps.pieces, *vectors))
    name = f"{maps.name}.weights"
    weights = OperatorDraft(
        name, MIX, maps.rows, maps.columns, maps.outputs[-1:], (name, *(merge.bend.outputs if merge else ())),
        maps.owners, maps.columns, saves=maps.outputs[-1:],
    )  # fmt: skip
    both = (source, name)
    collapse = replace(own.collapse, kind=MIX, contraction=wide, inputs=both, saves=both, pieces=())
    roles = {maps.name: "maps", name: "weights", collapse.name: "collapse"}
    placed = {maps.name: [product, weights], own.collapse.name: [collapse], own.norm.name: []}
    if merge is not None:
        (value,) = (each for each in merge.spread.inputs if each not in maps.outputs)
        sums = _sum(made, value, merge.last)
        reads = (*both, sums[-1].outputs[-1] if sums else value)
        joined = replace(
            merge.last, kind=MIX, contraction=(wide + own.collapse.columns) // own.streams, inputs=reads, saves=reads,
            outputs=(*merge.spread.outputs, *merge.mixing.outputs, *merge.last.outputs),
        )  # fmt: skip
        roles |= {each.name: "output" for each in sums} | {joined.name: "merge"}
        placed |= {merge.last.name: [*sums, joined]}
        placed |= {each.name: [] for each in (merge.bend, merge.spread, merge.mixing)}
    return [part for draft in drafts for part in placed.get(draft.name, [draft])], roles


def _sum(made: Mapping[str, OperatorDraft], value: str, last: OperatorDraft) -> list[OperatorDraft]:
    """A sum in front of a merge, as residual sums have it; none where a branch ends in a sum."""
    end = made[value]
    if end.kind == "add":
        return []
    own = f"{last.name}.output"
    return [OperatorDraft(own, "add", end.rows, end.columns, (value,), (own,), last.owners)]
