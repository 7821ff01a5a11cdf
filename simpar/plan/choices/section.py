"""The base of a plan's sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a plan: frozen, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
