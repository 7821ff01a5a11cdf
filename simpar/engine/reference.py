"""The reference engine: the four rules of the Program, executed by SimPy. Every other engine must equal it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import simpy
from simpy.events import NORMAL, Event

from simpar.engine.sharing import max_min_rates
from simpar.program.program import Program, Timing, fixed_point, predecessors

_SETTLE = NORMAL + 1  # after every other event of the instant (rule 3)


@dataclass(frozen=True)
class LinkChange:
    """A scheduled change of a link's capacity."""

    time_ns: int
    link: int
    capacity_bytes_per_s: int


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op. Raises ValueError if ops wait for each other for ever."""
    return _Run(program, changes).timing()


class _Run:
    def __init__(self, program: Program, changes: Sequence[LinkChange]) -> None:
        self.environment = simpy.Environment()
        self.network = _Network(self.environment, program, self._finish)
        pointer, preds = predecessors(program)
        self.waiting = np.diff(pointer).tolist()
        self.followers = _followers(pointer, preds)
        self.fixed = program.ops.fixed_ns.tolist()
        self.work = program.ops.work_bytes.tolist()
        self.start = [-1] * len(program)
        self.finish = [-1] * len(program)
        for change in changes:
            self._at(change.time_ns, lambda change=change: self.network.change(change))
        for op in [op for op, count in enumerate(self.waiting) if count == 0]:
            self._start(op)

    def timing(self) -> Timing:
        self.environment.run()
        if -1 in self.finish:
            stuck = [op for op, time in enumerate(self.finish) if time < 0][:8]
            raise ValueError(f"deadlock: ops {stuck} wait for each other")
        return Timing(np.array(self.start, dtype=np.int64), np.array(self.finish, dtype=np.int64))

    def _at(self, delay: int, action) -> None:  # type: ignore[no-untyped-def]
        event = Event(self.environment)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: action())  # type: ignore[union-attr]
        self.environment.schedule(event, delay=delay)

    def _start(self, op: int) -> None:
        """Rule 2: the fixed part elapses, then work drains on the network."""
        self.start[op] = int(self.environment.now)
        then = self._finish if self.work[op] == 0 else self.network.join
        if self.fixed[op] == 0:
            then(op)
        else:
            self._at(self.fixed[op], lambda: then(op))

    def _finish(self, op: int) -> None:
        """Rule 1: a finish releases the ops whose last predecessor this was."""
        stack = [op]
        now = int(self.environment.now)
        while stack:
            done = stack.pop()
            self.finish[done] = now
            for follower in self.followers[done]:
                self.waiting[follower] -= 1
                if self.waiting[follower]:
                    continue
                if self.fixed[follower] == 0 and self.work[follower] == 0:
                    self.start[follower] = now
                    stack.append(follower)
                else:
                    self._start(follower)


def _followers(pointer: np.ndarray, preds: np.ndarray) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in range(len(pointer) - 1)]
    owner = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
    for op, before in zip(owner.tolist(), preds.tolist(), strict=True):
        followers[before].append(op)
    return followers


class _Network:
    """Links as shared resources. Flows join and leave; one settling per instant re-shares what they touched."""

    def __init__(self, environment: simpy.Environment, program: Program, finish) -> None:  # type: ignore[no-untyped-def]
        self.environment = environment
        self.finish = finish
        self.capacity = program.routes.capacity_bytes_per_s.tolist()
        coefficient = fixed_point(program.routes.coefficient).tolist()
        links = program.routes.links
        self.routes = [
            list(zip(links.row(r).tolist(), coefficient[links.pointer[r] : links.pointer[r + 1]], strict=True))
            for r in range(len(links.pointer) - 1)
        ]
        self.route_of = program.ops.route.tolist()
        self.cap_of = program.ops.rate_cap_bytes_per_s.tolist()
        self.work_of = program.ops.work_bytes.tolist()
        self.left: dict[int, int] = {}  # byte-nanoseconds still to drain: bytes x 10^9
        self.rate: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.version: dict[int, int] = {}
        self.on_link: dict[int, set[int]] = {}
        self.touched: set[int] = set()
        self.settling = False

    def join(self, op: int) -> None:
        """A flow enters; its links are re-shared at the end of the instant."""
        self.left[op] = self.work_of[op] * 10**9
        self.rate[op], self.since[op] = 0, int(self.environment.now)
        self.version[op] = 0
        for link, _ in self.routes[self.route_of[op]]:
            self.on_link.setdefault(link, set()).add(op)
        self._touch(op)

    def change(self, change: LinkChange) -> None:
        """A link gets another capacity from now on."""
        self.capacity[change.link] = change.capacity_bytes_per_s
        self.touched.add(change.link)
        self._settle_later()

    def _touch(self, op: int) -> None:
        self.touched.update(link for link, _ in self.routes[self.route_of[op]])
        self._settle_later()

    def _settle_later(self) -> None:
        if not self.settling:
            self.settling = True
            event = Event(self.environment)
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._settle())  # type: ignore[union-attr]
            self.environment.schedule(event, priority=_SETTLE, delay=0)

    def _settle(self) -> None:
        """Rule 3: max-min rates for the connected component of the touched links."""
        self.settling = False
        flows = self._component()
        self.touched.clear()
        now = int(self.environment.now)
        rates = max_min_rates(
            {f: self.routes[self.route_of[f]] for f in flows}, {f: self.cap_of[f] for f in flows}, self.capacity
        )
        for flow in sorted(flows):
            if rates[flow] == self.rate[flow]:
                continue
            self.left[flow] -= self.rate[flow] * (now - self.since[flow])
            self.rate[flow], self.since[flow] = rates[flow], now
            self.version[flow] += 1
            self._expect(flow, -(-max(self.left[flow], 0) // rates[flow]))

    def _component(self) -> set[int]:
        flows: set[int] = set()
        links = list(self.touched)
        seen = set(links)
        while links:
            for flow in self.on_link.get(links.pop(), ()):
                if flow in flows:
                    continue
                flows.add(flow)
                new = [link for link, _ in self.routes[self.route_of[flow]] if link not in seen]
                seen.update(new)
                links += new
        return flows

    def _expect(self, flow: int, delay: int) -> None:
        version = self.version[flow]
        event = Event(self.environment)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: self._drained(flow, version))  # type: ignore[union-attr]
        self.environment.schedule(event, delay=delay)

    def _drained(self, flow: int, version: int) -> None:
        """A flow ends, unless its rate changed since this event was scheduled."""
        if self.version.get(flow) != version:
            return
        self._touch(flow)
        for link, _ in self.routes[self.route_of[flow]]:
            self.on_link[link].discard(flow)
        for table in (self.left, self.rate, self.since, self.version):
            del table[flow]
        self.finish(flow)
