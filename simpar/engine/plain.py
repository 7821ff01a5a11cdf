"""The plain engine: `reference` without a clock for what shares nothing, for Programs too small to compile for.

It gives the same integers op by op, several times as fast. As in `event_kernel`, only flows need a clock: when an op
without work starts, its finish is known, and so are the starts of ops that wait for it. A flow that has its links to
itself drains at a rate that its route gives; only flows that meet others on a link are shared anew.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from simpar.engine.sharing import FlowTable, LinkChange, as_rates, complaint, connected_flows, max_min_rates
from simpar.errors import TooContendedError
from simpar.program.ir.flow import FRACTION_BITS, NO_CAP
from simpar.program.ir.program import Csr, Program, ProgramError, Timing, edges

BEGIN = -1  # the version of an entry of the heap at which a flow begins to drain; entries of changes have op < 0


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises ProgramError as `reference.run` does.
    """
    return PlainRun(program, changes).timing()


class PlainRun:
    """One execution of a Program.

    ``shared`` counts the flows of all re-shares, of which ``most_shared`` are allowed.

    ``remaining``, ``rate``, ``since_ns`` and ``version`` are by flow under way; an entry of the heap under an older
    version of a flow is void. ``ready_ns`` is when what an op waits for has finished, as far as that is known.
    """

    def __init__(self, program: Program, changes: Sequence[LinkChange] = (), *, most_shared: float = inf) -> None:
        self.program, self.flows = program, FlowTable.of(program)
        self.shared, self.most_shared = 0, most_shared
        before, after = edges(program)
        followers = Csr.of(before, after, len(program))
        self.pointer, self.follower = followers.pointer.tolist(), followers.item.tolist()
        self.waiting = np.bincount(after, minlength=len(program)).tolist()
        self.fixed_ns = program.ops.fixed_ns.tolist()
        self.ready_ns, self.finish_ns = [0] * len(program), [-1] * len(program)
        self.link_rate = list(self.flows.link_rate)
        self.on_link: list[set[int]] = [set() for _ in self.link_rate]
        self.remaining: dict[int, int] = {}
        self.rate: dict[int, int] = {}
        self.since_ns: dict[int, int] = {}
        self.version: dict[int, int] = {}
        self.touched: set[int] = set()
        self.changes = as_rates(changes)
        self.heap = [(time_ns, -1 - at, 0) for at, (time_ns, _, _) in enumerate(self.changes)]  # in order of time
        self.alone: dict[int, int] = {}

    def timing(self) -> Timing:
        """Run to the end. Raises TooContendedError beyond the flows allowed, else as `reference.run` does."""
        self.start([op for op, count in enumerate(self.waiting) if not count])
        heap = self.heap
        while heap:
            now_ns = heap[0][0]
            while heap and heap[0][0] == now_ns:
                self.happen(*heappop(heap))
            if self.touched:
                self.settle(now_ns)
        waiting = np.array(self.waiting, dtype=np.int64) > 0
        start, finish = np.array([self.ready_ns, self.finish_ns], dtype=np.int64)
        if (finish < 0).any():
            start[waiting] = -1
            raise ProgramError(complaint(self.program, start, finish))
        return Timing(start, finish)

    def start(self, ops: list[int]) -> None:
        """Rules 1 and 2 for ops that wait for nothing more, and for all that start when these finish."""
        waiting, ready_ns, fixed_ns, finish_ns = self.waiting, self.ready_ns, self.fixed_ns, self.finish_ns
        work, pointer, follower = self.flows.work, self.pointer, self.follower
        while ops:
            op = ops.pop()
            end_ns = ready_ns[op] + fixed_ns[op] if finish_ns[op] < 0 else finish_ns[op]
            if work[op] and finish_ns[op] < 0:
                heappush(self.heap, (end_ns, op, BEGIN))
                continue
            finish_ns[op] = end_ns
            for after in follower[pointer[op] : pointer[op + 1]]:
                if ready_ns[after] < end_ns:
                    ready_ns[after] = end_ns
                waiting[after] -= 1
                if not waiting[after]:
                    ops.append(after)

    def happen(self, now_ns: int, op: int, version: int) -> None:
        """A flow begins to drain or has drained, or a link changes."""
        if op < 0:
            _, link, self.link_rate[link] = self.changes[-1 - op]
            self.touched.add(link)
        elif version == BEGIN:
            self.join(now_ns, op)
        elif self.version.get(op) == version:
            self.leave(op)
            self.finish_ns[op] = now_ns
            self.start([op])

    def join(self, now_ns: int, flow: int) -> None:
        """A flow starts to drain, at once if it meets no other on its links."""
        route = self.flows.route[flow]
        self.remaining[flow], self.rate[flow] = self.flows.work[flow], 0
        self.since_ns[flow], self.version[flow] = now_ns, 0
        meets = False
        for link, _ in route:
            others = self.on_link[link]
            if others:
                meets = True
                self.touched.add(link)
            others.add(flow)
        if not meets:
            self.drain(now_ns, flow, min(self.flows.cap[flow], self.rate_alone(flow)))

    def rate_alone(self, flow: int) -> int:
        """The rate that the links of a flow give it if it has them to itself; they are looked up by route."""
        route = self.flows.route[flow]
        if self.changes:
            return self._lowest(flow)
        rate = self.alone.get(id(route))
        if rate is None:
            rate = self.alone[id(route)] = self._lowest(flow)
        return rate

    def _lowest(self, flow: int) -> int:
        rates = ((self.link_rate[link] << FRACTION_BITS) // share for link, share in self.flows.route[flow])
        return min(rates, default=NO_CAP)

    def drain(self, now_ns: int, flow: int, rate: int) -> None:
        """From now on, a flow drains at a rate; it has drained when its remaining work has, rounded up."""
        self.remaining[flow] -= self.rate[flow] * (now_ns - self.since_ns[flow])
        self.rate[flow], self.since_ns[flow] = rate, now_ns
        self.version[flow] += 1
        if rate:
            heappush(self.heap, (now_ns - (-self.remaining[flow] // rate), flow, self.version[flow]))

    def leave(self, flow: int) -> None:
        """Take a drained flow off its links; those that it had to itself need no re-share."""
        for link, _ in self.flows.route[flow]:
            others = self.on_link[link]
            others.discard(flow)
            if others:
                self.touched.add(link)
        for table in (self.remaining, self.rate, self.since_ns, self.version):
            del table[flow]

    def settle(self, now_ns: int) -> None:
        """Rule 3: re-share the connected component of the touched links, and schedule its finishes anew."""
        flows = connected_flows(self.touched, self.on_link, self.flows.route)
        self.touched = set()
        self.shared += len(flows)
        if self.shared > self.most_shared:
            raise TooContendedError(f"more than {self.most_shared:,} flows re-shared")
        routes = {flow: self.flows.route[flow] for flow in flows}
        rates = max_min_rates(routes, {flow: self.flows.cap[flow] for flow in flows}, self.link_rate)
        for flow, rate in rates.items():
            if rate != self.rate[flow]:
                self.drain(now_ns, flow, rate)
