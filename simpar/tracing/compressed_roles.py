"""Attention with one key that is its value too, shared by all heads, and queries from a latent, in a trace.

Such heads see keys of pooled tokens beside those of a window, and their outputs are projected in groups, then together
(:mod:`simpar.architectures.compressed`). Keys, pools and the indexer's are those of a rank's rows of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.architectures.graph import ONE, AttentionPattern, Size, term
from simpar.dataclass import dataclass
from simpar.tracing.nodes import divide_size
from simpar.tracing.paths import behind_draft, path_to, readers_of
from simpar.tracing.raw_operators import ChoiceDraft, OperatorDraft, PoolDraft, makers

if TYPE_CHECKING:
    from simpar.tracing.roles import Roles

KEY: Size = term("head_dim")
QUERY: Size = term("heads", "head_dim")


@dataclass(frozen=True)
class _SharedKey:
    """One attention: the drafts from queries and from keys back to their products, and the latent of the queries."""

    core: OperatorDraft
    queries: list[OperatorDraft]
    keys: list[OperatorDraft]
    norm: OperatorDraft
    down: OperatorDraft


def by_token(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts, those of pooled keys as every token's share of them."""
    result: list[OperatorDraft] = []
    for draft in drafts:
        pool = next((each for each in result if isinstance(each, PoolDraft) and _is_behind(result, each, draft)), None)
        if pool is not None:
            draft = replace(draft, rows=pool.rows, columns=pool.columns)
        result.append(draft)
    return result


def _is_behind(drafts: list[OperatorDraft], pool: PoolDraft, draft: OperatorDraft) -> bool:
    """Whether a draft norms or rotates pooled keys."""
    if draft.kind not in ("norm", "rope", "copy") or draft.rows != ((pool.pieces_of_sequence, ("batch",)),):
        return False
    made = makers(drafts)
    return any(pool in path_to(value, made) for value in draft.inputs)


def grouped_outputs(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts with one product for the groups of an attention's outputs that stacked weights project."""
    made = makers(drafts)
    for core in [draft for draft in drafts if draft.core is not None]:
        last = [core, *behind_draft(drafts, made, core)[0]][-1]
        readers = readers_of(drafts, last)
        if len(readers) == 1 and (product := _whole(readers[0], core)) is not None:
            drafts = [product if draft is readers[0] else draft for draft in drafts]
    return drafts


def _whole(draft: OperatorDraft, core: OperatorDraft) -> OperatorDraft | None:
    """A product by groups as one of all of them; None for others."""
    groups, rest = divmod(core.columns, draft.contraction or 1)
    one = draft.kind == "mixing" and len(draft.inputs) == 1 and len({each.parameter for each in draft.pieces}) == 1
    numel = sum(each.numel for each in draft.pieces)
    if not one or rest or groups < 2 or numel != core.columns * draft.columns:
        return None
    if divide_size(draft.rows, groups) != core.rows:
        return None
    pieces = tuple(replace(each, kind="matrix") for each in draft.pieces)
    return replace(draft, kind="matmul", rows=core.rows, columns=groups * draft.columns, pieces=pieces)


def shared_key_roles(roles: Roles, made: Mapping[str, OperatorDraft]) -> set[str]:
    """Name the attentions of this kind and their sizes; their names."""
    result = set()
    for draft in roles.drafts:
        own = _shared_key(roles, made, draft)
        if own is not None and _name_output(roles, made, draft):
            _name_keys(roles, own)
            _name_pools(roles, made, draft)
            result.add(draft.name)
    return result


def _shared_key(roles: Roles, made: Mapping[str, OperatorDraft], draft: OperatorDraft) -> _SharedKey | None:
    core = draft.core
    if core is None or core.kv_heads != 1 or core.key_dim != core.value_dim or draft.name not in roles.keys_as_values:
        return None
    queries, keys = ([*path_to(value, made)] for value in draft.inputs[:2])
    norm = made.get(queries[-1].inputs[0]) if queries and queries[-1].kind == "matmul" else None
    down = made.get(norm.inputs[0]) if norm is not None and norm.kind == "norm" else None
    one_key = bool(keys) and keys[-1].kind == "matmul" and keys[-1].columns == core.key_dim
    if not one_key or norm is None or down is None or down.kind != "matmul":
        return None
    return _SharedKey(draft, queries, keys, norm, down)


def _name_keys(roles: Roles, own: _SharedKey) -> None:
    """Name the queries and their latent, the keys, and the attention."""
    core = own.core.core
    assert core is not None, "an attention"
    sizes = {"heads": core.heads, "kv_heads": 1, "head_dim": core.key_dim, "q_rank": own.down.columns}
    roles.dims = {**sizes, **roles.dims}
    for draft, name in ((own.down, "q_down"), (own.norm, "q_norm")):
        _set(roles, draft, name, term("q_rank"), "sequence")
    roles.contractions[own.queries[-1].name] = term("q_rank")
    for path, size, region, product in (
        (own.queries, QUERY, "tensor", "q_up"), (own.keys, KEY, "sequence", "kv_down"),
    ):  # fmt: skip
        for draft in path:
            name = product if draft is path[-1] else f"{product[0]}_{draft.kind}"
            _set(roles, draft, name, size, region)
            roles.rows[draft.name] = path[-1].rows
    _set(roles, own.core, "attention", QUERY, "tensor")


def _name_output(roles: Roles, made: Mapping[str, OperatorDraft], draft: OperatorDraft) -> bool:
    """Name the products behind an attention; False where they are others."""
    between, group = behind_draft(roles.drafts, made, draft)
    product = behind_draft(roles.drafts, made, group)[1] if group is not None else None
    if group is None or product is None or product.contraction != group.columns:
        return False
    core = draft.core
    assert core is not None, "an attention"
    groups = core.heads * core.key_dim // group.contraction
    roles.dims = {**roles.dims, "o_groups": groups, "o_rank": group.columns // groups}
    for each in between:
        _set(roles, each, "turned_back", QUERY, "tensor")
        roles.rows[each.name] = draft.rows
    _set(roles, group, "o_group", term("o_groups", "o_rank"), "tensor")
    roles.contractions[product.name] = term("o_groups", "o_rank")
    roles.name(product, "o_proj")
    return True


def _pools(made: Mapping[str, OperatorDraft], attention: OperatorDraft) -> Iterator[tuple[str, list[OperatorDraft]]]:
    """The ways from pooled keys that an attention sees, or its indexer's, back to the pool, and a name for each."""
    for value in attention.inputs[2:]:
        choice = made.get(value)
        of_index = isinstance(choice, ChoiceDraft)
        for each in choice.inputs if choice is not None and of_index else (value,):
            path = [*path_to(each, made)]
            if path and isinstance(path[-1], PoolDraft):
                yield ("index" if of_index else "compressed"), path


def _name_pools(roles: Roles, made: Mapping[str, OperatorDraft], attention: OperatorDraft) -> None:
    """Name the pools that an attention sees and its indexer's."""
    for name, path in _pools(made, attention):
        pool = path[-1]
        for part in path:
            own = name if part is pool else f"{name}_{part.kind}"
            _set(roles, part, own, ((pool.columns, ()),), "sequence")
        for product, kind in zip(pool.inputs, ("kv", "gate"), strict=True):
            roles.name(made[product], f"{name}_{kind}")
            roles.regions[made[product].name] = "sequence"


def shared_key_mask(
    pattern: AttentionPattern, attention: OperatorDraft, made: Mapping[str, OperatorDraft]
) -> AttentionPattern:
    """Core attention of heads that share one key; other ranks of the sequence need a token's key and share of pools."""
    assert attention.core is not None, "an attention"
    exchanged = (*KEY, *((path[-1].columns, ()) for _, path in _pools(made, attention)))
    return replace(pattern, kv_heads=ONE, selection=attention.core.selection, exchanged=exchanged)


def _set(roles: Roles, draft: OperatorDraft, name: str, columns: Size, region: str) -> None:
    roles.name(draft, name)
    roles.columns[draft.name] = columns
    roles.regions[draft.name] = region
