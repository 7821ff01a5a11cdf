"""Files that simpar writes and reads again: the key that holds their version, and which versions are read.

``docs/files.md`` says when a version changes and how long an older one is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simpar.errors import UserError


@dataclass(frozen=True)
class Format:
    """One kind of file: the ``key`` that names it and holds its ``version``, and the command that writes it."""

    key: str
    version: int
    written_by: str

    def check(self, data: Mapping[str, Any], source: str) -> None:
        """Raises UserError, naming ``source``, where the data are of another kind or version."""
        if self.key not in data:
            raise UserError(f"{source}: has no {self.key}; wants what `{self.written_by}` writes")
        if data[self.key] != self.version or isinstance(data[self.key], bool):
            raise UserError(
                f"{source}: {self.key} = {data[self.key]!r}: allowed: {self.version}, "
                f"as `{self.written_by}` of this release writes it"
            )


RESULT = Format("schema_version", 1, "simpar simulate --json")
SEARCH = Format("search_schema_version", 1, "simpar search --json")
GRID = Format("grid_schema_version", 1, "simpar search --over --json")
HOW_MANY = Format("budget_schema_version", 1, "simpar search --objective days --json")
CHECK = Format("check_schema_version", 1, "simpar check --json")
SWEEP = Format("schema_version", 1, "simpar simulate --over --json")
EXPLANATION = Format("schema_version", 1, "simpar explain --json")
"""Of these two nothing of simpar's reads the files back."""
PLAN = Format("version", 1, "simpar search -o")
"""Hand-written plans may leave it out: :class:`simpar.plan.plan.Record` checks it, a text, by itself."""

ANSWERS = (RESULT, SEARCH, GRID, HOW_MANY, CHECK)


def check_answer(data: Mapping[str, Any], source: str) -> None:
    """Raises UserError where data are an answer of simpar of a version that is not read; else nothing happens."""
    for each in ANSWERS:
        if each.key in data:
            each.check(data, source)
