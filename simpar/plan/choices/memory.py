"""Choices about what is kept for backward."""

from __future__ import annotations

from pydantic import Field, field_validator

from simpar.models import recompute
from simpar.plan.choices.section import Section


class MemoryPolicy(Section):
    """What is kept for backward: ``none``, ``selective``, ``full``, ``every:C`` or ``modules:A+B`` recompute.

    ``layers:none*4,full*8`` chooses layer by layer; ``optimal`` stands for the choice by layer that fits in memory
    with the least time. ``recompute_early`` runs layers that are recomputed in full again while a stage waits for the
    gradient, ahead of their backward, so that it hides in bubbles; their activations are live for longer.
    """

    recompute: str = Field("none", json_schema_extra={"pattern": f"^{recompute.PATTERN}$"})
    recompute_early: bool = Field(False, description="recompute while a stage waits for the gradient")

    @field_validator("recompute")
    @classmethod
    def _known(cls, value: str) -> str:
        if not recompute.is_known(value):
            raise ValueError(f"allowed {recompute.ALLOWED}")
        return value
