"""Which operators of a block belong to an indexer, and the names of their sizes (:mod:`simpar.architectures.indexer`).

Nothing flows back through a choice, so what only leads to one learns from a loss of its own, which stands behind the
attention that sees the chosen keys; modules of transformers compute no such loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.architectures.graph import AttentionPattern, Size, term
from simpar.architectures.indexer import INDEX_QUERIES
from simpar.tracing.raw_operators import ChoiceDraft, Core, OperatorDraft, makers

if TYPE_CHECKING:
    from simpar.tracing.roles import Roles

LOSS = "index_loss"


def with_losses(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts, with a loss behind every attention whose keys one of them has chosen."""
    made = makers(drafts)
    result = []
    for draft in drafts:
        result.append(draft)
        choice = made.get(draft.core.chosen) if draft.core is not None else None
        if draft.core is not None and isinstance(choice, ChoiceDraft) and choice.indexer is not None:
            name = f"{draft.name}.{LOSS}"
            own = OperatorDraft(
                name, LOSS, choice.rows, choice.indexer.topk, (draft.inputs[0], draft.core.chosen), (name,),
                draft.owners, draft.core.key_dim,
            )  # fmt: skip
            result.append(own)
    return result


def choice_roles(roles: Roles, made: Mapping[str, OperatorDraft]) -> None:
    """Name the operators of every choice and their sizes; their ranks choose for their rows of the sequence."""
    for draft in roles.drafts:
        if not isinstance(draft, ChoiceDraft) or draft.indexer is None:
            continue
        roles.dims |= draft.indexer.dims
        roles.name(draft, "indexer")
        roles.columns[draft.name] = term("index_choices", times=2)
        roles.regions[draft.name] = "sequence"
        left = {
            "q": (draft.indexer.heads * draft.indexer.dim, INDEX_QUERIES),
            "k": (draft.indexer.dim, term("index_dim")), "weights": (draft.indexer.heads, term("index_heads")),
        }  # fmt: skip
        for value in draft.inputs:
            product = _product(made, value)
            part = next((key for key, (width, _) in left.items() if product and width == product.columns), "")
            if product is not None and part:
                _name_part(roles, made, value, f"index_{part}", left.pop(part)[1])


def _product(made: Mapping[str, OperatorDraft], value: str) -> OperatorDraft | None:
    """The product that makes a value, behind a norm or not."""
    draft = made.get(value)
    if draft is not None and draft.kind == "norm":
        draft = made.get(draft.inputs[0])
    return draft if draft is not None and draft.kind == "matmul" else None


def _name_part(roles: Roles, made: Mapping[str, OperatorDraft], value: str, name: str, columns: Size) -> None:
    product, last = _product(made, value), made[value]
    assert product is not None, "called for a product"
    roles.name(product, name)
    if last is not product:
        roles.name(last, f"{name}_norm")
        roles.rows[last.name] = product.rows
    for draft in {product.name: product, last.name: last}.values():
        roles.columns[draft.name] = columns
        roles.regions[draft.name] = "sequence"
    if roles.names.get(getattr(made.get(product.inputs[0]), "name", "")) == "q_norm":
        roles.contractions[product.name] = term("q_rank")


def loss_roles(roles: Roles, key_dim: Size) -> None:
    """Name the losses of indexers, whose attention has heads of ``key_dim`` features."""
    for draft in roles.drafts:
        if draft.kind == LOSS:
            roles.name(draft, LOSS)
            roles.columns[draft.name] = term("index_topk")
            roles.contractions[draft.name] = key_dim
            roles.regions[draft.name] = "tensor"


def chosen_mask(pattern: AttentionPattern, core: Core, pairs: Size, *, indexed: bool) -> AttentionPattern:
    """Core attention to chosen keys; other ranks of the sequence need ``pairs``, and keys of the indexer."""
    exchanged = (*pairs, *term("index_dim")) if indexed else pairs
    return replace(pattern, selection=core.selection, exchanged=exchanged)
