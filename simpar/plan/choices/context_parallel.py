"""Choices of context parallelism."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from simpar.plan.choices.section import Section
from simpar.units import Count


class ContextParallel(Section):
    """Context parallelism: how queries meet keys of other ranks. What is None is decided by the stack.

    ``cp_method`` "ring" passes blocks of keys and values round the ranks, "all_gather" collects them first,
    "ulysses" exchanges heads for tokens. With "ring" and "all_gather", groups of ``ulysses`` neighbours exchange
    heads first (the hybrid). ``cp_balance`` says which tokens a rank holds: "zigzag" (one chunk from each end),
    "striped" (every cp-th token) or "contiguous" (one chunk: causal ranks at the end have the most work).
    """

    cp_method: Literal["ring", "ulysses", "all_gather"] | None = None
    cp_balance: Literal["zigzag", "striped", "contiguous"] | None = None
    ulysses: Count | None = Field(
        None, description="context ranks that exchange heads; default all of them for ulysses, else 1"
    )

    def degree(self, cp: Any) -> Any:
        """Ranks (an int, or an array like ``cp``) that exchange heads for tokens."""
        return self.ulysses or (cp if self.cp_method == "ulysses" else 1)
