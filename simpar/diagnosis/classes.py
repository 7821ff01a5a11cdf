"""The class of a kernel by its name, from a table of patterns shipped with simpar and files of the user's."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from simpar import files
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import CommunicationKind

OTHER = "other"
"""The class of kernels that no pattern matches; they are listed by name, to be added to a table."""
OPTIMIZER = "optimizer"
COPY, MEMSET = "copy", "memset"
SHIPPED = Path(__file__).with_name("kernel_classes.yaml")


def _checked(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression ({error})") from None
    if not patterns:
        raise ValueError("needs a pattern")
    return patterns


class KernelClass(Strict):
    """One class: patterns of names and, for communication, the axis."""

    name: str
    patterns: tuple[str, ...]
    communication: Literal["", "group", CommunicationKind] = ""

    @field_validator("patterns")
    @classmethod
    def _readable(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(patterns)


class _File(Strict):
    classes: tuple[KernelClass, ...] = ()
    groups: dict[CommunicationKind, tuple[str, ...]] = Field(default_factory=dict)

    @field_validator("groups")
    @classmethod
    def _readable(cls, groups: dict[CommunicationKind, tuple[str, ...]]) -> dict[CommunicationKind, tuple[str, ...]]:
        return {axis: _checked(patterns) for axis, patterns in groups.items()}


@dataclass(frozen=True)
class Classes:
    """Classes in the order in which their patterns are tried, and patterns of process groups by axis."""

    entries: tuple[KernelClass, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]

    def of(self, names: Sequence[str]) -> list[KernelClass]:
        """The class of every name; OTHER's if no pattern matches."""
        asked = [(_any(entry.patterns), entry) for entry in self.entries]
        return [next((entry for pattern, entry in asked if pattern.search(name)), _OTHER) for name in names]

    def axis(self, *words: str) -> str:
        """The axis of the first matching word (descriptions of a group, its callers); "" for none."""
        asked = [(_any(patterns), axis) for axis, patterns in self.groups]
        return next((axis for word in words if word for pattern, axis in asked if pattern.search(word)), "")


def _any(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in patterns), re.IGNORECASE)


_OTHER = KernelClass(name=OTHER, patterns=("$^",))


@cache
def _shipped() -> _File:
    return files.parse(_File, files.load(SHIPPED))


def load_classes(path: str | Path | None = None) -> Classes:
    """The classes of a user's file, then the shipped ones. Raises UserError if the file is not valid."""
    own, shipped = files.parse(_File, files.load(path)) if path else _File(), _shipped()
    known = {entry.name: entry.communication for entry in shipped.classes}
    joined = [
        entry.model_copy(update={"communication": entry.communication or known.get(entry.name, "")})
        for entry in own.classes
    ]
    groups = (*own.groups.items(), *shipped.groups.items())
    return Classes((*joined, *shipped.classes), groups)
