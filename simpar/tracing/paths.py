"""Ways between drafts: from a value back to the product that makes it, and on to the product that reads it."""

from collections.abc import Iterator, Mapping, Sequence

from simpar.tracing.raw_operators import OperatorDraft

UNARY = ("rope", "norm", "activation", "copy", "dropout", "add")
"""Kinds that make a value of one other."""


def path_to(value: str, made: Mapping[str, OperatorDraft]) -> Iterator[OperatorDraft]:
    """Drafts from a value back to the first that is not unary, such as its product."""
    seen = 0
    while value in made and seen < 32:
        draft = made[value]
        yield draft
        if draft.kind not in UNARY or not _has_one_source(draft, made):
            return
        value, seen = draft.inputs[0], seen + 1


def _has_one_source(draft: OperatorDraft, made: Mapping[str, OperatorDraft]) -> bool:
    return len({made[value].name if value in made else value for value in draft.inputs}) == 1


def readers_of(drafts: Sequence[OperatorDraft], draft: OperatorDraft) -> list[OperatorDraft]:
    """The drafts that read an output of one."""
    return [other for other in drafts if set(draft.outputs) & set(other.inputs)]


def behind_draft(
    drafts: Sequence[OperatorDraft], made: Mapping[str, OperatorDraft], draft: OperatorDraft
) -> tuple[list[OperatorDraft], OperatorDraft | None]:
    """Unary drafts after one, and the only product that reads the last of them (None where there is none)."""
    between: list[OperatorDraft] = []
    readers = readers_of(drafts, draft)
    while len(readers) == 1 and readers[0].kind in UNARY and _has_one_source(readers[0], made):
        between.append(readers[0])
        readers = readers_of(drafts, readers[0])
    product = readers[0] if len(readers) == 1 and readers[0].kind == "matmul" else None
    return between, product
