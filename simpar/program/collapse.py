"""Collapse: runs of ops become one op, exactly; and flows that never share a link become durations.

Both passes only use what holds for every timing: an op that waits for one op alone, which nothing else
waits for, starts when that op finishes; two ops between the same two neighbours are one op as long as the
longer. Sums and maxima of integers are associative, so expanding the result gives back every start and
finish to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from simpar.program.program import Csr, MemoryTable, OpTable, Program, Timing, edges, solo_durations_ns

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_FEW = 8  # ops with more followers keep all their edges: looking for detours costs the square of their number


@dataclass(frozen=True)
class Expansion:
    """The way back: op i starts `offset_ns[i]` after the start of op `owner[i]` and lasts `duration_ns[i]`.

    `duration_ns` is -1 for flows, which last as long as their owner.
    """

    owner: Ints
    offset_ns: Ints
    duration_ns: Ints

    def timing(self, collapsed: Timing) -> Timing:
        """Start and finish of every original op."""
        start = collapsed.start_ns[self.owner] + self.offset_ns
        finish = np.where(self.duration_ns < 0, collapsed.finish_ns[self.owner], start + self.duration_ns)
        return Timing(start, finish)


@dataclass(frozen=True)
class _Graph:
    """What collapse rewrites: durations and classes of ops (class -1 never merges), edges before -> after."""

    duration_ns: Ints
    class_id: Ints
    before: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.duration_ns)

    def degrees(self) -> tuple[Ints, Ints]:
        """Numbers of predecessors and of followers."""
        return np.bincount(self.after, minlength=len(self)), np.bincount(self.before, minlength=len(self))


def privatise(program: Program, *, changing_links: Sequence[int] = ()) -> Program:
    """Turn flows into fixed durations where every link on their route carries one stream's flows only.

    A stream serialises its ops, so such flows never share. `changing_links` are links whose capacity will
    change during the run; their flows stay flows.
    """
    ops = program.ops
    private = _private_links(program)
    private[np.asarray(changing_links, dtype=np.int64)] = False
    links = program.routes.links
    shared_on_route = np.bincount(links.owners(), weights=~private[links.item], minlength=len(links))
    alone = np.append(shared_on_route == 0, True)[ops.route] & (ops.work_bytes > 0)
    columns = replace(
        ops,
        fixed_ns=np.where(alone, solo_durations_ns(program), ops.fixed_ns),
        work_bytes=np.where(alone, 0, ops.work_bytes),
        route=np.where(alone, -1, ops.route),
        rate_cap_bytes_per_s=np.where(alone, 0, ops.rate_cap_bytes_per_s),
    )
    return replace(program, ops=columns)


def _private_links(program: Program) -> Bools:
    """Links whose flows all sit on one common stream, or that carry one flow at most."""
    ops, streams, links = program.ops, program.streams, program.routes.links
    flows = np.flatnonzero((ops.work_bytes > 0) & (ops.route >= 0))
    link, flow = _rows_of(links, ops.route[flows], flows)
    num_links = len(program.routes.link_names)
    num_flows = np.bincount(link, minlength=num_links)
    by_op = Csr.of(streams.item, streams.owners(), len(program))
    stream, place = _rows_of(by_op, flow, link)
    pair, count = np.unique(place * max(len(streams), 1) + stream, return_counts=True)
    most = np.zeros(num_links, dtype=np.int64)
    np.maximum.at(most, pair // max(len(streams), 1), count)
    return np.asarray((most == num_flows) | (num_flows <= 1))


def _rows_of(table: Csr, rows: Ints, tags: Ints) -> tuple[Ints, Ints]:
    """Items of the given rows, and the tag of the row beside each item."""
    first, count = table.pointer[rows], np.diff(table.pointer)[rows]
    inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return table.item[np.repeat(first, count) + inside], np.repeat(tags, count)


def collapse(program: Program) -> tuple[Program, Expansion]:
    """Merge maximal runs of ops of one class without flows; exact for any durations of all other ops.

    The result has no memory table: read memory from the original program and the expanded timing.
    """
    ops = program.ops
    plain = ops.work_bytes == 0
    graph = _Graph(ops.fixed_ns, np.where(plain, ops.class_id, -1), *_distinct(*edges(program), len(program)))
    graph = _without(graph, _detours_along_streams(graph, program))
    owner, offset = np.arange(len(program)), np.zeros(len(program), dtype=np.int64)
    while True:
        serial, into, offsets = _merge_serial(graph)
        merged, beside = _merge_parallel(serial)
        offset, owner = offset + offsets[owner], beside[into[owner]]
        if len(merged) == len(graph):
            break
        graph = _without(merged, _short_detours(merged))
    duration = np.where(plain, ops.fixed_ns, -1)
    return _rebuilt(program, owner, graph.duration_ns), Expansion(owner, offset, duration)


def _distinct(before: Ints, after: Ints, num_ops: int) -> tuple[Ints, Ints]:
    """Pairs once each, without ops that precede themselves, sorted by the later op."""
    bits = num_ops.bit_length()
    key = np.sort((after << bits | before)[before != after])
    key = key[np.append(True, key[1:] != key[:-1])[: len(key)]]
    return key & ((1 << bits) - 1), key >> bits


def _without(graph: _Graph, redundant: Bools) -> _Graph:
    return replace(graph, before=graph.before[~redundant], after=graph.after[~redundant])


def _detours_along_streams(graph: _Graph, program: Program) -> Bools:
    """Edges u -> w beside a path u -> q, on along q's stream to p, then p -> w.

    Compute and communication streams that hand over to each other are full of these.
    """
    streams = program.streams
    home, position = np.zeros((2, len(graph)), dtype=np.int64)
    home[streams.item] = streams.owners()
    position[streams.item] = np.arange(len(streams.item))
    elsewhere = np.flatnonzero(np.bincount(streams.item, minlength=len(graph)) != 1)
    home[elsewhere] = len(streams) + elsewhere  # on several streams or none: a stream of its own
    return _implied(graph, home, position, steps=1)


def _short_detours(graph: _Graph) -> Bools:
    """Edges u -> w beside a path of two or three edges, as from an action over a message to the next one."""
    return _implied(graph, np.arange(len(graph)), np.zeros(len(graph), dtype=np.int64), steps=2)


def _implied(graph: _Graph, home: Ints, position: Ints, steps: int) -> Bools:
    """Edges u -> w with a q at most so many steps behind u, and a p -> w, of one home and q not after p.

    Ops that share a home must follow each other in order of position.
    """
    num_before, num_after = graph.degrees()
    doubtful = (
        (num_after[graph.before] > 1) & (num_after[graph.before] <= _FEW) & (num_before[graph.after] > 1)
    )
    asked = np.flatnonzero(doubtful)
    followers = Csr.of(graph.before, graph.after, len(graph))
    q, edge = _rows_of(followers, graph.before[asked], asked)
    if steps > 1:
        near = num_after[q] <= _FEW
        farther, edge_of_farther = _rows_of(followers, q[near], edge[near])
        q, edge = np.concatenate([q, farther]), np.concatenate([edge, edge_of_farther])
    q, edge = q[q != graph.after[edge]], edge[q != graph.after[edge]]
    num_homes = int(home.max(initial=0)) + 1
    known = np.flatnonzero(num_before[graph.after] > 1)
    arrivals = graph.after[known] * num_homes + home[graph.before[known]]
    order = np.argsort(arrivals, kind="stable")  # almost sorted already
    arrivals, latest = arrivals[order], position[graph.before[known]][order]
    first = np.flatnonzero(np.append(True, arrivals[1:] != arrivals[:-1])[: len(arrivals)])
    arrivals, latest = arrivals[first], np.maximum.reduceat(latest, first) if len(first) else latest
    wanted = graph.after[edge] * num_homes + home[q]
    found = np.searchsorted(arrivals, wanted)
    found[found == len(arrivals)] = 0
    hit = (arrivals[found] == wanted) & (position[q] <= latest[found]) if len(first) else found > 0
    implied = np.zeros(len(graph.before), dtype=bool)
    implied[edge[hit]] = True
    return implied


def _merge_serial(graph: _Graph) -> tuple[_Graph, Ints, Ints]:
    """Each op joins the one that it alone follows: the new graph, every op's new op and its offset there."""
    num_before, num_after = graph.degrees()
    u, v = graph.before, graph.after
    joins = (num_after[u] == 1) & (num_before[v] == 1) & (graph.class_id[u] == graph.class_id[v])
    joins &= graph.class_id[u] >= 0
    head, offset = np.arange(len(graph)), np.zeros(len(graph), dtype=np.int64)
    head[v[joins]], offset[v[joins]] = u[joins], graph.duration_ns[u[joins]]
    while not np.array_equal(farther := head[head], head):  # each pass doubles the distance jumped
        head, offset = farther, offset + offset[head]
    into = (np.cumsum(head == np.arange(len(graph))) - 1)[head]
    return _contracted(graph, into, offset), into, offset


def _merge_parallel(graph: _Graph) -> tuple[_Graph, Ints]:
    """Ops between the same two neighbours become one, as long as the longest: new graph, new op of each."""
    num_before, num_after = graph.degrees()
    ends = np.full((2, len(graph)), -1, dtype=np.int64)
    ends[0, graph.after], ends[1, graph.before] = graph.before, graph.after
    narrow = (num_before <= 1) & (num_after <= 1) & (num_before + num_after > 0) & (graph.class_id >= 0)
    into = np.arange(len(graph))
    if narrow.any():
        rows = np.flatnonzero(narrow)
        table = np.stack([*ends[:, rows], graph.class_id[rows]])
        _, first, kind = np.unique(table, axis=1, return_index=True, return_inverse=True)
        into[rows] = rows[first][kind]
    into = (np.cumsum(into == np.arange(len(graph))) - 1)[into]
    return _contracted(graph, into, np.zeros(len(graph), dtype=np.int64)), into


def _contracted(graph: _Graph, into: Ints, offset: Ints) -> _Graph:
    """The graph of merged ops: each lasts until the last finish of its members."""
    num_ops = int(into.max(initial=-1)) + 1
    duration, class_id = np.zeros((2, num_ops), dtype=np.int64)
    np.maximum.at(duration, into, offset + graph.duration_ns)
    class_id[into] = graph.class_id
    return _Graph(duration, class_id, *_distinct(into[graph.before], into[graph.after], num_ops))


def _rebuilt(program: Program, owner: Ints, duration_ns: Ints) -> Program:
    """The Program of merged ops, each labelled as its first member."""
    num_ops = len(duration_ns)
    first = np.unique(owner, return_index=True)[1]
    columns = {column.name: getattr(program.ops, column.name)[first] for column in fields(OpTable)}
    waits = program.dependencies
    before, after = _distinct(owner[waits.item], owner[waits.owners()], num_ops)
    stream, op = program.streams.owners(), owner[program.streams.item]
    repeated = np.append(False, (stream[1:] == stream[:-1]) & (op[1:] == op[:-1]))[: len(op)]
    none = np.zeros(0, dtype=np.int64)
    return replace(
        program,
        ops=OpTable(**{**columns, "fixed_ns": duration_ns}),
        dependencies=Csr.of(after, before, num_ops),
        streams=Csr.of(stream[~repeated], op[~repeated], len(program.streams)),
        memory=MemoryTable(none, none.astype(bool), none, none, none),
    )
