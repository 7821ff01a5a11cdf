"""A recording as a Program, and its duration: with recorded durations, or with communication priced on a profile.

An event starts when its dependencies have ended and its stream is free; a collective when all its members are ready; a
receive when the message was sent. Collectives and messages on a profile have their links to themselves.
"""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from simpar.chakra.recording import Event, Message, RecordedCollective, Recording
from simpar.cost.collectives.algorithms import OPS
from simpar.cost.collectives.choice import collective
from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.files import allowed
from simpar.hardware.cluster import Cluster
from simpar.plan.choices.mesh import PIPELINE
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label, Program, ProgramError
from simpar.units import NS_PER_S, to_ns

BARRIER_BYTES = 4
"""Bytes of a barrier, which is the sum of one number."""
MESSAGE = "send"
Price = Callable[[str, tuple[int, ...], int], int]


@dataclass(frozen=True)
class Replay:
    """The simulated times of a recording.

    ``compute_s`` are the seconds for which each rank computes; ``communication`` has, by operation, (number of calls,
    bytes, seconds), where a call of several ranks counts once.
    """

    program: Program
    step_time_s: float
    compute_s: tuple[float, ...]
    communication: dict[str, tuple[int, int, float]]

    def to_dict(self) -> dict[str, object]:
        """As plain data, seconds and bytes."""
        calls = {
            name: {"calls": calls, "bytes": size, "seconds": seconds}
            for name, (calls, size, seconds) in sorted(self.communication.items())
        }
        return {
            "ranks": len(self.compute_s),
            "step_time_s": self.step_time_s,
            "compute_s": list(self.compute_s),
            "communication": calls,
        }

    @property
    def busiest_rank(self) -> int:
        """The rank that computes longest."""
        return int(np.argmax(self.compute_s))


def on_profile(cluster: Cluster) -> Price:
    """A price function on a cluster: (operation, members, bytes) -> nanoseconds, alone on its links."""
    cluster, known = cluster.in_training, dict[tuple[str, tuple[int, ...], int], int]()

    def price(operation: str, members: tuple[int, ...], size_bytes: int) -> int:
        key = operation, members, size_bytes
        if key not in known:
            op, size = ("all_reduce", BARRIER_BYTES) if operation == "barrier" else (operation, size_bytes)
            if op not in OPS:
                raise UserError(f"{operation}: no profile has a price for it{allowed(OPS)}")
            cost = collective(op, np.array([members]), cluster, size_bytes=float(size)) if len(members) > 1 else None
            known[key] = int(to_ns(cost.solo_time_s(float(size), cluster))) if cost else 0
        return known[key]

    return price


def replay(recording: Recording, price: Price | None = None) -> Replay:
    """Simulate a recording; without ``price`` communication takes the recorded times.

    Raises UserError for calls of a group that differ between members, messages with a single end, unknown times, and
    ranks that wait for each other.
    """
    program, communication = _program(recording, price)
    try:
        timing = choose_engine("auto", program)(program)
    except ProgramError as error:
        raise UserError(f"the traces never end: {error}") from None
    length = timing.finish_ns - timing.start_ns
    kinds = np.array([label.kind == "compute" for label in program.labels], dtype=bool)[program.ops.label]
    busy = np.bincount(program.ops.class_id[kinds], length[kinds], minlength=len(recording.ranks))
    seconds = tuple((busy / NS_PER_S).tolist())
    return Replay(program, timing.makespan_ns / NS_PER_S, seconds, communication)


def _program(recording: Recording, price: Price | None) -> tuple[Program, dict[str, tuple[int, int, float]]]:
    """(The Program with a class for every rank, totals of communication by operation)."""
    build, ops = ProgramBuilder(), list[list[int]]()
    shared = _Shared(build, price)
    for rank, events in enumerate(recording.ranks):
        build.add_class(f"rank {rank}")
        ops.append([shared.op(rank, at, event) for at, event in enumerate(events)])
    shared.check()
    for rank, events in enumerate(recording.ranks):
        streams: dict[str, int] = {}
        for event, op in zip(events, ops[rank], strict=True):
            for each in event.after:
                build.depend(op, ops[rank][each])
            if event.stream:
                if event.stream not in streams:
                    streams[event.stream] = build.add_stream(event.stream, rank)
                build.place(streams[event.stream], op)
    for received, sent in shared.arrivals():
        build.depend(received, sent)
    return build.build(), shared.totals


class _Shared:
    """Ops that several ranks have in common: the n-th calls of a group by each of its members are one op."""

    def __init__(self, build: ProgramBuilder, price: Price | None) -> None:
        self.build, self.price = build, price
        self.totals: dict[str, tuple[int, int, float]] = {}
        self._nth: Counter[tuple[int, str, tuple[int, ...]]] = Counter()
        self._calls: dict[tuple[str, tuple[int, ...], int], tuple[RecordedCollective, int, set[int]]] = {}
        self._ends: dict[bool, dict[tuple[int, int, int], list[tuple[int, Message]]]] = {
            True: defaultdict(list),
            False: defaultdict(list),
        }

    def op(self, rank: int, at: int, event: Event) -> int:
        """The op of an event: its own, or that of the call to which it belongs."""
        call = event.call
        if isinstance(call, RecordedCollective):
            return self._call(rank, call, event)
        if isinstance(call, Message):
            took = 0
            if call.is_sent:
                took = self._took(MESSAGE, (call.source, call.destination), call.size_bytes, event)
                self._count(MESSAGE, call.size_bytes, took)
            op = self._add(rank, PIPELINE, event.name, took)
            self._ends[call.is_sent][call.source, call.destination, call.tag].append((op, call))
            return op
        if event.duration_ns is None:
            raise UserError(f"rank {rank}, event {at} {event.name}: nothing says how long it takes")
        kind = "host" if event.stream == "host" else "compute" if event.stream else "join"
        return self._add(rank, kind, event.name, event.duration_ns)

    def _call(self, rank: int, call: RecordedCollective, event: Event) -> int:
        group = call.group, call.members
        nth = self._nth[rank, *group]
        self._nth[rank, *group] += 1
        if (*group, nth) not in self._calls:
            took = self._took(call.operation, call.members, call.size_bytes, event)
            self._count(call.operation, call.size_bytes, took)
            op = self._add(rank, "dp", event.name, took)
            self._calls[*group, nth] = call, op, {rank}
            return op
        first, op, there = self._calls[*group, nth]
        if (first.operation, first.size_bytes) != (call.operation, call.size_bytes):
            raise UserError(
                f"call {nth} of group {call.group or 'of all ranks'}: {call.operation} of {call.size_bytes} bytes on "
                f"rank {rank}, {first.operation} of {first.size_bytes} on rank {min(there)}"
            )
        there.add(rank)
        return op

    def _took(self, operation: str, members: tuple[int, ...], size_bytes: int, event: Event) -> int:
        if self.price is not None:
            return self.price(operation, members, size_bytes)
        if event.duration_ns is None:
            raise UserError(f"{event.name}: the traces do not say how long communication takes; give --hardware NAME")
        return event.duration_ns

    def _count(self, operation: str, size_bytes: int, took_ns: int) -> None:
        calls, size, seconds = self.totals.get(operation, (0, 0, 0.0))
        self.totals[operation] = calls + 1, size + size_bytes, seconds + took_ns / NS_PER_S

    def _add(self, rank: int, kind: str, name: str, took_ns: int) -> int:
        label = self.build.label(Label(kind, name))
        return int(self.build.add_ops(1, class_id=rank, fixed_ns=took_ns, label=label)[0])

    def check(self) -> None:
        """Raise UserError for a call that some members do not make."""
        for (group, members, nth), (call, _, there) in self._calls.items():
            missing = sorted(set(members) - there)
            if missing:
                where = f"call {nth} of group {group or 'of all ranks'}"
                raise UserError(f"{where}, {call.operation}: rank {missing[0]} does not make it")

    def arrivals(self) -> list[tuple[int, int]]:
        """Pairs of ops (receive, its send). Raises UserError for messages with a single end."""
        sent, received = self._ends[True], self._ends[False]
        pairs: list[tuple[int, int]] = []
        for key in sorted(sent.keys() | received.keys()):
            ends = sent.get(key, []), received.get(key, [])
            if len(ends[0]) != len(ends[1]):
                source, destination, tag = key
                raise UserError(
                    f"messages from rank {source} to {destination} with tag {tag}: {len(ends[0])} sent, "
                    f"{len(ends[1])} received"
                )
            pairs += [(there, here) for (here, _), (there, _) in zip(*ends, strict=True)]
        return pairs
