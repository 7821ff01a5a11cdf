"""Max-min fair sharing of links in integers; all links tied at the minimum share freeze together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.ir.flow import COEFFICIENT_ONE, fixed_point, to_cap, to_rate, to_work
from simpar.program.ir.program import Program, cycle_text
from simpar.units import Ints

Route = Sequence[tuple[int, int]]  # (link, coefficient in fixed point) of every link that a flow crosses


@dataclass(frozen=True)
class LinkChange:
    """From `time_ns` on, a link has another capacity; 0 stops its flows until the next change."""

    time_ns: int
    link: int
    capacity_bytes_per_s: int


@dataclass(frozen=True)
class FlowTable:
    """Flows as engines see them, in lists: `work`, `cap` and `route` by op, `link_rate` by link."""

    work: list[int]
    cap: list[int]
    route: list[Route]
    link_rate: list[int]

    @staticmethod
    def of(program: Program) -> FlowTable:
        """Flows of a Program in units of work and rate."""
        ops, routes = program.ops, program.routes
        pointer, link = routes.links.pointer.tolist(), routes.links.item.tolist()
        entry = list(zip(link, fixed_point(routes.coefficient).tolist(), strict=True))
        table = [entry[pointer[r] : pointer[r + 1]] for r in range(len(routes.links))]
        table.append([])  # serves route -1
        return FlowTable(
            work=to_work(ops.work_bytes).tolist(),
            cap=to_cap(ops.rate_cap_bytes_per_s).tolist(),
            route=[table[r] for r in ops.route.tolist()],
            link_rate=to_rate(routes.capacity_bytes_per_s).tolist(),
        )


def max_min_rates(routes: Mapping[int, Route], caps: Mapping[int, int], link_rate: Sequence[int]) -> dict[int, int]:
    """Rates of flows by id; `routes` and `caps` by flow id, `link_rate` by link.

    The smallest fair share over all links and caps goes to every flow that it binds; these leave with their
    load; repeat. Ties freeze together, so neither the order of flows nor folding equal ones into a class
    can matter.
    """
    left: dict[int, int] = {}
    load: dict[int, int] = {}
    for route in routes.values():
        for link, coefficient in route:
            load[link] = load.get(link, 0) + coefficient
            left[link] = link_rate[link] * COEFFICIENT_ONE
    active = dict(routes)
    rates: dict[int, int] = {}
    while active:
        share = {link: left[link] // total for link, total in load.items() if total}
        fair = min([*share.values(), *(caps[flow] for flow in active)])
        tight = {link for link, value in share.items() if value == fair}
        for flow in [f for f, route in active.items() if caps[f] == fair or any(e[0] in tight for e in route)]:
            rates[flow] = fair
            for link, coefficient in active.pop(flow):
                left[link] -= fair * coefficient
                load[link] -= coefficient
    return rates


def connected_flows(links: Iterable[int], on_link: Sequence[Set[int]], routes: Sequence[Route]) -> set[int]:
    """All flows that some links reach through links that flows share.

    ``on_link`` are the flows that drain on each link, ``routes`` the route of every flow.
    """
    ahead, flows = list(links), set[int]()
    seen = set(ahead)
    for link in ahead:
        for flow in on_link[link] - flows:
            flows.add(flow)
            new = [other for other, _ in routes[flow] if other not in seen]
            seen.update(new)
            ahead += new
    return flows


def as_rates(changes: Sequence[LinkChange]) -> list[tuple[int, int, int]]:
    """Changes as (time_ns, link, rate) in order of time; of two at one time the later one wins."""
    for change in changes:
        if change.time_ns < 0 or change.capacity_bytes_per_s < 0:
            raise ValueError(f"{change}: neither the time nor the capacity of a change may be negative")
    last = {(c.time_ns, c.link): int(to_rate(c.capacity_bytes_per_s)) for c in changes}
    return sorted((time_ns, link, rate) for (time_ns, link), rate in last.items())


def complaint(program: Program, start_ns: Ints, finish_ns: Ints) -> str:
    """The error message for ops that are left (finish -1) when nothing happens any more."""
    stopped = np.flatnonzero((start_ns >= 0) & (finish_ns < 0))
    if len(stopped):
        return f"{program.describe(int(stopped[0]))} uses a link without capacity and never ends"
    return f"ops wait for each other: {cycle_text(program, start_ns < 0)}"
