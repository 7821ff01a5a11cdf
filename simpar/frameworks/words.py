"""Every word of a text accounted for: used, without effect, deciding but not modelled, or unknown.

A framework's :class:`WordTable` sorts the words that its reader does not use. What a text leaves open is
:class:`Assumed`, with the other likely values.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from simpar.dataclass import dataclass

OFF = ("", "0", "0.0", "false", "no", "none", "null", "off", "[]", "{}")
"""Values, as text, by which a word asks for nothing."""
MODEL = ("model_name_or_path", "base_model", "model_name", "model_id", "model_path", "pretrained_model_name_or_path",
         "model", "model_id_or_path", "config_name")  # fmt: skip
"""Plain names of the option of a trainer that names the model, the first of them first."""
ON_PROCESSORS = "training runs on processors: time and memory"
"""What words change that put it there."""
MAGIC = frozenset("*?[")
"""What makes a name a pattern."""


@dataclass(frozen=True)
class WordTable:
    """Words that a reader does not use, as patterns (fnmatch) of plain names (:func:`plain`).

    ``idle`` have no effect on the time or the memory of a step. ``deciding`` do, by what they could change, and simpar
    does not model them; they win over ``idle``. Those of ``off`` are on where nothing is said: they decide where they
    are off, and only there.
    """

    idle: tuple[str, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
    off: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "WordTable") -> "WordTable":
        """Both tables; the words of ``other`` win."""
        return WordTable((*self.idle, *other.idle), {**self.deciding, **other.deciding}, {**self.off, **other.off})

    def under(self, section: str) -> "WordTable":
        """The table of a config that has these words in a section."""
        deciding, off = ({f"{section}.{name}": what for name, what in words.items()}
                         for words in (self.deciding, self.off))  # fmt: skip
        return WordTable(tuple(f"{section}.{name}" for name in self.idle), deciding, off)

    def sort(self, used: Iterable[str], unread: Mapping[str, Any]) -> "Account":
        """The account of a text with words that were used, and others with their values; an empty section is idle."""
        idle, deciding, unknown = list[str](), dict[str, str](), list[str]()
        for word, value in unread.items():
            by = self._deciding_names.first(plain(word))
            off = self.off.get(plain(word))
            if off is not None:
                if value is None or not is_off(value):
                    idle.append(word)
                else:
                    deciding[word] = off
            elif by is not None and not is_off(value):
                deciding[word] = self.deciding[by]
            elif by is not None or value == {} or self._idle_names.first(plain(word)) is not None:
                idle.append(word)
            else:
                unknown.append(word)
        return Account(tuple(used), tuple(idle), deciding, tuple(unknown))

    def has(self, name: str) -> bool:
        """Whether a plain name is one of the table's."""
        return any(names.first(name) is not None for names in (self._deciding_names, self._idle_names))

    @cached_property
    def _deciding_names(self) -> "TableNames":
        return TableNames.of(self.deciding)

    @cached_property
    def _idle_names(self) -> "TableNames":
        return TableNames.of(self.idle)


@dataclass(frozen=True)
class TableNames:
    """Names of a table with the ``place`` of each; apart from it, those that stand for ``beginnings`` (``name*``).

    ``patterns`` are the others that stand for several.
    """

    place: Mapping[str, int]
    beginnings: Mapping[str, int]
    patterns: tuple[str, ...]

    @staticmethod
    def of(names: Iterable[str]) -> "TableNames":
        """Those of a table."""
        place = {name: at for at, name in enumerate(dict.fromkeys(names))}
        several = tuple(filter(is_pattern, place))
        begun = {name for name in several if name.endswith("*") and not is_pattern(name[:-1])}
        beginnings = {name[:-1]: place[name] for name in several if name in begun}
        return TableNames(place, beginnings, tuple(name for name in several if name not in begun))

    def first(self, name: str) -> str | None:
        """The first of the names that a plain name is, or matches; None without one."""
        cuts = (name[:end] for end in range(len(name) + 1))
        known = [(self.beginnings[cut], f"{cut}*") for cut in cuts if cut in self.beginnings]
        known += [(self.place[each], each) for each in self.patterns if fnmatchcase(name, each)]
        if name in self.place:
            known.append((self.place[name], name))
        return min(known)[1] if known else None


@dataclass(frozen=True)
class Account:
    """The words of a text: ``deciding`` map to what they could change; ``unknown`` ones, in no table, may decide."""

    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def is_understood(self) -> bool:
        """Whether every word is used or known to be without effect."""
        return not (self.deciding or self.unknown)

    def __add__(self, other: "Account") -> "Account":
        """The words of two texts."""
        return Account(
            (*self.used, *other.used),
            (*self.idle, *other.idle),
            {**self.deciding, **other.deciding},
            (*self.unknown, *other.unknown),
        )

    def without(self, answered: Collection[str]) -> "Account":
        """The account where something else answers for some of the deciding words."""
        known = set(map(plain, answered))
        left = {word: what for word, what in self.deciding.items() if plain(word) not in known}
        taken = tuple(word for word in self.deciding if word not in left)
        return Account((*self.used, *taken), self.idle, left, self.unknown)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "used": list(self.used), "without_effect": list(self.idle), "not_modelled": dict(self.deciding),
            "unknown": list(self.unknown),
        }  # fmt: skip


@dataclass(frozen=True)
class Assumed:
    """What a text leaves open: a choice of a plan, or "seq_len" or "global_batch", with the value and why it is that.

    ``others`` are the other likely values, of which a check simulates the step; ``together`` are choices of the plan
    that go with one of them, or the config of each other "model".
    """

    key: str
    value: Any
    why: str
    others: tuple[Any, ...] = ()
    together: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadWords:
    """The words of a text that a reader used, and the others with their values."""

    used: tuple[str, ...] = ()
    unread: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: "ReadWords") -> "ReadWords":
        """The words of two texts."""
        return ReadWords((*self.used, *other.used), {**self.unread, **other.unread})

    @cached_property
    def ignored(self) -> tuple[str, ...]:
        """The names of the words that were not used."""
        return tuple(self.unread)


def is_pattern(name: str) -> bool:
    """Whether a name of a table stands for several."""
    return not MAGIC.isdisjoint(name)


def plain(word: str) -> str:
    """A name as tables write it: lower case, underscores, no leading dashes."""
    return word.lstrip("-").replace("-", "_").lower()


RATES = "a number from 0 to less than 1"


def rate_of(value: Any) -> float | None:
    """A value as the probability with which something is dropped; None if it is none."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        return None
    return rate if 0 <= rate < 1 and not isinstance(value, bool) else None


def is_off(value: object) -> bool:
    """Whether a word with a value asks for nothing: false, none, zero, an empty list."""
    return value is None or value is False or str(value).strip().strip("\"'").lower() in OFF
