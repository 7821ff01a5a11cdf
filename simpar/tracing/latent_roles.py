"""Latent attention in a trace [DeepSeek-AI 2024, arXiv 2405.04434, section 2.1], found by the widths of its products.

One product makes keys and values from a normed latent. The product that makes the latent also makes a key that all
heads share, the only one that is rotated. The calls between products and core (slices, rotation, concatenation) become
a rotation of the shared key, one of all heads' queries and keys, and a copy of the values. Where an indexer chooses
keys, training kernels let the heads attend to the latents themselves: the product that makes keys and values becomes
one of queries into the latent and one of outputs out of it, of the same parameters and FLOP
[DeepSeek-AI 2025, arXiv 2512.02556, section 2.1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.architectures.graph import ONE, AttentionPattern, Size, term
from simpar.dataclass import dataclass
from simpar.tracing.raw_operators import OperatorDraft, makers

if TYPE_CHECKING:
    from simpar.tracing.roles import Roles

_SOFT = ("rope", "copy", "add", "activation")
LATENT_KEY: Size = (*term("kv_rank"), *term("rotary_dim"))
"""Features of a key where heads attend to latents."""


@dataclass(frozen=True)
class TracedLatent:
    """One latent attention: its drafts by role, and the dims of its widths."""

    core: OperatorDraft
    query: OperatorDraft
    down: OperatorDraft
    norm: OperatorDraft
    up: OperatorDraft
    query_down: OperatorDraft | None
    query_norm: OperatorDraft | None
    dims: Mapping[str, int]

    @property
    def is_sparse(self) -> bool:
        """Whether its keys are chosen, so that heads attend to latents."""
        return self.core.core is not None and bool(self.core.core.chosen)

    @property
    def end(self) -> str:
        """The value that holds all heads' outputs."""
        return self.core.outputs[0]


def latents(drafts: list[OperatorDraft]) -> tuple[list[OperatorDraft], list[TracedLatent]]:
    """The drafts with three operators in place of the calls before each latent core, and all latent attentions."""
    result = []
    for draft in drafts:
        latent = _latent(drafts, draft) if draft.core is not None else None
        if latent is not None:
            drafts = _plain(drafts, latent)
            result.append(latent)
    return drafts, result


def _latent(drafts: list[OperatorDraft], draft: OperatorDraft) -> TracedLatent | None:
    core, made = draft.core, makers(drafts)
    assert core is not None, "called for core attention"
    products = _reached(made, draft)
    # Multi-head latent attention [DeepSeek-V2, arXiv 2405.04434, section 2.1]: one product makes the latent and the
    # shared rotary key, c = W_down h of kv_rank + rotary columns; behind a norm another makes what heads have of their
    # own, W_up c of heads x (plain + value_dim) columns. A head's key has plain + rotary = key_dim features. Queries
    # come from h itself, or from a latent of theirs that is made and normed in the same way (q_rank).
    for up in products:
        norm = made.get(up.inputs[0])
        down = made.get(norm.inputs[0]) if norm is not None and norm.kind == "norm" else None
        query = next((each for each in products if each.columns == core.heads * core.key_dim), None)
        if down is None or query is None or down.kind != "matmul":
            continue
        rotary = down.columns - up.contraction
        plain = core.key_dim - rotary
        if rotary <= 0 or plain <= 0 or up.columns != core.heads * (plain + core.value_dim):
            continue
        first = made.get(query.inputs[0])
        before = made.get(first.inputs[0]) if first is not None and first.kind == "norm" else None
        compressed = before is not None and before.kind == "matmul" and before.columns == query.contraction
        dims = {
            "heads": core.heads, "kv_heads": core.heads, "head_dim": core.key_dim, "kv_rank": up.contraction,
            "q_rank": query.contraction if compressed else 0, "plain_dim": plain, "rotary_dim": rotary,
            "qk_dim": core.key_dim, "value_dim": core.value_dim,
        }  # fmt: skip
        assert norm is not None, "a product behind a norm"
        return TracedLatent(
            draft, query, down, norm, up, before if compressed else None, first if compressed else None, dims
        )
    return None


def _reached(made: Mapping[str, OperatorDraft], draft: OperatorDraft) -> list[OperatorDraft]:
    """The products that an attention reads through copies and rotations."""
    drafts: dict[str, OperatorDraft] = {}
    waiting = [*draft.inputs]
    seen = set(waiting)
    while waiting:
        each = made.get(waiting.pop())
        if each is None:
            continue
        if each.kind == "matmul":
            drafts[each.name] = each
        elif each.kind in _SOFT:
            waiting += [value for value in each.inputs if value not in seen]
            seen.update(each.inputs)
    return list(drafts.values())


def _plain(drafts: list[OperatorDraft], latent: TracedLatent) -> list[OperatorDraft]:
    """The drafts with a rotation of the shared key, one of all heads' queries and keys, and a copy of the values."""
    query, down, up, core = latent.query, latent.down, latent.up, latent.core
    behind = {value for each in (query, down, up) for value in each.outputs}
    gone: set[str] = set()
    at = drafts.index(core)
    for draft in drafts[:at]:
        if draft.kind in _SOFT and draft.inputs and behind.issuperset(draft.inputs):
            behind.update(draft.outputs)
            gone.add(draft.name)
    heads, dims = latent.dims["heads"], latent.dims

    def made(name: str, kind: str, columns: int, *inputs: str) -> OperatorDraft:
        own = f"{core.name}.{name}"
        return OperatorDraft(own, kind, down.rows, columns, inputs, (own,), core.owners)

    key = made("k_rotary", "rope", dims["rotary_dim"], down.outputs[0])
    kept = [draft for draft in drafts[:at] if draft.name not in gone]
    if latent.is_sparse:
        return [*(each for each in kept if each is not up), *_sparse(latent, key), *drafts[at + 1 :]]
    turned = made("rope", "rope", 2 * heads * dims["qk_dim"], query.outputs[0], up.outputs[0], key.outputs[0])
    value = made("value", "copy", heads * dims["value_dim"], up.outputs[0])
    reads = (turned.outputs[0], value.outputs[0])
    attention = replace(core, inputs=reads, saves=(*reads, core.name, "lse"))
    return [*kept, key, turned, value, attention, *drafts[at + 1 :]]


def _sparse(latent: TracedLatent, key: OperatorDraft) -> list[OperatorDraft]:
    """Heads that attend to chosen latents, with the products of queries into the latent and of outputs out of it."""
    up, core, dims, name = latent.up, latent.core, latent.dims, latent.core.name
    assert core.core is not None, "made of core attention"
    heads, rank, rotary = dims["heads"], dims["kv_rank"], dims["rotary_dim"]

    def product(part: str, source: str, contraction: int, columns: int) -> OperatorDraft:
        own = f"{name}.{part}"
        numel = heads * rank * (contraction if part == "q_latent" else columns // heads)
        pieces = tuple(replace(each, node=f"{each.node}.{part}", numel=numel) for each in up.pieces[:1])
        return OperatorDraft(
            own, "matmul", up.rows, columns, (source,), (own,), core.owners, contraction, pieces, (source,)
        )

    into = product("q_latent", latent.query.outputs[0], dims["plain_dim"], heads * rank)
    turned = OperatorDraft(
        f"{name}.rope", "rope", up.rows, heads * (rank + rotary), (into.name, latent.query.outputs[0]),
        (f"{name}.rope",), core.owners,
    )  # fmt: skip
    reads = (turned.name, latent.norm.outputs[-1], key.name, core.core.chosen)
    seen = replace(core.core, kv_heads=1, key_dim=rank + rotary, value_dim=rank)
    inner = f"{name}.latent"
    attention = replace(
        core, inputs=reads, outputs=(inner,), columns=heads * rank, saves=(*reads, inner, "lse"), core=seen
    )
    out = product("value_up", inner, rank, heads * dims["value_dim"])
    return [into, key, turned, attention, replace(out, outputs=core.outputs)]


def latent_roles(roles: Roles, latent: TracedLatent) -> None:
    """Name the operators of one latent attention and their sizes, without its output projection."""
    roles.dims |= latent.dims
    core = latent.core.name
    both: Size = (*term("heads", "plain_dim"), *term("heads", "value_dim"))
    whole = (
        (latent.query_down, "q_down", term("q_rank"), None), (latent.query_norm, "q_norm", term("q_rank"), None),
        (latent.query, "q_up", term("heads", "qk_dim"), term("q_rank") if latent.query_down else None),
        (latent.down, "kv_down", (*term("kv_rank"), *term("rotary_dim")), None),
        (latent.norm, "kv_norm", term("kv_rank"), None), (latent.up, "kv_up", both, term("kv_rank")),
    )  # fmt: skip
    for draft, name, columns, contraction in whole:
        if draft is not None:
            roles.name(draft, name)
            roles.columns[draft.name] = columns
            roles.regions[draft.name] = "tensor" if name.endswith("up") else "sequence"
            if contraction is not None:
                roles.contractions[draft.name] = contraction
    values, queries = term("heads", "value_dim"), term("heads", "kv_rank")
    turned = (*queries, *term("heads", "rotary_dim")) if latent.is_sparse else term("heads", "qk_dim", times=2)
    sizes = {
        "k_rotary": term("rotary_dim"), "rope": turned, "value": values, "q_latent": queries, "value_up": values,
    }  # fmt: skip
    contractions = {"q_latent": term("plain_dim"), "value_up": term("kv_rank")}
    for draft in roles.drafts:
        part = draft.name.removeprefix(f"{core}.")
        if part in sizes and draft.name != part:
            roles.name(draft, part)
            roles.columns[draft.name] = sizes[part]
            roles.regions[draft.name] = "sequence" if part == "k_rotary" else "tensor"
            if part in contractions:
                roles.contractions[draft.name] = contractions[part]
        if draft.name == core:
            roles.name(draft, "attention")
            roles.columns[core] = queries if latent.is_sparse else values


def latent_mask(pattern: AttentionPattern, *, sparse: bool = False) -> AttentionPattern:
    """Core attention with the named widths of latent attention: keys and values differ in width, one pair per head.

    ``sparse`` heads share the latents.
    """
    if sparse:
        return replace(pattern, key_dim=LATENT_KEY, value_dim=term("kv_rank"), kv_heads=ONE)
    return replace(pattern, key_dim=term("qk_dim"), value_dim=term("value_dim"), kv_heads=term("heads"))
