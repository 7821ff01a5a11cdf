"""Choices of tensor parallelism."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from simpar.plan.choices.section import Section

REMOVED = {"tp_method": "1d", "tp_depth": 1}
"""Keys that plan files of earlier releases have, with the only value that is left."""
REMOVED_SCHEMA = {key: {"const": left, "deprecated": True} for key, left in REMOVED.items()}


def _add_removed_keys(schema: dict[str, Any]) -> None:
    schema["properties"] |= REMOVED_SCHEMA


class TensorParallel(Section):
    """Tensor parallelism: sequence parallelism and overlap. What is None is decided by the stack."""

    model_config = ConfigDict(json_schema_extra=_add_removed_keys)

    sequence_parallel: bool | None = None
    overlap: bool | None = None
