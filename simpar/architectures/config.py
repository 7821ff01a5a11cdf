"""Checked access to the fields of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError

MAX_SIZE = 2**31


class TrackedFields(dict[str, Any]):
    """Fields of a config that record which of them were asked for."""

    def __init__(self, fields: Mapping[str, Any], asked: set[str] | None = None) -> None:
        super().__init__(fields)
        self.asked = set() if asked is None else asked

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or the default."""
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


@dataclass(frozen=True)
class Config:
    """A config with checked access: sizes are positive integers in range, numbers are finite, or the default."""

    data: Mapping[str, Any]
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, TrackedFields):
            object.__setattr__(self, "data", TrackedFields(self.data))

    def having(self, fields: Mapping[str, Any], *, unless_given: bool = False) -> Config:
        """The config with other fields, or (``unless_given``) with those that it lacks; both record the same reads."""
        own: TrackedFields = self.data  # type: ignore[assignment]
        return Config(TrackedFields({**fields, **own} if unless_given else {**own, **fields}, own.asked), self.source)

    def unread(self, silent: Collection[str]) -> tuple[str, ...]:
        """Names of fields with a value that were not asked for and are not ``silent``."""
        own: TrackedFields = self.data  # type: ignore[assignment]
        return tuple(sorted(
            name for name, value in own.items()
            if value not in (None, False, "", [], {}) and name not in own.asked and name not in silent
        ))  # fmt: skip

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A field that is a mapping; None where it is absent. Raises UserError."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{self.source}: {name} = {value!r}: allowed: a mapping")
        return value

    def optional(self, *names: str, default: float | None = None) -> float | None:
        """The first of the named numbers that is present (None for null); it must be positive and finite.

        Raises UserError.
        """
        for name in names:
            if name not in self.data:
                continue
            value = self.data.get(name)
            if value is None:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise UserError(f"{self.source}: {name} = {value!r}: allowed: a number above 0")
            return float(value)
        return default

    def number(self, *names: str, default: float) -> float:
        """As :meth:`optional`, with the default for null and for absent fields. Raises UserError."""
        for name in names:
            if (value := self.optional(name)) is not None:
                return value
        return default

    def size(self, *names: str, default: int | None = None) -> int:
        """The first of the named fields that is present and not null. Raises UserError."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < MAX_SIZE:
                raise UserError(f"{self.source}: {name} = {value!r}: allowed: a positive integer below {MAX_SIZE}")
            return value
        if default is None:
            raise UserError(f"{self.source}: {names[0]} is missing")
        return default

    def optional_size(self, name: str) -> int:
        """A size; 0 where it is absent, null or 0. Raises UserError."""
        return self.size(name) if self.data.get(name) else 0

    def layers(self, name: str, count: int = MAX_SIZE) -> tuple[int, ...] | None:
        """Numbers of some of ``count`` layers, each once; None where the field is absent. Raises UserError."""
        value = self.data.get(name)
        if value is None:
            return None
        numbers = isinstance(value, list) and all(type(each) is int and 0 <= each < count for each in value)
        if not numbers or len(set(value)) != len(value):
            below = f"numbers below the {count} layers" if count < MAX_SIZE else "a list of numbers of layers"
            raise UserError(f"{self.source}: {name} = {value!r}: allowed: {below}, each once")
        return tuple(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean field. Raises UserError."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{self.source}: {name} = {value!r}: allowed: true, false")
        return value

    def tied(self, *, default: bool = False) -> bool:
        """Whether the head uses the embedding's table. Raises UserError."""
        return self.flag("tie_word_embeddings", default=default)

    def text(self, name: str, default: str = "") -> str:
        """A text field."""
        value = self.data.get(name)
        return default if value is None else str(value)

    def rate(self, *names: str) -> float:
        """The largest of some probabilities (0 where absent). Raises UserError."""
        worst = 0.0
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise UserError(f"{self.source}: {name} = {value!r}: allowed: 0 up to below 1")
            worst = max(worst, float(value))
        return worst
