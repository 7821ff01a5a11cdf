"""The event engine: the compiled twin of `reference`, for clusters that do not fold (needs `simpar[fast]`).

It gives the same integers op by op. numba is imported on first use, and compiles once per machine.
"""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from simpar.engine.sharing import LinkChange, as_rates, complaint
from simpar.errors import TooContendedError
from simpar.program.ir.flow import FRACTION_BITS, fixed_point, to_cap, to_rate, to_work
from simpar.program.ir.program import OpTable, Program, ProgramError, Routes, Timing


class EngineUnavailableError(Exception):
    """The compiled engine cannot be used here; the message says what to install."""


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises EngineUnavailableError without numba, and ProgramError as `reference.run` does.
    """
    return Runner(program)(changes=changes)


class Runner:
    """Runs of one Program under many durations; the tables that they share are made once.

    ``most_visits`` bounds the number of links that all re-shares of a run may visit, which measures its work.
    """

    has_run: ClassVar[bool] = False
    """Whether this process has compiled the engine, or loaded it, and run it."""

    def __init__(self, program: Program, *, most_visits: int = 2**62) -> None:
        self.kernel, self.order = _kernel("event_kernel"), _kernel("event_order")
        self.program, self.most_visits = program, most_visits
        waits, streams = program.dependencies, program.streams
        self.pointer, self.waiting = (np.zeros(len(program) + extra, dtype=np.int32) for extra in (1, 0))
        self.follower = np.empty(len(waits.item) + len(streams.item), dtype=np.int32)
        self.order.follow(
            (waits.pointer, waits.item), (streams.pointer, streams.item), self.pointer, self.follower, self.waiting
        )
        self.ops = np.empty(len(program), self.kernel.OP)
        self.rate = to_rate(program.routes.capacity_bytes_per_s)
        self.hops = _hops(self.kernel, program.routes)

    def __call__(self, ops: OpTable | None = None, changes: Sequence[LinkChange] = ()) -> Timing:
        """Start and finish of every op, for the program's ops or other durations and work in their place.

        Raises TooContendedError beyond the visits allowed, and ProgramError as `reference.run` does.
        """
        kernel, columns = self.kernel, self.program.ops if ops is None else ops
        scheduled = np.array(as_rates(changes), dtype=np.int64).reshape(-1, 3)
        self.order.begin(self.ops, self.pointer, self.waiting, columns.fixed_ns, columns.work_bytes)
        routes, demands = self.program.routes.links, self._demands(columns)
        flows, nodes = np.empty(len(demands), kernel.FLOW), np.empty(self._num_nodes(demands), kernel.NODE)
        links = np.zeros(len(self.rate), kernel.LINK)
        links["rate"], links["head"] = self.rate, -1
        longest = max(len(self.ops), len(links), len(routes) + 1, kernel.NODES + 1)
        lists = np.zeros((kernel.SIZES + 1, longest), dtype=np.int64)
        lists[kernel.SIZES, kernel.STAMP] = 1
        lists[kernel.SIZES, kernel.VISITS] = -self.most_visits
        heap = np.empty((2 * (len(flows) + len(scheduled)) + kernel.WAYS, 2), dtype=np.int64)
        pointer = np.append(routes.pointer, routes.pointer[-1])  # the last serves route -1
        run = kernel.RunTables(self.ops, demands, flows, nodes, heap, lists, self.hops, pointer, self.follower)
        kernel.simulate(run, links, scheduled)
        Runner.has_run = True
        if lists[kernel.SIZES, kernel.VISITS] > 0:
            raise TooContendedError(f"more than {self.most_visits:,} links visited")
        start, finish = (np.ascontiguousarray(self.ops[name]) for name in ("ready_ns", "ends_ns"))
        waiting = self.ops["waiting"] != kernel.STARTED
        if waiting.any() or (finish < 0).any():
            start[waiting] = finish[waiting] = -1
            raise ProgramError(complaint(self.program, start, finish))
        return Timing(start, finish)

    def _demands(self, columns: OpTable) -> Any:
        """Records of the ops with work, in their order."""
        op = np.flatnonzero(columns.work_bytes)
        result = np.empty(len(op), self.kernel.DEMAND)
        result["work"] = to_work(columns.work_bytes[op])
        result["cap"] = to_cap(columns.rate_cap_bytes_per_s[op])
        result["route"] = columns.route[op]
        result["route"][result["route"] < 0] = len(self.program.routes.links)
        return result

    def _num_nodes(self, demands: Any) -> int:
        """Number of hops of all flows."""
        return int(np.append(np.diff(self.program.routes.links.pointer), 0)[demands["route"]].sum())


def _hops(kernel: ModuleType, routes: Routes) -> Any:
    """Records of the hops of every route, ordered by the rate that each gives a flow alone."""
    coefficient = fixed_point(routes.coefficient)
    alone = (to_rate(routes.capacity_bytes_per_s)[routes.links.item] << FRACTION_BITS) // coefficient
    result = np.empty(len(coefficient), kernel.HOP)
    for name, column in {"link": routes.links.item, "coefficient": coefficient, "alone": alone}.items():
        result[name] = column[np.lexsort((alone, routes.links.owners()))]
    return result


def _kernel(name: str) -> ModuleType:
    try:
        return import_module(f"simpar.engine.{name}")
    except ImportError as error:
        raise EngineUnavailableError(
            f"the event engine needs numba ({error}): install simpar with its extra 'fast', or use reference"
        ) from error
