"""Published tables in explicit columns, read once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from simpar.validation import collectives, kernels
from simpar.validation.cells import Row
from simpar.validation.table import read_table

from .operations import normalised_collective, normalised_kernel
from .rows import normalised


@lru_cache(maxsize=8)
def read_published(path: Path) -> tuple[Row, ...]:
    """Rows of a published table of runs, kernels or collectives with explicit columns. Raises UserError."""
    rows = read_table(path)
    if set(rows[0]).issuperset(kernels.COLUMNS):
        return tuple(normalised_kernel(row) for row in rows)
    if set(rows[0]).issuperset(collectives.COLUMNS):
        return tuple(normalised_collective(row) for row in rows)
    return tuple(normalised(row) for row in rows)
