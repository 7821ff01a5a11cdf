"""The Program: the one intermediate representation, and the four rules that define its meaning.

1. An op starts when its dependencies, and its predecessors on all its streams, have finished. A stream is
   an explicit ordered list of ops; an op may sit on several (a collective on one of every rank it joins).
2. Its fixed part elapses; then its work drains at the rate that max-min fair sharing of the links on its
   route gives it, and at most at its rate cap.
3. At one instant: first all finishes and starts, then one re-share of the touched component of links.
4. No arbitration and no randomness inside an engine. Jitter, stragglers and faults are drawn before, and
   arrive as durations or as scheduled changes of a link's capacity.

Times are int64 nanoseconds. A route says how many bytes each link carries per byte of the op's work; a flow
class that stands for several equal flows counts with their number on one link. Sharing is integer as well
(:mod:`simpar.program.ir.flow`), so that two engines either agree exactly or one of them is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simpar.dataclass import dataclass
from simpar.program.ir.flow import NO_CAP, WORK_PER_BYTE, drained_ns, solo_rates, to_cap, to_work
from simpar.units import NS_PER_S, Flags, Floats, Indices, Ints, to_ns

_SURELY_COUNTABLE_NS = 2.0**62
"""Half of the nanoseconds that 64 bits hold: sums in floats are far nearer to what they stand for."""
MEMORY_CATEGORIES = ("activations", "transient", "gradients", "parameters")


class ProgramError(ValueError):
    """A Program that breaks a rule of its own or cannot finish; the message names the op, link or stream."""


class Label(NamedTuple):
    """What an op is: ``kind`` (forward, dp, ...), a readable ``name`` and the model layer (-1: none)."""

    kind: str
    name: str
    layer: int = -1


@dataclass(frozen=True)
class OpTable:
    """Columns over ops: ``route`` -1 and ``work_bytes`` 0 for a fixed duration, ``rate_cap`` 0 for none.

    ``label`` indexes Program.labels; ``microbatch`` and ``stage`` are -1 where they mean nothing.
    """

    class_id: Indices
    fixed_ns: Ints
    work_bytes: Ints
    route: Indices
    rate_cap_bytes_per_s: Ints
    label: Indices
    microbatch: Indices
    stage: Indices

    def __len__(self) -> int:
        return len(self.fixed_ns)


@dataclass(frozen=True)
class Csr:
    """Ragged rows: row i is ``item[pointer[i]:pointer[i + 1]]``; pointer int64[rows + 1]."""

    pointer: Ints
    item: Indices

    @staticmethod
    def of(owner: ArrayLike, item: ArrayLike, num_rows: int) -> Csr:
        """Items grouped by owner (0..num_rows-1), in the given order within a row."""
        owners, items = np.asarray(owner), np.asarray(item)
        if (owners[1:] < owners[:-1]).any():
            few = num_rows <= np.iinfo(np.uint16).max  # numpy sorts 16-bit integers by radix
            items = items[np.argsort(owners.astype(np.uint16) if few else owners, kind="stable")]
        counts = np.bincount(owners, minlength=num_rows)
        return Csr(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), items)

    def __len__(self) -> int:
        return len(self.pointer) - 1

    def row(self, i: int) -> Indices:
        """The items of row i."""
        return self.item[self.pointer[i] : self.pointer[i + 1]]

    def owners(self) -> Indices:
        """The row of every item, in the dtype of the items."""
        return np.repeat(np.arange(len(self), dtype=self.item.dtype), np.diff(self.pointer))


@dataclass(frozen=True)
class Routes:
    """Routes over links: ``links`` row r with, entry by entry, the bytes that link carries per byte of work.

    ``coefficient`` already counts all flows of a folded class on that one link; ``capacity_bytes_per_s``
    int64[links] is per direction.
    """

    links: Csr
    coefficient: Floats
    capacity_bytes_per_s: Ints
    link_names: tuple[str, ...]


@dataclass(frozen=True)
class MemoryTable:
    """Changes of device memory at the start or the finish of ops; ``category`` indexes MEMORY_CATEGORIES."""

    op: Ints
    at_finish: Flags
    class_id: Ints
    delta_bytes: Ints
    category: Ints

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True)
class Program:
    """Everything an engine needs.

    ``dependencies`` row i lists the ops for which op i waits; ``streams`` row s has the ops of stream s in program
    order; ``stream_class`` is the class of each stream; ``multiplicity`` the number of real ranks that a class stands
    for.
    """

    ops: OpTable
    dependencies: Csr
    streams: Csr
    stream_names: tuple[str, ...]
    stream_class: Ints
    routes: Routes
    memory: MemoryTable
    labels: tuple[Label, ...]
    class_names: tuple[str, ...]
    multiplicity: Ints

    def __len__(self) -> int:
        return len(self.ops)

    def describe(self, op: int) -> str:
        """A readable line about one op, for messages."""
        ops = self.ops
        label = self.labels[ops.label[op]]
        text = f"op {op} {label.name} of {self.class_names[ops.class_id[op]]}"
        for what, value in (("layer", label.layer), ("microbatch", int(ops.microbatch[op]))):
            text += f" {what} {value}" if value >= 0 else ""
        return text


@dataclass(frozen=True)
class Timing:
    """Start and finish of every op, int64[num_ops]."""

    start_ns: Ints
    finish_ns: Ints

    @property
    def makespan_ns(self) -> int:
        """Finish of the last op, 0 without ops."""
        return int(self.finish_ns.max(initial=0))


def stream_edges(program: Program) -> tuple[Indices, Indices]:
    """(before, after) of all pairs of ops that follow each other on a stream."""
    streams = program.streams
    follows = np.ones(len(streams.item), dtype=bool)
    follows[streams.pointer[:-1][np.diff(streams.pointer) > 0]] = False
    after = np.flatnonzero(follows)
    return streams.item[after - 1], streams.item[after]


def edges(program: Program) -> tuple[Indices, Indices]:
    """(before, after) of every precedence: dependencies first, then stream order; a pair may occur in both."""
    before, after = stream_edges(program)
    waits = program.dependencies
    return np.concatenate([waits.item, before]), np.concatenate([waits.owners(), after])


def predecessors(program: Program) -> tuple[Ints, Indices]:
    """CSR (pointer, ops) of what must finish before each op starts: dependencies, then stream order."""
    before, after = edges(program)
    table = Csr.of(after, before, len(program))
    return table.pointer, table.item


def solo_durations_ns(program: Program) -> Ints:
    """Duration of every op with its links to itself: fixed part plus work over the slowest link's rate."""
    ops = program.ops
    own = np.minimum(_route_rates(program.routes)[ops.route], to_cap(ops.rate_cap_bytes_per_s))
    return drained_ns(ops.fixed_ns, ops.work_bytes, own)


def _route_rates(routes: Routes) -> Ints:
    """The rate of a flow on each route alone, int64[routes + 1]; the last entry serves route -1."""
    share = solo_rates(routes.coefficient, routes.capacity_bytes_per_s[routes.links.item])
    result = np.full(len(routes.links) + 1, NO_CAP)
    used = np.flatnonzero(np.diff(routes.links.pointer))
    if len(used):
        result[used] = np.minimum.reduceat(share, routes.links.pointer[used])
    return result


def check_countable(program: Program) -> None:
    """Refuse a step whose ops, run one after the other, exceed 64 bits of nanoseconds. Raises BeyondIntegers.

    Durations are only worked out if all flows at the rate of the slowest would exceed them.
    """
    ops = program.ops
    caps = ops.rate_cap_bytes_per_s[ops.rate_cap_bytes_per_s > 0]
    rate = min(int(_route_rates(program.routes).min()), int(to_cap(caps.min())) if len(caps) else NO_CAP)
    fixed_ns, work_bytes = (float(column.sum(dtype=np.float64)) for column in (ops.fixed_ns, ops.work_bytes))
    to_work(ops.work_bytes.max(initial=0))  # raises where one flow is too large
    if fixed_ns + work_bytes * WORK_PER_BYTE / max(rate, 1) + len(ops) < _SURELY_COUNTABLE_NS:
        return
    flows = np.flatnonzero(ops.work_bytes)
    columns = {name: getattr(ops, name)[flows] for name in OpTable.__dataclass_fields__}
    alone = OpTable(**columns | {"fixed_ns": np.zeros(len(flows), dtype=np.int64)})
    drained = solo_durations_ns(replace(program, ops=alone))
    to_ns(float(ops.fixed_ns.sum(dtype=np.float64) + drained.sum(dtype=np.float64)) / NS_PER_S)


def longest_path_ns(program: Program, durations_ns: ArrayLike) -> Ints:
    """Start of every op under rule 1 alone, int64[num_ops], for durations int64[num_ops].

    Plain Python, because real programs are thousands of levels deep and a few ops wide, where numpy is
    slower. Raises ProgramError naming the ops of a cycle.
    """
    before, after = edges(program)
    waiting = np.bincount(after, minlength=len(program)).tolist()
    table = Csr.of(before, after, len(program))
    pointer, item = table.pointer.tolist(), table.item.tolist()
    duration = np.asarray(durations_ns).tolist()
    start = [0] * len(program)
    ready = [op for op, count in enumerate(waiting) if not count]
    for op in ready:
        finish = start[op] + duration[op]
        for follower in item[pointer[op] : pointer[op + 1]]:
            if start[follower] < finish:
                start[follower] = finish
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    if len(ready) < len(program):
        raise ProgramError(f"ops wait for each other: {cycle_text(program, np.array(waiting) > 0)}")
    return np.array(start, dtype=np.int64)


def levels(program: Program) -> Ints:
    """Depth of every op in the precedence graph, int64[num_ops]: an op waits only for ops of smaller depth."""
    return longest_path_ns(program, np.ones(len(program), dtype=np.int64))


def cycle_text(program: Program, stuck: Flags) -> str:
    """One cycle among the ops that never become ready, as a readable chain."""
    table = Csr(*predecessors(program))
    op, seen = int(np.flatnonzero(stuck)[0]), dict[int, int]()
    while op not in seen:  # a stuck op waits for a stuck op, so the walk must close
        seen[op] = len(seen)
        op = next(int(before) for before in table.row(op) if stuck[before])
    ring = list(seen)[seen[op] :]
    names = [program.describe(each) for each in ring[:8]] + ["..."] * (len(ring) > 8)
    return " waits for ".join([*names, f"op {ring[0]}"])
