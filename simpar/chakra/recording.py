"""What execution traces record, whoever wrote them: what every rank does in order, with what it waits for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """A call of ``operation`` by ``members``, in the process group that is called ``group``.

    ``size_bytes`` is the full tensor, as :func:`simpar.cost.collectives.choice.collective` counts it.
    """

    operation: str
    group: str
    members: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Message:
    """One end of a message between two ranks. The n-th of the same ends and tag here is the n-th there."""

    source: int
    destination: int
    tag: int
    size_bytes: int
    is_sent: bool


@dataclass(frozen=True)
class Event:
    """Something that a rank does once the events at places ``after`` of the rank have ended.

    ``stream`` names what works one event after the other ("": nothing does); ``duration_ns`` is None where the trace
    does not say how long it took.
    """

    name: str
    stream: str
    after: tuple[int, ...] = ()
    duration_ns: int | None = None
    call: Collective | Message | None = None


@dataclass(frozen=True)
class Recording:
    """The events of all ranks, each in an order in which it comes behind those that it waits for."""

    ranks: tuple[tuple[Event, ...], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.ranks))
