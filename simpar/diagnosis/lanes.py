"""Where a measured step of one rank went: every nanosecond of its device is claimed once.

Compute comes first (of several concurrent kernels, the class that the table lists first), then exposed communication,
then copies to and from the host. What remains is idle: either the host was behind, because the next kernel was launched
only then, or launched work waited in a queue.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.classes import OPTIMIZER, Classes, KernelClass
from simpar.diagnosis.kineto import EventColumns, KinetoTrace
from simpar.errors import UserError
from simpar.units import Flags, Ints

HOST = "host"
OFFLOAD = "offload"
BEHIND, QUEUED, UNEXPLAINED = "host behind", "between kernels", "idle"
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step")
QUEUED_GAP_NS = 20_000
"""Kernels of one queue follow each other within a few us: a longer gap before launched work has another cause."""


@dataclass(frozen=True)
class Window:
    """The explained part of a trace: begin and end in ns, the number of optimizer steps, and the profiler's marks."""

    begin_ns: int
    end_ns: int
    steps: int
    marks: tuple[str, ...] = ()

    @property
    def length_ns(self) -> int:
        """From begin to end."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class LanePieces:
    """Pieces of time in ns with their owner; ``owner`` indexes the lane's owners, -1 is idle."""

    begin_ns: Ints
    end_ns: Ints
    owner: Ints

    @property
    def length_ns(self) -> Ints:
        """The length of every piece."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Lane:
    """A rank's step, claimed: pieces in time order, ``idle_ns`` by reason, kernels without a class by name.

    ``owners`` are names of classes, of axes of communication ("exposed_tp"), and OFFLOAD.
    """

    window: Window
    owners: tuple[str, ...]
    pieces: LanePieces
    idle_ns: Mapping[str, int]
    unknown_ns: Mapping[str, int] = field(default_factory=dict)

    def owned_ns(self) -> dict[str, int]:
        """Time by owner."""
        mine = self.pieces.owner >= 0
        spent = np.bincount(
            self.pieces.owner[mine], weights=self.pieces.length_ns[mine].astype(np.float64), minlength=len(self.owners)
        )
        return {name: round(ns) for name, ns in zip(self.owners, spent.tolist(), strict=True) if ns}


def window_of(trace: KinetoTrace, steps: int | None) -> Window:
    """The profiler's steps, extended until the device is idle; without them the whole trace as ``steps`` (1).

    Raises UserError.
    """
    marks, work = trace.steps(), trace.ops if trace.on_cpu else trace.device
    if not marks:
        return Window(int(work.start_ns.min()), int(work.finish_ns.max()), steps or 1)
    if steps is not None and steps != len(marks):
        raise UserError(f"--steps {steps}: {trace.path} marks {len(marks)} steps itself; leave it out")
    begin, end = marks[0][1], max(mark[2] for mark in marks)
    if not trace.on_cpu:
        launched = launches_ns(trace)
        mine = np.where(launched >= 0, launched, work.start_ns) < end
        end = max(end, int(work.finish_ns[mine & (work.start_ns >= begin)].max(initial=end)))
    if end <= begin:
        raise UserError(f"{trace.path}: its steps take no time")
    return Window(begin, end, len(marks), tuple(name for name, _, _ in marks))


def launches_ns(trace: KinetoTrace) -> Ints:
    """When the host call that launched each device event ended, int64[num events]; -1 if not recorded."""
    calls, device = trace.calls, trace.device
    known = np.flatnonzero(calls.correlation >= 0)
    if not len(known):
        return np.full(len(device), -1, dtype=np.int64)
    known = known[np.argsort(calls.correlation[known], kind="stable")]
    numbers = calls.correlation[known]
    at = np.clip(np.searchsorted(numbers, device.correlation), 0, len(numbers) - 1)
    result = (numbers[at] == device.correlation) & (device.correlation >= 0)
    return np.where(result, calls.finish_ns[known[at]], -1)


def match_spans(trace: KinetoTrace, start: re.Pattern[str], at_ns: Ints) -> Flags:
    """Which moments lie in a host span whose name matches ``start``."""
    named = [number for number, name in enumerate(trace.names) if start.match(name)]
    rows = np.flatnonzero(np.isin(trace.spans.name, named))
    begin, end = np.sort(trace.spans.start_ns[rows]), np.sort(trace.spans.finish_ns[rows])
    inside: Flags = np.searchsorted(begin, at_ns, side="right") > np.searchsorted(end, at_ns, side="right")
    return inside


def innermost(ops: EventColumns) -> tuple[Ints, Ints, Ints]:
    """Operators without the operators inside them: begin and end in ns and the row of each piece.

    Events of a thread nest; parts that stick out by rounding are cut.
    """
    order = np.lexsort((-ops.duration_ns, ops.start_ns, ops.lane))
    rows: list[int] = []
    begin: list[int] = []
    end: list[int] = []
    stack: list[tuple[int, int]] = []
    lane, now = -1, 0

    def until(moment: int) -> None:
        """Hand out the time up to a moment to what is open."""
        nonlocal now
        while stack:
            row, finish = stack[-1]
            stop = min(finish, moment)
            if stop > now:
                rows.append(row)
                begin.append(now)
                end.append(stop)
                now = stop
            if finish > moment:
                return
            stack.pop()

    columns = (ops.lane[order], ops.start_ns[order], ops.finish_ns[order])
    for row, thread, start, finish in zip(order.tolist(), *(each.tolist() for each in columns), strict=True):
        if thread != lane:
            until(2**62)
            lane, stack[:] = thread, []
        until(start)
        now = start
        stack.append((row, min(finish, stack[-1][1]) if stack else finish))
    until(2**62)
    return tuple(np.array(each, dtype=np.int64) for each in (begin, end, rows))  # type: ignore[return-value]


def claim(begin: Ints, end: Ints, owner: Ints, window: Window) -> LanePieces:
    """Assign every moment of the window to the smallest owner with an event there, -1 if there is none."""
    begin, end = (np.clip(each, window.begin_ns, window.end_ns) for each in (begin, end))
    kept = (end > begin) & (owner >= 0)
    begin, end, owner = begin[kept], end[kept], owner[kept]
    edges = np.unique(np.concatenate([begin, end, [window.begin_ns, window.end_ns]]))
    result = np.full(len(edges) - 1, -1, dtype=np.int64)
    for code in np.unique(owner).tolist():
        mine = owner == code
        opened = np.bincount(np.searchsorted(edges, begin[mine]), minlength=len(edges))
        closed = np.bincount(np.searchsorted(edges, end[mine]), minlength=len(edges))
        covered = np.cumsum(opened - closed)[:-1] > 0
        result[covered & (result < 0)] = code
    first = np.flatnonzero(np.append(True, result[1:] != result[:-1]))
    stops = np.append(edges[first[1:]], window.end_ns)
    return LanePieces(edges[first], stops, result[first])


def lane_of(trace: KinetoTrace, window: Window, classes: Classes, exposed: Sequence[tuple[str, Ints, Ints]]) -> Lane:
    """The step of a rank, claimed; ``exposed`` are the axis, begins and ends in ns of its communication."""
    kinds = classes.of(trace.names)
    own = {entry.name: at for at, entry in enumerate(dict.fromkeys(_computing(kinds, classes)))}
    names = list(own)
    if trace.on_cpu:
        begin, end, row = innermost(trace.ops)
        name, at = trace.ops.name[row], begin
    else:
        begin, end, name = trace.device.start_ns, trace.device.finish_ns, trace.device.name
        at = np.maximum(launches_ns(trace), 0)
    codes = np.array([own.get(entry.name, -1) for entry in kinds], dtype=np.int64)[name]
    codes[(codes >= 0) & match_spans(trace, _OPTIMIZER_STEP, at)] = own[OPTIMIZER]
    moved = [OFFLOAD if _crosses_the_bus(each) else "" for each in trace.names]
    offload = len(names) + len(exposed)
    codes[np.array([bool(each) for each in moved])[name]] = offload
    columns = [(begin, end, codes)]
    columns += [(b, e, np.full(len(b), len(names) + n)) for n, (_, b, e) in enumerate(exposed)]
    starts, ends, owner = (np.concatenate(each) for each in zip(*columns, strict=True))
    pieces = claim(starts, ends, owner, window)
    owners = (*names, *(axis for axis, _, _ in exposed), OFFLOAD)
    unknown = _unknown(trace, name, end - begin, codes, own["other"])
    return Lane(window, owners, pieces, _idle_ns(trace, pieces), unknown)


def _computing(kinds: Sequence[KernelClass], classes: Classes) -> list[KernelClass]:
    """Classes that compute, in the order of the table, then the class of unmatched kernels."""
    known = {entry.name: entry for entry in (*classes.entries, *kinds)}
    computing = [entry for entry in known.values() if not entry.communication and entry.name != "other"]
    return [*computing, KernelClass(name="other", patterns=("$^",))]


def _crosses_the_bus(name: str) -> bool:
    """Whether a copy goes to or from the host's memory."""
    return name.startswith("Memcpy") and ("HtoD" in name or "DtoH" in name)


def _unknown(trace: KinetoTrace, name: Ints, length_ns: Ints, codes: Ints, other: int) -> dict[str, int]:
    """Time of kernels without a class, by name, longest first."""
    mine = codes == other
    spent = np.bincount(name[mine], weights=length_ns[mine].astype(np.float64), minlength=len(trace.names))
    order = np.argsort(-spent, kind="stable")[: int((spent > 0).sum())]
    return {trace.names[at]: round(float(spent[at])) for at in order.tolist()}


def _idle_ns(trace: KinetoTrace, pieces: LanePieces) -> dict[str, int]:
    """Idle time by reason; on a CPU, where the host computes, all of it is the host's."""
    idle = pieces.owner < 0
    begin, end = pieces.begin_ns[idle], pieces.end_ns[idle]
    total = int((end - begin).sum())
    if trace.on_cpu:
        return {BEHIND: total}
    launched = launches_ns(trace)
    if not (launched >= 0).any():
        return {UNEXPLAINED: total}
    order = np.argsort(trace.device.start_ns, kind="stable")
    starts = trace.device.start_ns[order]
    after = np.searchsorted(starts, end)
    at = order[np.minimum(after, len(order) - 1)]
    call = np.where(after < len(order), launched[at], end)  # nothing follows: the host has launched no more
    behind = np.where(call >= 0, np.clip(call, begin, end) - begin, 0)
    rest = end - begin - behind
    short = (rest <= QUEUED_GAP_NS) & (call >= 0)
    result = {BEHIND: int(behind.sum()), QUEUED: int(rest[short].sum()), UNEXPLAINED: int(rest[~short].sum())}
    return {reason: ns for reason, ns in result.items() if ns}
