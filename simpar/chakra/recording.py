"""The content of execution traces in one form: the events of every rank in order, with their dependencies."""

from simpar.dataclass import dataclass


@dataclass(frozen=True)
class RecordedCollective:
    """A call of ``operation`` by ``members``, in the process group named ``group``.

    ``size_bytes`` is the full tensor, as :func:`simpar.cost.collectives.choice.collective` counts it.
    """

    operation: str
    group: str
    members: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Message:
    """One end of a message between two ranks; n-th messages with equal ends and tag on both sides belong together."""

    source: int
    destination: int
    tag: int
    size_bytes: int
    is_sent: bool


@dataclass(frozen=True)
class Event:
    """Something that a rank does once its events at the positions ``after`` have ended.

    Events with one ``stream`` run one after the other (not those with ""); ``duration_ns`` is None where the trace does
    not state it.
    """

    name: str
    stream: str
    after: tuple[int, ...] = ()
    duration_ns: int | None = None
    call: RecordedCollective | Message | None = None


@dataclass(frozen=True)
class Recording:
    """The events of all ranks, in orders in which every event comes behind its dependencies."""

    ranks: tuple[tuple[Event, ...], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.ranks))
