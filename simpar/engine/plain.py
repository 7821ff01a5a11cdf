"""The plain engine: `reference` without a clock for what shares nothing, for Programs too small to compile for.

It gives the same integers op by op, several times as fast. As in `event`, only flows need a clock: when an op
without work starts, its finish is known, and so are the starts of ops that wait for it. A flow that has its links to
itself drains at a rate that its route gives; only flows that meet others on a link are shared anew.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from simpar.engine.sharing import FlowTable, LinkChange, as_rates, complaint, connected_flows, max_min_rates
from simpar.errors import TooContendedError
from simpar.program.ir.flow import FRACTION_BITS
from simpar.program.ir.program import Csr, Program, ProgramError, Timing, edges

Sort = tuple[int, int]  # (route, cap)
BEGIN, GONE = -1, -2  # versions of a flow that is to begin and of one that has drained; entries of changes have op < 0


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises ProgramError as `reference.run` does.
    """
    return PlainRun(program, changes).timing()


class PlainRun:
    """One execution of a Program.

    ``shared`` counts the flows of all re-shares, of which ``most_shared`` are allowed.

    ``remaining``, ``rate``, ``since_ns`` and ``version`` are of flows under way, by op; an entry of the heap under
    another version than its flow's is void. ``ready_ns`` is when what an op waits for has finished, as far as that is
    known. Flows of one ``sort`` cross the same links under the same cap: rates depend on the sorts that meet, and are
    kept until a link changes.
    """

    def __init__(self, program: Program, changes: Sequence[LinkChange] = (), *, most_shared: float = inf) -> None:
        count = len(program)
        self.program, self.flows = program, FlowTable.of(program)
        self.shared, self.most_shared = 0, most_shared
        before, after = edges(program)
        followers = Csr.of(before, after, count)
        self.pointer, self.follower = followers.pointer.tolist(), followers.item.tolist()
        self.waiting = np.bincount(after, minlength=count).tolist()
        self.fixed_ns = program.ops.fixed_ns.tolist()
        self.ready_ns, self.finish_ns = [0] * count, [-1] * count
        self.link_rate = list(self.flows.link_rate)
        self.on_link: list[set[int]] = [set() for _ in self.link_rate]
        self.remaining, self.rate, self.since_ns, self.version = [0] * count, [0] * count, [0] * count, [BEGIN] * count
        self.touched: set[int] = set()
        self.changes = as_rates(changes)
        self.heap = [(time_ns, -1 - at, 0) for at, (time_ns, _, _) in enumerate(self.changes)]  # in order of time
        self.sort = [*zip(program.ops.route.tolist(), self.flows.cap, strict=True)]
        routes = dict(zip(program.ops.route.tolist(), self.flows.route, strict=True))
        self.links = {number: [link for link, _ in route] for number, route in routes.items()}
        self.rates: dict[tuple[Sort, ...], dict[Sort, int]] = {}
        self.alone: dict[Sort, int] = {}

    def timing(self) -> Timing:
        """Run to the end. Raises TooContendedError beyond the flows allowed, else as `reference.run` does."""
        self.start([op for op, count in enumerate(self.waiting) if not count])
        heap, version, finish_ns = self.heap, self.version, self.finish_ns
        while heap:
            now_ns = heap[0][0]
            while heap and heap[0][0] == now_ns:
                _, op, entry = heappop(heap)
                if op < 0:
                    self.change(op)
                elif version[op] != entry:
                    continue
                elif entry == BEGIN:
                    self.join(now_ns, op)
                else:
                    self.leave(op)
                    finish_ns[op] = now_ns
                    self.start([op])
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
            end_ns = finish_ns[op]
            if end_ns < 0:
                end_ns = ready_ns[op] + fixed_ns[op]
                if work[op]:
                    heappush(self.heap, (end_ns, op, BEGIN))
                    continue
                finish_ns[op] = end_ns
            for after in follower[pointer[op] : pointer[op + 1]]:
                if ready_ns[after] < end_ns:
                    ready_ns[after] = end_ns
                waiting[after] -= 1
                if not waiting[after]:
                    ops.append(after)

    def change(self, entry: int) -> None:
        """A link changes."""
        _, link, self.link_rate[link] = self.changes[-1 - entry]
        self.touched.add(link)
        self.rates.clear()
        self.alone.clear()

    def join(self, now_ns: int, flow: int) -> None:
        """A flow starts to drain, at once if it meets no other on its links."""
        sort, on_link, meets = self.sort[flow], self.on_link, False
        self.remaining[flow], self.since_ns[flow] = self.flows.work[flow], now_ns
        for link in self.links[sort[0]]:
            others = on_link[link]
            if others:
                meets = True
                self.touched.add(link)
            others.add(flow)
        self.version[flow] = 0
        if not meets:
            rate = self.alone.get(sort)
            self.drain(now_ns, flow, self.rate_alone(flow) if rate is None else rate)

    def rate_alone(self, flow: int) -> int:
        """The rate of a flow that has its links to itself."""
        links = ((self.link_rate[link] << FRACTION_BITS) // share for link, share in self.flows.route[flow])
        rate = self.alone[self.sort[flow]] = min([self.flows.cap[flow], *links])
        return rate

    def drain(self, now_ns: int, flow: int, rate: int) -> None:
        """From now on, a flow drains at a rate; it has drained when its remaining work has, rounded up."""
        left = self.remaining[flow] = self.remaining[flow] - self.rate[flow] * (now_ns - self.since_ns[flow])
        self.rate[flow], self.since_ns[flow] = rate, now_ns
        version = self.version[flow] = self.version[flow] + 1
        if rate:
            heappush(self.heap, (now_ns - (-left // rate), flow, version))

    def leave(self, flow: int) -> None:
        """Take a drained flow off its links; those that it had to itself need no re-share."""
        for link in self.links[self.sort[flow][0]]:
            others = self.on_link[link]
            others.discard(flow)
            if others:
                self.touched.add(link)
        self.version[flow] = GONE

    def settle(self, now_ns: int) -> None:
        """Rule 3: re-share the connected component of the touched links, and schedule its finishes anew."""
        flows = connected_flows(self.touched, self.on_link, self.flows.route)
        self.touched = set()
        self.shared += len(flows)
        if self.shared > self.most_shared:
            raise TooContendedError(f"more than {self.most_shared:,} flows re-shared")
        meeting = tuple(sorted([self.sort[flow] for flow in flows]))
        rates = self.rates.get(meeting)
        if rates is None:
            routes = {flow: self.flows.route[flow] for flow in flows}
            by_flow = max_min_rates(routes, {flow: self.flows.cap[flow] for flow in flows}, self.link_rate)
            rates = self.rates[meeting] = {self.sort[flow]: rate for flow, rate in by_flow.items()}
        for flow in flows:
            rate = rates[self.sort[flow]]
            if rate != self.rate[flow]:
                self.drain(now_ns, flow, rate)
