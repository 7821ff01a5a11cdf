"""Compiled kernels of the event engine. Import only through `event`, because this needs numba.

The state of a run is one record an op (`ops`), a link (`links`) and a hop of a flow (`nodes`), and a few
lists of integers (`lists`, one row each, their lengths in the last row). They are passed one by one: inside
a tuple, numba would count references on every access, which takes longer than the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simpar.program.flow import FRACTION_BITS, NO_CAP

Ints = NDArray[np.int64]
Records = Any  # a structured array; numba reads ops[i].rate where numpy says ops["rate"][i]
Function = TypeVar("Function", bound=Callable[..., Any])


def _record(*fields: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in fields])


# Rule 1 (followers, waiting), rule 2 (fixed_ns, work, cap, nodes), progress as a flow, entry in the heap.
OP = _record(
    *("first_follower", "last_follower", "waiting", "start_ns", "finish_ns"),
    *("fixed_ns", "work", "cap", "first_node", "last_node"),
    *("remaining", "rate", "since_ns", "new_rate", "stamp"),
    *("place", "time_ns"),
)
LINK = _record("rate", "head", "left", "load", "share", "stamp")  # head: first node of its active flows
NODE = _record("link", "coefficient", "flow", "previous", "following")

# Rows of `lists`: heap order, links and flows found in a re-share, stack of finished ops, their lengths.
HEAP, LINKS, FLOWS, DONE, SIZES = range(5)
STAMP, NOW, VISITS = 3, 4, 5  # further entries of the row SIZES


def _compiled(function: Function) -> Function:
    return cast("Function", njit(cache=True)(function))


@_compiled
def _sift_up(ops: Records, lists: Ints, at: int) -> None:
    moving = lists[HEAP, at]
    key = ops[moving].time_ns
    while at > 0:
        parent = (at - 1) >> 1
        other = lists[HEAP, parent]
        if ops[other].time_ns <= key:
            break
        lists[HEAP, at] = other
        ops[other].place = at
        at = parent
    lists[HEAP, at] = moving
    ops[moving].place = at


@_compiled
def _sift_down(ops: Records, lists: Ints, at: int) -> None:
    moving = lists[HEAP, at]
    key = ops[moving].time_ns
    size = lists[SIZES, HEAP]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and ops[lists[HEAP, child + 1]].time_ns < ops[lists[HEAP, child]].time_ns:
            child += 1
        other = lists[HEAP, child]
        if ops[other].time_ns >= key:
            break
        lists[HEAP, at] = other
        ops[other].place = at
        at = child
    lists[HEAP, at] = moving
    ops[moving].place = at


@_compiled
def _schedule(ops: Records, lists: Ints, entry: int, time_ns: int) -> None:
    """Schedule an entry, or move the one that is there."""
    if ops[entry].place < 0:
        ops[entry].place = lists[SIZES, HEAP]
        lists[HEAP, lists[SIZES, HEAP]] = entry
        lists[SIZES, HEAP] += 1
    ops[entry].time_ns = time_ns
    _sift_up(ops, lists, ops[entry].place)
    _sift_down(ops, lists, ops[entry].place)


@_compiled
def _cancel(ops: Records, lists: Ints, entry: int) -> None:
    """Take an entry out of the heap, if it is there."""
    at = ops[entry].place
    if at < 0:
        return
    ops[entry].place = -1
    lists[SIZES, HEAP] -= 1
    last = lists[HEAP, lists[SIZES, HEAP]]
    if last != entry:
        lists[HEAP, at] = last
        ops[last].place = at
        _sift_up(ops, lists, at)
        _sift_down(ops, lists, ops[last].place)


@_compiled
def _touch(links: Records, lists: Ints, link: int) -> None:
    if links[link].stamp != lists[SIZES, STAMP]:
        links[link].stamp = lists[SIZES, STAMP]
        lists[LINKS, lists[SIZES, LINKS]] = link
        lists[SIZES, LINKS] += 1


@_compiled
def _join(ops: Records, links: Records, nodes: Records, lists: Ints, op: int) -> None:
    """A flow starts to drain; without links only its cap limits it."""
    flow = ops[op]
    flow.remaining = flow.work
    flow.rate = 0
    flow.since_ns = lists[SIZES, NOW]
    for at in range(flow.first_node, flow.last_node):
        node = nodes[at]
        head = links[node.link].head
        node.flow = op
        node.previous = -1
        node.following = head
        if head >= 0:
            nodes[head].previous = at
        links[node.link].head = at
        _touch(links, lists, node.link)
    if flow.first_node == flow.last_node:
        flow.rate = flow.cap
        _schedule(ops, lists, op, flow.since_ns - (-flow.work // flow.cap))


@_compiled
def _leave(ops: Records, links: Records, nodes: Records, lists: Ints, op: int) -> None:
    for at in range(ops[op].first_node, ops[op].last_node):
        node = nodes[at]
        if node.previous >= 0:
            nodes[node.previous].following = node.following
        else:
            links[node.link].head = node.following
        if node.following >= 0:
            nodes[node.following].previous = node.previous
        _touch(links, lists, node.link)


@_compiled
def _component(ops: Records, links: Records, nodes: Records, lists: Ints) -> None:
    """Extend the touched links to all links and flows connected to them; sum up the load of each link."""
    at = 0
    while at < lists[SIZES, LINKS]:
        link = links[lists[LINKS, at]]
        at += 1
        load = 0
        current = link.head
        while current >= 0:
            load += nodes[current].coefficient
            flow = ops[nodes[current].flow]
            if flow.stamp != lists[SIZES, STAMP]:
                flow.stamp = lists[SIZES, STAMP]
                flow.new_rate = -1
                lists[FLOWS, lists[SIZES, FLOWS]] = nodes[current].flow
                lists[SIZES, FLOWS] += 1
                for other in range(flow.first_node, flow.last_node):
                    _touch(links, lists, nodes[other].link)
            current = nodes[current].following
        link.left = link.rate << FRACTION_BITS
        link.load = load
    lists[SIZES, VISITS] += at


@_compiled
def _fair_share(ops: Records, links: Records, lists: Ints, capped: int) -> int:
    """The smallest share of any link still in use and any cap of a flow without a rate."""
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
    if capped:
        for i in range(lists[SIZES, FLOWS]):
            flow = ops[lists[FLOWS, i]]
            if flow.new_rate < 0:
                fair = min(fair, flow.cap)
    return fair


@_compiled
def _freeze(ops: Records, links: Records, nodes: Records, op: int, rate: int) -> None:
    ops[op].new_rate = rate
    for at in range(ops[op].first_node, ops[op].last_node):
        link = links[nodes[at].link]
        link.left -= rate * nodes[at].coefficient
        link.load -= nodes[at].coefficient


@_compiled
def _water_fill(ops: Records, links: Records, nodes: Records, lists: Ints) -> None:
    """Max-min rates of the flows found; all links and caps at the minimum freeze together."""
    unfrozen, capped = lists[SIZES, FLOWS], 0
    for i in range(lists[SIZES, FLOWS]):
        capped += ops[lists[FLOWS, i]].cap < NO_CAP
    while unfrozen:
        fair = _fair_share(ops, links, lists, capped)
        for i in range(lists[SIZES, LINKS]):
            link = links[lists[LINKS, i]]
            if link.share != fair:  # shares are those from before this round froze anything
                continue
            current = link.head
            while current >= 0:
                if ops[nodes[current].flow].new_rate < 0:
                    _freeze(ops, links, nodes, nodes[current].flow, fair)
                    unfrozen -= 1
                current = nodes[current].following
        if capped:
            for i in range(lists[SIZES, FLOWS]):
                flow = ops[lists[FLOWS, i]]
                if flow.new_rate < 0 and flow.cap == fair:
                    _freeze(ops, links, nodes, lists[FLOWS, i], fair)
                    unfrozen -= 1


@_compiled
def _settle(ops: Records, links: Records, nodes: Records, lists: Ints) -> None:
    """Rule 3: re-share the component of the touched links, and foresee its finishes anew."""
    _component(ops, links, nodes, lists)
    _water_fill(ops, links, nodes, lists)
    now = lists[SIZES, NOW]
    for i in range(lists[SIZES, FLOWS]):
        flow = ops[lists[FLOWS, i]]
        if flow.new_rate == flow.rate:
            continue
        flow.remaining -= flow.rate * (now - flow.since_ns)
        flow.rate = flow.new_rate
        flow.since_ns = now
        if flow.rate > 0:
            _schedule(ops, lists, lists[FLOWS, i], now - (-flow.remaining // flow.rate))
        else:
            _cancel(ops, lists, lists[FLOWS, i])
    lists[SIZES, LINKS] = 0
    lists[SIZES, FLOWS] = 0
    lists[SIZES, STAMP] += 1


@_compiled
def _start(ops: Records, links: Records, nodes: Records, lists: Ints, op: int) -> bool:
    """Begin rule 2; return whether the op takes no time at all."""
    ops[op].start_ns = lists[SIZES, NOW]
    if ops[op].fixed_ns > 0:
        _schedule(ops, lists, op, lists[SIZES, NOW] + ops[op].fixed_ns)
    elif ops[op].work > 0:
        _join(ops, links, nodes, lists, op)
    else:
        return True
    return False


@_compiled
def _finish(ops: Records, links: Records, nodes: Records, lists: Ints, follower: Ints, op: int) -> None:
    """Rule 1: start whatever waited for this op last, and pass through what takes no time."""
    lists[DONE, 0] = op
    size = 1
    while size > 0:
        size -= 1
        done = lists[DONE, size]
        ops[done].finish_ns = lists[SIZES, NOW]
        for i in range(ops[done].first_follower, ops[done].last_follower):
            ops[follower[i]].waiting -= 1
            if ops[follower[i]].waiting == 0 and _start(ops, links, nodes, lists, follower[i]):
                lists[DONE, size] = follower[i]
                size += 1


@_compiled
def _happen(ops: Records, links: Records, nodes: Records, lists: Ints, follower: Ints, op: int) -> None:
    """One event: a flow has drained, or a fixed part is over."""
    if ops[op].since_ns >= 0:
        _leave(ops, links, nodes, lists, op)
        _finish(ops, links, nodes, lists, follower, op)
    elif ops[op].work > 0:
        _join(ops, links, nodes, lists, op)
    else:
        _finish(ops, links, nodes, lists, follower, op)


@_compiled
def simulate(
    ops: Records, links: Records, nodes: Records, lists: Ints, follower: Ints, changes: Ints
) -> None:
    """Run to the end: fills start_ns and finish_ns, -1 where nothing happens any more.

    Stops where re-shares have visited as many links as the entry VISITS below zero allowed. `changes` rows are
    (time_ns, link, rate) in order of time; their entries stand behind the ops.
    """
    num_ops = len(ops) - len(changes)
    for i in range(len(changes)):
        _schedule(ops, lists, num_ops + i, changes[i, 0])
    for op in range(num_ops):
        first = ops[op].waiting == 0 and ops[op].start_ns < 0
        if first and _start(ops, links, nodes, lists, op):
            _finish(ops, links, nodes, lists, follower, op)
    while True:
        while lists[SIZES, HEAP] > 0 and ops[lists[HEAP, 0]].time_ns == lists[SIZES, NOW]:
            entry = lists[HEAP, 0]
            _cancel(ops, lists, entry)
            if entry < num_ops:
                _happen(ops, links, nodes, lists, follower, entry)
            else:
                links[changes[entry - num_ops, 1]].rate = changes[entry - num_ops, 2]
                _touch(links, lists, changes[entry - num_ops, 1])
        if lists[SIZES, LINKS] > 0:
            _settle(ops, links, nodes, lists)
        if lists[SIZES, HEAP] == 0 or lists[SIZES, VISITS] > 0:
            break
        lists[SIZES, NOW] = ops[lists[HEAP, 0]].time_ns


@_compiled
def longest_paths(pointer: Ints, follower: Ints, waiting: Ints, duration: Ints, start: Ints) -> int:
    """Rule 1 alone: fills start, uses up waiting, and returns how many ops ever start."""
    ready = np.empty(len(start), dtype=np.int64)
    size = reached = 0
    for op in range(len(start)):
        if waiting[op] == 0:
            ready[size] = op
            size += 1
    while size > 0:
        size -= 1
        op = ready[size]
        reached += 1
        finish = start[op] + duration[op]
        for i in range(pointer[op], pointer[op + 1]):
            after = follower[i]
            start[after] = max(start[after], finish)
            waiting[after] -= 1
            if waiting[after] == 0:
                ready[size] = after
                size += 1
    return reached
