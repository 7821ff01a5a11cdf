"""The event engine: the compiled twin of `reference`, for clusters that do not fold (needs `simpar[fast]`).

It gives the same integers op by op. numba is imported on first use, and compiles once per machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.engine.sharing import LinkChange, as_rates, complaint
from simpar.program.flow import fixed_point, to_cap, to_rate, to_work
from simpar.program.program import Csr, Program, ProgramError, Timing, edges

Ints = NDArray[np.int64]


class EngineUnavailableError(Exception):
    """The compiled engine cannot be used here; the message says what to install."""


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises EngineUnavailableError without numba, and ProgramError as `reference.run` does.
    """
    kernel = _kernel()
    scheduled = np.array(as_rates(changes), dtype=np.int64).reshape(-1, 3)
    before, after = edges(program)
    followers = Csr.of(before, after, len(program))
    waiting = np.bincount(after, minlength=len(program))
    ops, nodes = _ops_and_nodes(kernel, program, followers, waiting, len(scheduled))
    links = np.zeros(len(program.routes.link_names), kernel.LINK)
    links["rate"], links["head"] = to_rate(program.routes.capacity_bytes_per_s), -1
    lists = np.zeros((kernel.SIZES + 1, max(len(ops), len(links), kernel.NOW + 1)), dtype=np.int64)
    lists[kernel.SIZES, kernel.STAMP] = 1
    kernel.simulate(ops, links, nodes, lists, followers.item, scheduled)
    start, finish = (np.ascontiguousarray(ops[name][: len(program)]) for name in ("start_ns", "finish_ns"))
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
