"""Compiled kernels of the event engine. Import only through `event`, because this needs numba.

Only flows need a clock. When an op without work starts, its finish is known, however far ahead of the clock, and so are
the starts of ops that wait for it: `_pass_on` follows such chains at once. The heap holds the instants at which flows
begin to drain, have drained, or links change.

A link that one flow has to itself limits that flow like its cap does. Sharing only looks at links of several flows: of
an all-reduce over thousands of NICs, at the few that a message crosses as well.

The state of a run is one record an op (`ops`), a flow (`flows`), a link (`links`) and a hop of a flow (`nodes`), a
heap, and a few lists of integers (`lists`, one row each, their lengths in the last row). Nothing here allocates, so
nothing is compiled to count references, which takes longer than the work itself.

Of millions of flows few are under way at once. The record of a drained flow, with its hops, is therefore reused for the
next flow with the same route: there is room for all flows, and memory that is not used is never touched.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from simpar.program.ir.flow import FRACTION_BITS, NO_CAP
from simpar.units import Ints

Records = Any  # a structured array; numba reads ops[i].rate where numpy says ops["rate"][i]
Function = TypeVar("Function", bound=Callable[..., Any])


def _record(short: str, long: str) -> np.dtype[np.void]:
    """A record of 64-bit fields, then 32-bit indices; short, because reading records takes most of the time."""
    fields: list[Any] = [(name, np.int64) for name in long.split()]
    return np.dtype([*fields, *((name, np.int32) for name in short.split())])


OP = _record(  # ends_ns: the fixed part until it starts, then its finish (-1: open); flow: its row of DEMAND, or -1
    "first_follower last_follower waiting flow", "ready_ns ends_ns"
)
DEMAND = _record("route", "work cap")  # of an op with work
HOP = _record("link", "coefficient alone")  # of a route; alone: the rate that the link gives a flow alone
FLOW = _record(
    "op first_node last_node shared stamp next_free",  # shared: first of its nodes on links of several flows
    "remaining cap rate since_ns new_rate limit drained_ns",  # limit: of cap and own links; drained_ns: -1 unforeseen
)
LINK = _record("head flows", "rate left load share stamp")  # head: first node of its active flows
NODE = _record(
    "link flow previous following before behind",  # neighbours on the link, and among the shared nodes of the flow
    "coefficient alone",
)

STARTED = -1  # what an op is waiting for once it has started
# Rows of `lists`: links and flows found in a re-share, stack of ops with a finish, last free flow of every route (plus
# one), lengths of all of them.
LINKS, FLOWS, DONE, FREE, SIZES = range(5)
# Further entries of the row SIZES: the last two are how many records of flows and of nodes are used.
HEAP, STAMP, NOW, VISITS, MADE, NODES = range(5, 11)
TIME, ENTRY = 0, 1  # columns of the heap; entries are flows that drain, then flows that begin, then changes
WAYS = 4  # children of an entry of the heap


class RunTables(NamedTuple):
    """The tables that starting ops needs: records, those of ops with work (`demands`), and the followers of each op.

    Row r of `routes` bounds the `hops` of route r.
    """

    ops: Records
    demands: Records
    flows: Records
    nodes: Records
    heap: Ints
    lists: Ints
    hops: Records
    routes: Ints
    follower: Ints


def compiled(function: Function) -> Function:
    """A function as numba compiles it, once per machine."""
    return cast("Function", njit(cache=True, _nrt=False)(function))


@compiled
def _sift_down(heap: Ints, size: int, at: int) -> None:
    time_ns, entry = heap[at, TIME], heap[at, ENTRY]
    while True:
        child = WAYS * at + 1
        if child >= size:
            break
        for other in range(child + 1, min(child + WAYS, size)):
            if heap[other, TIME] < heap[child, TIME]:
                child = other
        if heap[child, TIME] >= time_ns:
            break
        heap[at, TIME], heap[at, ENTRY] = heap[child, TIME], heap[child, ENTRY]
        at = child
    heap[at, TIME], heap[at, ENTRY] = time_ns, entry


@compiled
def _push(flows: Records, heap: Ints, lists: Ints, time_ns: int, entry: int) -> None:
    """Schedule an entry; a full heap first drops entries whose time has changed since."""
    size = lists[SIZES, HEAP]
    if size == len(heap):
        kept = 0
        for at in range(size):
            drains = heap[at, ENTRY]
            if drains >= len(flows) or flows[drains].drained_ns == heap[at, TIME]:
                heap[kept, TIME], heap[kept, ENTRY] = heap[at, TIME], heap[at, ENTRY]
                kept += 1
        for at in range(kept // WAYS, -1, -1):
            _sift_down(heap, kept, at)
        size = kept
    at = size
    while at > 0:
        parent = (at - 1) // WAYS
        if heap[parent, TIME] <= time_ns:
            break
        heap[at, TIME], heap[at, ENTRY] = heap[parent, TIME], heap[parent, ENTRY]
        at = parent
    heap[at, TIME], heap[at, ENTRY] = time_ns, entry
    lists[SIZES, HEAP] = size + 1


@compiled
def _pop(heap: Ints, lists: Ints) -> int:
    entry: int = heap[0, ENTRY]
    lists[SIZES, HEAP] -= 1
    size = lists[SIZES, HEAP]
    heap[0, TIME], heap[0, ENTRY] = heap[size, TIME], heap[size, ENTRY]
    _sift_down(heap, size, 0)
    return entry


@compiled
def _foresee(flows: Records, heap: Ints, lists: Ints, flow: int, time_ns: int) -> None:
    flows[flow].drained_ns = time_ns
    _push(flows, heap, lists, time_ns, flow)


@compiled
def _touch(links: Records, lists: Ints, link: int) -> None:
    if links[link].stamp != lists[SIZES, STAMP]:
        links[link].stamp = lists[SIZES, STAMP]
        lists[LINKS, lists[SIZES, LINKS]] = link
        lists[SIZES, LINKS] += 1


@compiled
def _share(flows: Records, nodes: Records, at: int) -> None:
    """Note that the link of a node has several flows from now on."""
    flow = flows[nodes[at].flow]
    nodes[at].before = -1
    nodes[at].behind = flow.shared
    if flow.shared >= 0:
        nodes[flow.shared].before = at
    flow.shared = at


@compiled
def _unshare(flows: Records, nodes: Records, at: int) -> None:
    node = nodes[at]
    if node.before >= 0:
        nodes[node.before].behind = node.behind
    else:
        flows[node.flow].shared = node.behind
    if node.behind >= 0:
        nodes[node.behind].before = node.before


@compiled
def _enter(flows: Records, links: Records, nodes: Records, at: int) -> None:
    """Append a flow to the flows on the link of one of its nodes."""
    head = links[nodes[at].link].head
    nodes[at].previous = -1
    nodes[at].following = head
    if head >= 0:
        nodes[head].previous = at
        if links[nodes[at].link].flows == 1:
            _share(flows, nodes, head)
        _share(flows, nodes, at)
    links[nodes[at].link].head = at
    links[nodes[at].link].flows += 1


@compiled
def _exit(flows: Records, links: Records, nodes: Records, at: int) -> None:
    """Remove a flow from the link of one of its nodes."""
    previous, following = nodes[at].previous, nodes[at].following
    if previous >= 0:
        nodes[previous].following = following
    else:
        links[nodes[at].link].head = following
    if following >= 0:
        nodes[following].previous = previous
    links[nodes[at].link].flows -= 1
    if links[nodes[at].link].flows == 1:
        _unshare(flows, nodes, links[nodes[at].link].head)


@compiled
def _limit(flows: Records, links: Records, nodes: Records, lists: Ints, limit: int, changing: bool) -> None:
    """Set the limit of a flow: the lowest of its cap and the rates of links that it has to itself.

    Unless capacities change, its nodes are ordered by the rate that their links give it alone: the first one decides.
    """
    flow = flows[limit]
    flow.limit = flow.cap
    for at in range(flow.first_node, flow.last_node):
        link = links[nodes[at].link]
        lists[SIZES, VISITS] += 1
        if link.flows == 1:
            alone = nodes[at].alone
            if changing:
                alone = (link.rate << FRACTION_BITS) // nodes[at].coefficient
            flow.limit = min(flow.limit, alone)
            if not changing:
                break


@compiled
def _join(flows: Records, links: Records, nodes: Records, lists: Ints, begun: int) -> bool:
    """Let a flow start to drain; returns whether it has all its links to itself, so that no other flow is touched."""
    flow = flows[begun]
    flow.rate = 0
    flow.since_ns = lists[SIZES, NOW]
    flow.shared = -1
    for at in range(flow.first_node, flow.last_node):
        _enter(flows, links, nodes, at)
    at = flow.shared
    while at >= 0:
        _touch(links, lists, nodes[at].link)
        at = nodes[at].behind
    alone: bool = flow.shared < 0
    return alone


@compiled
def _drain(flows: Records, heap: Ints, lists: Ints, alone: int) -> None:
    """Let a flow that shares no link drain at its limit."""
    flow = flows[alone]
    lists[SIZES, VISITS] += flow.last_node - flow.first_node
    if flow.limit > 0:
        flow.rate = flow.limit
        _foresee(flows, heap, lists, alone, lists[SIZES, NOW] - (-flow.remaining // flow.rate))


@compiled
def _leave(flows: Records, links: Records, nodes: Records, lists: Ints, drained: int) -> None:
    """Take a drained flow off its links; links that it had to itself need no re-share."""
    for at in range(flows[drained].first_node, flows[drained].last_node):
        _exit(flows, links, nodes, at)
        if links[nodes[at].link].flows > 0:
            _touch(links, lists, nodes[at].link)
        else:
            lists[SIZES, VISITS] += 1


@compiled
def _component(flows: Records, links: Records, nodes: Records, lists: Ints, changing: bool) -> int:
    """Extend the touched links to all shared links and flows connected to them, and sum up the load of each.

    Returns how many of the flows share a link; the others drain at their limits.
    """
    at = sharing = 0
    while at < lists[SIZES, LINKS]:
        link = links[lists[LINKS, at]]
        at += 1
        load = 0
        current = link.head
        while current >= 0:
            load += nodes[current].coefficient
            flow = flows[nodes[current].flow]
            if flow.stamp != lists[SIZES, STAMP]:
                flow.stamp = lists[SIZES, STAMP]
                lists[FLOWS, lists[SIZES, FLOWS]] = nodes[current].flow
                lists[SIZES, FLOWS] += 1
                _limit(flows, links, nodes, lists, nodes[current].flow, changing)
                flow.new_rate = flow.limit if flow.shared < 0 else -1
                sharing += flow.shared >= 0
                other = flow.shared
                while other >= 0:
                    _touch(links, lists, nodes[other].link)
                    other = nodes[other].behind
            current = nodes[current].following
        link.left = link.rate << FRACTION_BITS
        link.load = load if link.flows > 1 else 0
    lists[SIZES, VISITS] += at
    return sharing


@compiled
def _fair_share(flows: Records, links: Records, lists: Ints) -> int:
    """The smallest of the shares of links still in use and the limits of flows without a rate."""
    fair = NO_CAP
    kept = 0
    lists[SIZES, VISITS] += lists[SIZES, LINKS]
    for i in range(lists[SIZES, LINKS]):
        link = links[lists[LINKS, i]]
        if link.load > 0:
            lists[LINKS, kept] = lists[LINKS, i]
            kept += 1
            link.share = link.left // link.load
            fair = min(fair, link.share)
    lists[SIZES, LINKS] = kept
    for i in range(lists[SIZES, FLOWS]):
        flow = flows[lists[FLOWS, i]]
        if flow.new_rate < 0:
            fair = min(fair, flow.limit)
    return fair


@compiled
def _freeze(flows: Records, links: Records, nodes: Records, frozen: int, rate: int) -> None:
    flows[frozen].new_rate = rate
    at = flows[frozen].shared
    while at >= 0:
        link = links[nodes[at].link]
        link.left -= rate * nodes[at].coefficient
        link.load -= nodes[at].coefficient
        at = nodes[at].behind


@compiled
def _water_fill(flows: Records, links: Records, nodes: Records, lists: Ints, unfrozen: int) -> None:
    """Max-min rates of the flows found; all links and limits at the minimum freeze together."""
    while unfrozen:
        fair = _fair_share(flows, links, lists)
        for i in range(lists[SIZES, LINKS]):
            link = links[lists[LINKS, i]]
            if link.share != fair:  # shares were computed before this round froze anything
                continue
            current = link.head
            while current >= 0:
                if flows[nodes[current].flow].new_rate < 0:
                    _freeze(flows, links, nodes, nodes[current].flow, fair)
                    unfrozen -= 1
                current = nodes[current].following
        for i in range(lists[SIZES, FLOWS]):
            flow = flows[lists[FLOWS, i]]
            if flow.new_rate < 0 and flow.limit == fair:
                _freeze(flows, links, nodes, lists[FLOWS, i], fair)
                unfrozen -= 1


@compiled
def _settle(flows: Records, links: Records, nodes: Records, heap: Ints, lists: Ints, changing: bool) -> None:
    """Rule 3: re-share the component of the touched links, and schedule its finishes anew."""
    _water_fill(flows, links, nodes, lists, _component(flows, links, nodes, lists, changing))
    now = lists[SIZES, NOW]
    for i in range(lists[SIZES, FLOWS]):
        flow = flows[lists[FLOWS, i]]
        if flow.new_rate == flow.rate:
            continue
        flow.remaining -= flow.rate * (now - flow.since_ns)
        flow.rate = flow.new_rate
        flow.since_ns = now
        if flow.rate > 0:
            _foresee(flows, heap, lists, lists[FLOWS, i], now - (-flow.remaining // flow.rate))
        else:
            flow.drained_ns = -1
    lists[SIZES, LINKS] = 0
    lists[SIZES, FLOWS] = 0
    lists[SIZES, STAMP] += 1


@compiled
def _made(run: RunTables, route: int) -> int:
    """A record, with nodes, for a flow on a route: one that is free again, or a new one."""
    flows, nodes, lists = run.flows, run.nodes, run.lists
    free: int = lists[FREE, route] - 1
    if free >= 0:
        lists[FREE, route] = flows[free].next_free + 1
        return free
    made: int = lists[SIZES, MADE]
    lists[SIZES, MADE] += 1
    flow = flows[made]
    flow.stamp = 0
    flow.first_node = lists[SIZES, NODES]
    for i in range(run.routes[route], run.routes[route + 1]):
        node, hop = nodes[lists[SIZES, NODES]], run.hops[i]
        node.flow, node.link, node.coefficient, node.alone = made, hop.link, hop.coefficient, hop.alone
        lists[SIZES, NODES] += 1
    flow.last_node = lists[SIZES, NODES]
    return made


@compiled
def _start(run: RunTables, op: int) -> None:
    """Rule 2 for an op that waits for nothing more: its finish is known unless it has work to drain."""
    lists, begun = run.lists, run.ops[op]
    begun.waiting = STARTED
    if begun.flow < 0:
        begun.ends_ns += begun.ready_ns
        lists[DONE, lists[SIZES, DONE]] = op
        lists[SIZES, DONE] += 1
        return
    demand = run.demands[begun.flow]
    made = _made(run, demand.route)
    flow = run.flows[made]
    flow.op, flow.remaining, flow.cap, flow.drained_ns = op, demand.work, demand.cap, -1
    _push(run.flows, run.heap, lists, begun.ready_ns + begun.ends_ns, len(run.flows) + made)
    begun.ends_ns = -1


@compiled
def _finish(run: RunTables, drained: int) -> None:
    """End the op of a drained flow, the only op whose finish is new, and free the flow's record."""
    flow, lists = run.flows[drained], run.lists
    done = run.ops[flow.op]
    done.ends_ns = lists[SIZES, NOW]
    lists[DONE, 0], lists[SIZES, DONE] = flow.op, 1
    route = run.demands[done.flow].route
    flow.next_free = lists[FREE, route] - 1
    lists[FREE, route] = drained + 1


@compiled
def _pass_on(run: RunTables) -> None:
    """Rule 1: start the ops that waited last for an op whose finish is now known, and follow such chains."""
    ops, lists = run.ops, run.lists
    while lists[SIZES, DONE] > 0:
        lists[SIZES, DONE] -= 1
        done = ops[lists[DONE, lists[SIZES, DONE]]]
        for i in range(done.first_follower, done.last_follower):
            after = ops[run.follower[i]]
            after.ready_ns = max(after.ready_ns, done.ends_ns)
            after.waiting -= 1
            if after.waiting == 0:
                _start(run, run.follower[i])


@compiled
def simulate(run: RunTables, links: Records, changes: Ints) -> None:
    """Run to the end: started ops have their start in ``ready_ns`` and their finish in ``ends_ns`` (-1: still open).

    The entry VISITS begins at minus the allowed number of visits; the run stops when re-shares have used them up.
    `changes` rows are (time_ns, link, rate).
    """
    ops, flows, nodes, heap, lists = run.ops, run.flows, run.nodes, run.heap, run.lists
    changing = len(changes) > 0
    for i in range(len(changes)):
        _push(flows, heap, lists, changes[i, 0], 2 * len(flows) + i)
    for op in range(len(ops)):
        if ops[op].waiting == 0:
            _start(run, op)
            _pass_on(run)
    while lists[SIZES, HEAP] > 0 and lists[SIZES, VISITS] <= 0:
        lists[SIZES, NOW] = heap[0, TIME]
        while lists[SIZES, HEAP] > 0 and heap[0, TIME] == lists[SIZES, NOW]:
            entry = _pop(heap, lists)
            if entry >= 2 * len(flows):
                links[changes[entry - 2 * len(flows), 1]].rate = changes[entry - 2 * len(flows), 2]
                _touch(links, lists, changes[entry - 2 * len(flows), 1])
            elif entry >= len(flows):
                if _join(flows, links, nodes, lists, entry - len(flows)):
                    _limit(flows, links, nodes, lists, entry - len(flows), changing)
                    _drain(flows, heap, lists, entry - len(flows))
            elif flows[entry].drained_ns == lists[SIZES, NOW]:
                flows[entry].drained_ns = -1
                _leave(flows, links, nodes, lists, entry)
                _finish(run, entry)
                _pass_on(run)
        if lists[SIZES, LINKS] > 0:
            _settle(flows, links, nodes, heap, lists, changing)
