"""The event engine: the compiled twin of `reference`, for clusters that do not fold (needs `simpar[fast]`).

It gives the same integers op by op. numba is imported on first use, and compiles once per machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.engine.sharing import LinkChange, as_rates, complaint
from simpar.program.flow import fixed_point, to_cap, to_rate, to_work
from simpar.program.program import Csr, OpTable, Program, ProgramError, Timing, edges

Ints = NDArray[np.int64]


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
        self.followers = Csr.of(before, after, len(program))
        self.waiting = np.bincount(after, minlength=len(program))

    def __call__(self, ops: OpTable | None = None, changes: Sequence[LinkChange] = ()) -> Timing:
        """Start and finish of every op, for the program's ops or other durations and work in their place.

        Raises TooContendedError beyond the visits allowed, and ProgramError as `reference.run` does.
        """
        program = self.program if ops is None else replace(self.program, ops=ops)
        if not changes and not program.ops.work_bytes.any():
            return self._paths(program)
        kernel = self.kernel
        scheduled = np.array(as_rates(changes), dtype=np.int64).reshape(-1, 3)
        records, nodes = _ops_and_nodes(kernel, program, self.followers, self.waiting, len(scheduled))
        links = np.zeros(len(program.routes.link_names), kernel.LINK)
        links["rate"], links["head"] = to_rate(program.routes.capacity_bytes_per_s), -1
        lists = np.zeros((kernel.SIZES + 1, max(len(records), len(links), kernel.VISITS + 1)), dtype=np.int64)
        lists[kernel.SIZES, kernel.STAMP] = 1
        lists[kernel.SIZES, kernel.VISITS] = -self.most_visits
        kernel.simulate(records, links, nodes, lists, self.followers.item, scheduled)
        if lists[kernel.SIZES, kernel.VISITS] > 0:
            raise TooContendedError(f"more than {self.most_visits:,} links visited")
        start, finish = (
            np.ascontiguousarray(records[name][: len(program)]) for name in ("start_ns", "finish_ns")
        )
        return _complete(program, start, finish)

    def _paths(self, program: Program) -> Timing:
        """Without flows rule 1 alone decides."""
        start, duration = np.zeros(len(program), dtype=np.int64), program.ops.fixed_ns
        left = self.waiting.copy()
        reached = self.kernel.longest_paths(
            self.followers.pointer, self.followers.item, left, duration, start
        )
        if reached < len(program):
            start[left > 0] = -1
            return _complete(program, start, np.where(start < 0, -1, start + duration))
        return Timing(start, start + duration)


def _complete(program: Program, start: Ints, finish: Ints) -> Timing:
    if (finish < 0).any():
        raise ProgramError(complaint(program, start, finish))
    return Timing(start, finish)


def _kernel() -> ModuleType:
    try:
        return import_module("simpar.engine.event_kernel")
    except ImportError as error:
        raise EngineUnavailableError(
            f"the event engine needs numba ({error}): install simpar with its extra 'fast', or use reference"
        ) from error


def _ops_and_nodes(
    kernel: ModuleType, program: Program, followers: Csr, waiting: Ints, num_changes: int
) -> tuple[Any, Any]:
    """Records of ops, with room for the changes behind them, and of every hop of every flow."""
    columns, routes = program.ops, program.routes
    hops = np.where(columns.work_bytes > 0, np.append(np.diff(routes.links.pointer), 0)[columns.route], 0)
    last = np.cumsum(hops)
    ops = np.zeros(len(program) + num_changes, kernel.OP)
    for name in ("start_ns", "finish_ns", "since_ns", "place"):
        ops[name] = -1
    for name, column in {
        "first_follower": followers.pointer[:-1],
        "last_follower": followers.pointer[1:],
        "waiting": waiting,
        "fixed_ns": columns.fixed_ns,
        "work": to_work(columns.work_bytes),
        "cap": to_cap(columns.rate_cap_bytes_per_s),
        "first_node": last - hops,
        "last_node": last,
    }.items():
        ops[name][: len(program)] = column
    nodes = np.zeros(hops.sum(), kernel.NODE)
    entry = np.repeat(routes.links.pointer[columns.route] - (last - hops), hops) + np.arange(len(nodes))
    nodes["link"], nodes["coefficient"] = routes.links.item[entry], fixed_point(routes.coefficient)[entry]
    return ops, nodes
