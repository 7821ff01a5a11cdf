"""The sweep engine: longest paths.

Exact where no two flows drain on one link at the same time. Otherwise it refuses, or gives a lower bound: in a fixed
order, finish times grow with every duration, and no flow is faster beside others than alone.
"""

import numpy as np

from simpar.errors import UserError
from simpar.program.ir.program import Program, ProgramError, Timing, longest_path_ns, solo_durations_ns


class SharedLinkError(ProgramError, UserError):
    """Flows meet on a link, so that longest paths are only a lower bound: another engine must be used."""


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
