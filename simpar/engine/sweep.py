"""The sweep engine: longest paths, with a batch axis over configurations.

Exact where no two flows drain on one link at the same time. Otherwise it refuses, or gives a lower bound: in a fixed
order, finish times grow with every duration, and no flow is faster beside others than alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simpar.errors import UserError
from simpar.program.ir.program import (
    Csr,
    Program,
    ProgramError,
    Timing,
    levels,
    longest_path_ns,
    predecessors,
    solo_durations_ns,
)
from simpar.units import Ints


class SharedLinkError(ProgramError, UserError):
    """Flows meet on a link, so that longest paths are only a lower bound: another engine must be used."""


@dataclass(frozen=True)
class Structure:
    """The precedence graph of Programs that differ only in durations, cut into levels; compute once and keep.

    `order` int64[n] lists ops by level and `bounds` int64[levels + 1] cuts it; `predecessors` has one row
    per position in `order` and holds positions in `order`.
    """

    order: Ints
    bounds: Ints
    predecessors: Csr

    @staticmethod
    def of(program: Program) -> Structure:
        """Levels of a Program. Raises ProgramError naming the ops of a cycle."""
        level = levels(program)
        order = np.argsort(level, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        table = Csr(*predecessors(program))
        rows = Csr.of(position[table.owners()], position[table.item], len(program))
        return Structure(order, np.append(0, np.cumsum(np.bincount(level))), rows)


def run(program: Program, *, lower_bound: bool = False) -> Timing:
    """Start and finish of every op, each flow draining as if alone.

    Raises SharedLinkError if two flows drain on one link at the same time, unless a lower bound is wanted.
    """
    durations = solo_durations_ns(program)
    start = longest_path_ns(program, durations)
    timing = Timing(start, start + durations)
    if not lower_bound:
        refuse_meetings(program, timing)
    return timing


def run_batch(structure: Structure, durations_ns: Ints) -> Ints:
    """Finish times int64[batch, n] for durations int64[batch, n], level by level."""
    durations = np.ascontiguousarray(durations_ns.T[structure.order])
    finish = np.empty_like(durations)
    bounds, pointer = structure.bounds.tolist(), structure.predecessors.pointer
    ends = pointer[structure.bounds].tolist()
    for level in range(len(bounds) - 1):
        ops, rows = slice(bounds[level], bounds[level + 1]), slice(ends[level], ends[level + 1])
        if level:
            before = finish[structure.predecessors.item[rows]]
            ready = np.maximum.reduceat(before, pointer[ops] - rows.start, axis=0)
            np.add(ready, durations[ops], out=finish[ops])
        else:
            finish[ops] = durations[ops]
    result = np.empty_like(finish)
    result[structure.order] = finish
    return result.T


def refuse_meetings(program: Program, timing: Timing) -> None:
    """Raise SharedLinkError if, in this timing, two flows drain on one link at the same time.

    If none do under solo durations, links are never shared, and every engine gives this timing.
    """
    ops, links = program.ops, program.routes.links
    flows = np.flatnonzero((ops.work_bytes > 0) & (ops.route >= 0))
    hops = np.diff(links.pointer)[ops.route[flows]]
    first = links.pointer[ops.route[flows]]
    inside = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    flow, link = np.repeat(flows, hops), links.item[np.repeat(first, hops) + inside]
    begin, end = timing.start_ns[flow] + ops.fixed_ns[flow], timing.finish_ns[flow]
    order = np.lexsort((begin, link))
    link, begin, end = link[order], begin[order], end[order]
    latest = np.maximum.accumulate(end + link * (timing.makespan_ns + 1)) - link * (timing.makespan_ns + 1)
    met = np.flatnonzero((link[1:] == link[:-1]) & (begin[1:] < latest[:-1]))
    if len(met):
        name = program.routes.link_names[link[met[0]]]
        raise SharedLinkError(
            f"engine = sweep: link {name} is shared: {program.describe(int(flow[order[met[0] + 1]]))} meets another "
            "flow; allowed: auto, event, reference"
        )
