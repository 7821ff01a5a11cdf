"""The content of one file about a cluster: fields of a profile, links of its devices, and what could not be read."""

from collections.abc import Sequence
from dataclasses import field

from simpar.dataclass import dataclass
from simpar.errors import UserError

COUNTED, LEAST, MORE, MOST = 0, 1, 2, 3
"""How sure a fact is: where files disagree, the surer one counts; equally sure ones are an error.

What is only counted may hold more than the job uses, as cards of storage.
"""


@dataclass(frozen=True)
class Fact:
    """A value as profiles write it, the file that it is from, and how sure it is."""

    value: float | str
    file: str
    sure: int = MOST


@dataclass(frozen=True)
class Links:
    """NVLinks of every device: to all others together (``per_device``), through switches or from device to device.

    ``switched`` is None where the file does not tell; ``per_device`` is then the number of links between two devices.
    """

    file: str
    per_device: int
    switched: bool | None


@dataclass
class Reading:
    """One file: ``facts`` by dotted field of a profile, and names of the shipped ``devices`` that it may have.

    ``nodes`` are the names of the nodes described, None where the file names none; ``unread`` are sentences about what
    could not be read. ``like`` is the shipped profile of the instances that it names ("": it names none).
    """

    kind: str
    file: str
    facts: dict[str, Fact] = field(default_factory=dict)
    links: Links | None = None
    devices: tuple[str, ...] = ()
    nodes: frozenset[str] | None = None
    like: str = ""
    unread: list[str] = field(default_factory=list)

    def say(self, key: str, value: float | str, sure: int = MOST) -> None:
        """Note the value of a profile's field."""
        self.facts[key] = Fact(value, self.file, sure)


def join_readings(readings: Sequence[Reading]) -> tuple[dict[str, Fact], list[str]]:
    """(The facts of all files, sentences on facts left out because a surer file disagrees).

    Raises UserError where two equally sure files disagree on a field.
    """
    result: dict[str, Fact] = {}
    unread = []
    for reading in readings:
        for key, fact in reading.facts.items():
            other = result.setdefault(key, fact)
            if other.value == fact.value:
                continue
            if other.sure == fact.sure:
                raise UserError(
                    f"{key}: {other.file} has {other.value}, {fact.file} has {fact.value}; "
                    "name files of one kind of nodes"
                )
            kept, left = (other, fact) if other.sure > fact.sure else (fact, other)
            result[key] = kept
            unread.append(f"{key} = {left.value} of {left.file}: {kept.file} has {kept.value}")
    return result, unread
