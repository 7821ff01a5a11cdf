"""The reference engine: the four rules of the Program, executed by SimPy. Every other engine must equal it.

There are no SimPy processes: an op is a countdown of the ops for which it waits, then one timeout; the only shared
resource is the Network. This reads like the rules, and runs four times as fast as a process per stream.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from simpy import Environment
from simpy.events import NORMAL, Event, Timeout

from simpar.engine.sharing import FlowTable, LinkChange, as_rates, complaint, connected_flows, max_min_rates
from simpar.program.ir.program import Csr, Program, ProgramError, Timing, edges

AFTER_THE_INSTANT = NORMAL + 1  # rule 3: re-share when every other event of the instant has happened


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises ProgramError naming ops that wait for each other, or flows that a dead link stops for ever.
    """
    return _Run(program, changes).timing()


class _Run:
    """One execution of a Program: rules 1 and 2."""

    def __init__(self, program: Program, changes: Sequence[LinkChange]) -> None:
        self.program = program
        self.clock = Environment(initial_time=0)
        self.flows = FlowTable.of(program)
        self.network = SharedLinks(self.clock, self.flows, self.finish)
        before, after = edges(program)
        followers = Csr.of(before, after, len(program))
        self.pointer, self.follower = followers.pointer.tolist(), followers.item.tolist()
        self.waiting = np.bincount(after, minlength=len(program)).tolist()
        self.fixed_ns = program.ops.fixed_ns.tolist()
        self.start_ns = [-1] * len(program)
        self.finish_ns = [-1] * len(program)
        for time_ns, link, rate in as_rates(changes):
            _at(self.clock, time_ns, lambda event: self.network.change(*event.value), (link, rate))

    def timing(self) -> Timing:
        """Run to the end."""
        for op in [op for op, count in enumerate(self.waiting) if not count]:
            if self.start(op):
                self.finish(op)
        self.clock.run()
        start, finish = np.array([self.start_ns, self.finish_ns], dtype=np.int64)
        if (finish < 0).any():
            raise ProgramError(complaint(self.program, start, finish))
        return Timing(start, finish)

    def start(self, op: int) -> bool:
        """Begin rule 2 for an op whose rule 1 is satisfied; return whether it takes no time at all."""
        self.start_ns[op] = self.clock.now
        if self.fixed_ns[op]:
            _at(self.clock, self.fixed_ns[op], self.fixed_part_over, op)
        elif self.flows.work[op]:
            self.network.join(op)
        else:
            return True
        return False

    def fixed_part_over(self, event: Event) -> None:
        """Rule 2: then its work drains."""
        op = event.value
        if self.flows.work[op]:
            self.network.join(op)
        else:
            self.finish(op)

    def finish(self, op: int) -> None:
        """Rule 1: start every op that waited for this one last, and pass through those that take no time."""
        done = [op]
        for finished in done:
            self.finish_ns[finished] = self.clock.now
            for follower in self.follower[self.pointer[finished] : self.pointer[finished + 1]]:
                self.waiting[follower] -= 1
                if not self.waiting[follower] and self.start(follower):
                    done.append(follower)


class SharedLinks:
    """Links as shared resources: flows join and leave, and once per instant `settle` re-shares the touched links.

    `remaining`, `rate`, `since_ns` and `version` are by active flow; a finish scheduled under an older
    version of the rate is void.
    """

    def __init__(self, clock: Environment, flows: FlowTable, finish: Callable[[int], None]) -> None:
        self.clock = clock
        self.flows = flows
        self.finish = finish
        self.link_rate = list(flows.link_rate)
        self.on_link: list[set[int]] = [set() for _ in self.link_rate]
        self.remaining: dict[int, int] = {}
        self.rate: dict[int, int] = {}
        self.since_ns: dict[int, int] = {}
        self.version: dict[int, int] = {}
        self.touched: set[int] = set()
        self.capped: list[int] = []
        self.settling = False

    def join(self, flow: int) -> None:
        """A flow starts to drain."""
        self.remaining[flow], self.rate[flow] = self.flows.work[flow], 0
        self.since_ns[flow], self.version[flow] = self.clock.now, 0
        links = [link for link, _ in self.flows.route[flow]]
        for link in links:
            self.on_link[link].add(flow)
        if not links:  # only its own cap limits it
            self.capped.append(flow)
        self.touch(links)

    def leave(self, event: Event) -> None:
        """A flow has drained, unless its rate changed after this event was scheduled."""
        flow, version = event.value
        if self.version.get(flow) != version:
            return
        links = [link for link, _ in self.flows.route[flow]]
        for link in links:
            self.on_link[link].discard(flow)
        for table in (self.remaining, self.rate, self.since_ns, self.version):
            del table[flow]
        self.touch(links)
        self.finish(flow)

    def change(self, link: int, rate: int) -> None:
        """A link has another capacity from now on."""
        self.link_rate[link] = rate
        self.touch([link])

    def touch(self, links: Iterable[int]) -> None:
        """Ask for a re-share of these links at the end of the instant."""
        self.touched.update(links)
        if not self.settling:
            self.settling = True
            event = Event(self.clock)
            event._ok, event._value = True, None
            event.callbacks.append(self.settle)
            self.clock.schedule(event, priority=AFTER_THE_INSTANT)

    def settle(self, _: Event) -> None:
        """Rule 3: re-share the connected component of the touched links, and schedule its finishes anew."""
        self.settling = False
        flows = connected_flows(self.touched, self.on_link, self.flows.route) | {*self.capped}
        self.touched, self.capped = set(), []
        rates = max_min_rates(
            {flow: self.flows.route[flow] for flow in flows},
            {flow: self.flows.cap[flow] for flow in flows},
            self.link_rate,
        )
        now = self.clock.now
        for flow, rate in rates.items():
            if rate == self.rate[flow]:
                continue
            self.remaining[flow] -= self.rate[flow] * (now - self.since_ns[flow])
            self.rate[flow], self.since_ns[flow] = rate, now
            self.version[flow] += 1
            if rate:
                _at(self.clock, -(-self.remaining[flow] // rate), self.leave, (flow, self.version[flow]))


def _at(clock: Environment, delay_ns: int, callback: Callable[[Event], None], value: object) -> None:
    Timeout(clock, delay_ns, value).callbacks.append(callback)
