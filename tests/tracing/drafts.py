"""Drafts and calls by hand, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from simpar.architectures.graph import Size
from simpar.tracing.nodes import DATA, CallNode, Ref
from simpar.tracing.raw_operators import OperatorDraft

TOKENS: Size = ((1, ("batch", "seq")),)


def draft(name: str, kind: str, columns: int, *inputs: str, **others: Any) -> OperatorDraft:
    """A draft of ``columns`` for every token that makes the value of its own name."""
    whole = {"rows": TOKENS, "outputs": (name,), "owners": (), **others}
    return OperatorDraft(name, kind, columns=columns, inputs=inputs, **whole)


def call(name: str, op: str, *reads: str, path: str = "", **others: Any) -> CallNode:
    """A call in a module that depends on the batch and reads others."""
    owners = ((path, "Module"),) if path else ()
    whole = {"shape": TOKENS, "sizes": (2, 8), "kind": DATA, "owners": owners, **others}
    return CallNode(name, op, tuple(Ref(each) for each in reads), **whole)
