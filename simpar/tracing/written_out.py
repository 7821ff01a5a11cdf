"""Attention to keys of another number than a sequence or another tower has: its products and its softmax, written out.

Pieces of a sequence that see their neighbours, keys of two towers in one, learned keys before a sequence: no kernel
here stands for them, so they count as the calls of eager code, which all tensor-parallel ranks repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from simpar.tracing.nodes import times
from simpar.tracing.raw_operators import OperatorDraft

SOFTMAX = "softmax"


def is_softmax(draft: OperatorDraft) -> bool:
    """Whether a draft is the softmax of an attention that is written out."""
    return draft.name.endswith(f".{SOFTMAX}")


def written_out(drafts: Sequence[OperatorDraft], names: Collection[str]) -> list[OperatorDraft]:
    """The drafts, with three in the place of each attention that is named."""
    return [part for draft in drafts for part in (_parts(draft) if draft.name in names else (draft,))]


def _parts(draft: OperatorDraft) -> tuple[OperatorDraft, OperatorDraft, OperatorDraft]:
    """The product of queries and keys, the softmax, and its product with the values."""
    core = draft.core
    assert core is not None, "an attention"
    rows = times(draft.rows, ((core.heads, ()),))
    scored, soft = (f"{draft.name}.{part}" for part in ("scores", SOFTMAX))
    scores = replace(
        draft, name=scored, kind="mixing", rows=rows, columns=core.count, outputs=(scored,), contraction=core.key_dim,
        saves=draft.inputs, core=None,
    )  # fmt: skip
    softmax = replace(
        scores, name=soft, kind="activation", inputs=(scored,), outputs=(soft,), contraction=0, pieces=(), saves=(soft,)
    )
    values = replace(
        scores, name=draft.name, columns=core.value_dim, inputs=(soft, *draft.inputs), outputs=draft.outputs,
        contraction=core.count, pieces=(), saves=(soft, *draft.inputs),
    )  # fmt: skip
    return scores, softmax, values
