"""The event engine: the compiled twin of `reference`, for clusters that do not fold (needs `simpar[fast]`).

It gives the same integers op by op. numba is imported on first use, and compiles once per machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from simpar.engine.sharing import LinkChange, as_rates, complaint
from simpar.program.ir.flow import FRACTION_BITS, fixed_point, to_cap, to_rate, to_work
from simpar.program.ir.program import OpTable, Program, ProgramError, Routes, Timing, edges
from simpar.units import Indices, Ints


class EngineUnavailableError(Exception):
    """The compiled engine cannot be used here; the message says what to install."""


class TooContendedError(Exception):
    """Sharing links took more than the visits allowed."""


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises EngineUnavailableError without numba, and ProgramError as `reference.run` does.
    """
    return Runner(program)(changes=changes)


class Runner:
    """Runs of one Program with other durations; what they share is made once.

    ``most_visits`` bounds the links that all re-shares of a run may look at together, a measure of its work.
    """

    def __init__(self, program: Program, *, most_visits: int = 2**62) -> None:
        self.kernel = _kernel()
        self.program, self.most_visits = program, most_visits
        before, after = edges(program)
        self.pointer, self.waiting = (np.zeros(len(program) + extra, dtype=np.int32) for extra in (1, 0))
        follower = np.empty_like(before)
        pairs = self.kernel.follow(before, after, self.pointer, follower, self.waiting)
        self.follower = follower[:pairs].copy()
        self.ops = np.empty(len(program), self.kernel.OP)
        self.nodes = _NodesOfRoutes(self.kernel, program.routes)

    def __call__(self, ops: OpTable | None = None, changes: Sequence[LinkChange] = ()) -> Timing:
        """Start and finish of every op, for the program's ops or other durations and work in their place.

        Raises TooContendedError beyond the visits allowed, and ProgramError as `reference.run` does.
        """
        kernel, columns = self.kernel, self.program.ops if ops is None else ops
        scheduled = np.array(as_rates(changes), dtype=np.int64).reshape(-1, 3)
        of_op, flows, nodes = self._flows(columns)
        kernel.begin(self.ops, self.pointer, self.waiting, columns.fixed_ns, of_op)
        links = np.zeros(len(self.program.routes.link_names), kernel.LINK)
        links["rate"], links["head"] = self.nodes.rate, -1
        longest = max(len(self.ops), len(flows), len(links), kernel.VISITS + 1)
        lists = np.zeros((kernel.SIZES + 1, longest), dtype=np.int64)
        lists[kernel.SIZES, kernel.STAMP] = 1
        lists[kernel.SIZES, kernel.VISITS] = -self.most_visits
        heap = np.empty((2 * (len(flows) + len(scheduled)) + kernel.WAYS, 2), dtype=np.int64)
        kernel.simulate(self.ops, flows, links, nodes, heap, lists, self.follower, scheduled)
        if lists[kernel.SIZES, kernel.VISITS] > 0:
            raise TooContendedError(f"more than {self.most_visits:,} links visited")
        start, finish = (np.ascontiguousarray(self.ops[name]) for name in ("start_ns", "finish_ns"))
        if (finish < 0).any():
            raise ProgramError(complaint(self.program, start, finish))
        return Timing(start, finish)

    def _flows(self, columns: OpTable) -> tuple[Ints, Any, Any]:
        """The flow of every op, -1 without work, and records of flows and of all their hops."""
        op = np.flatnonzero(columns.work_bytes)
        of_op = np.full(len(columns.work_bytes), -1, dtype=np.int64)
        of_op[op] = np.arange(len(op))
        nodes, last = self.nodes.of(columns.route[op])
        flows = np.zeros(len(op), self.kernel.FLOW)
        for name, column in {
            "op": op,
            "remaining": to_work(columns.work_bytes[op]),
            "cap": to_cap(columns.rate_cap_bytes_per_s[op]),
            "first_node": np.append(0, last[:-1]),
            "last_node": last,
            "drained_ns": -1,
        }.items():
            flows[name] = column
        return of_op, flows, nodes


class _NodesOfRoutes:
    """Records of the hops of flows, made anew only where other ops are flows than in the run before."""

    def __init__(self, kernel: ModuleType, routes: Routes) -> None:
        self.kernel = kernel
        self.rate, owner = to_rate(routes.capacity_bytes_per_s), routes.links.owners()
        coefficient = fixed_point(routes.coefficient)
        alone = (self.rate[routes.links.item] << FRACTION_BITS) // coefficient
        order = np.lexsort((alone, owner))
        self.link, self.coefficient, self.alone = (
            column[order] for column in (routes.links.item, coefficient, alone)
        )
        self.pointer, self.hops = routes.links.pointer, np.append(np.diff(routes.links.pointer), 0)
        self.route: Indices = np.empty(0, dtype=np.int64)
        self.nodes, self.last = np.empty(0, kernel.NODE), np.empty(0, dtype=np.int64)

    def of(self, route: Indices) -> tuple[Any, Ints]:
        """Records of every hop of flows with these routes, by what it gives the flow alone; where each flow's end."""
        if not np.array_equal(route, self.route) or not len(route):
            hops = self.hops[route]
            self.route, self.last = route, np.cumsum(hops)
            self.nodes = np.empty(hops.sum(), self.kernel.NODE)
            entry = np.repeat(self.pointer[route] - (self.last - hops), hops) + np.arange(len(self.nodes))
            self.nodes["flow"] = np.repeat(np.arange(len(route)), hops)
            for name in ("link", "coefficient", "alone"):
                self.nodes[name] = getattr(self, name)[entry]
        return self.nodes, self.last


def _kernel() -> ModuleType:
    try:
        return import_module("simpar.engine.event_kernel")
    except ImportError as error:
        raise EngineUnavailableError(
            f"the event engine needs numba ({error}): install simpar with its extra 'fast', or use reference"
        ) from error
