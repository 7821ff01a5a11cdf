"""The event engine: the twin of `reference` in C (`event.c`), for Programs that are large or share many links.

It gives the same integers op by op.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simpar.engine.sharing import LinkChange, as_rates, complaint
from simpar.errors import TooContendedError
from simpar.native import NativeLibrary, address, empty_columns, int32_column, int64_column, pointers
from simpar.program.ir.flow import FRACTION_BITS, fixed_point, to_cap, to_rate, to_work
from simpar.program.ir.program import OpTable, Program, ProgramError, Timing
from simpar.units import Indices, Ints

MANY_OPS = 150_000
"""Ops, of all Programs together, that the plain engine runs in the time in which this one is compiled."""
LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), MANY_OPS, {"FRACTION_BITS": FRACTION_BITS})
_TOO_CONTENDED, _STUCK, _NO_MEMORY = 1, 2, 3  # what run_program returns, after 0

_COUNTS = ("ops", "flows", "nodes", "links", "routes", "changes", "most_visits")
_COLUMNS = (
    "pointer", "follower", "waiting", "fixed_ns", "work_bytes", "work", "cap", "route", "hops_of", "hop_link",
    "hop_coefficient", "hop_alone", "rate", "change", "start_ns", "finish_ns",
)  # fmt: skip


class _Tables(ctypes.Structure):
    """The struct ``Tables`` of event.c."""

    _fields_ = (*((name, ctypes.c_int64) for name in _COUNTS), *((name, ctypes.c_void_p) for name in _COLUMNS))


def run(program: Program, changes: Sequence[LinkChange] = ()) -> Timing:
    """Start and finish of every op, with scheduled changes of link capacity.

    Raises NativeUnavailableError where C cannot be compiled, and ProgramError as `reference.run` does.
    """
    return Runner(program)(changes=changes)


class Runner:
    """Runs of one Program under many durations; the tables that they share are made once.

    ``most_visits`` bounds the number of links that all re-shares of a run may visit, which measures its work.
    """

    def __init__(self, program: Program, *, most_visits: int = 2**62) -> None:
        self.program, self.most_visits, self.library = program, most_visits, LIBRARY.load()
        waits, streams = program.dependencies, program.streams
        self.pointer, self.waiting, self.follower = follow(
            len(program), (waits.pointer, waits.item), (streams.pointer, streams.item), self.library
        )
        self.rate = to_rate(program.routes.capacity_bytes_per_s)
        coefficient, links = fixed_point(program.routes.coefficient), program.routes.links
        alone = (self.rate[links.item] << FRACTION_BITS) // coefficient
        order = np.lexsort((alone, links.owners()))  # of the hops of a route, the one that gives it least is first
        self.hops = int32_column(links.item[order]), int64_column(coefficient[order]), int64_column(alone[order])
        self.hops_of = int64_column(np.append(links.pointer, links.pointer[-1]))  # the last serves route -1

    def __call__(self, ops: OpTable | None = None, changes: Sequence[LinkChange] = ()) -> Timing:
        """Start and finish of every op, for the program's ops or other durations and work in their place.

        Raises TooContendedError beyond the visits allowed, and ProgramError as `reference.run` does.
        """
        columns = self.program.ops if ops is None else ops
        flows, count = np.flatnonzero(columns.work_bytes), len(self.waiting)
        route = np.asarray(columns.route[flows])
        route = np.where(route < 0, len(self.hops_of) - 2, route)
        change = np.array(as_rates(changes), dtype=np.int64).reshape(-1, 3)
        start_ns, finish_ns = empty_columns(count, dict.fromkeys(("start", "finish"), np.int64)).values()
        nodes = int(np.diff(self.hops_of)[route].sum())
        counts = count, len(flows), nodes, len(self.rate), len(self.hops_of) - 1, len(change), self.most_visits
        arrays: tuple[NDArray[np.int32 | np.int64], ...] = (
            self.pointer, self.follower, self.waiting, int64_column(columns.fixed_ns), int64_column(columns.work_bytes),
            to_work(columns.work_bytes[flows]), to_cap(columns.rate_cap_bytes_per_s[flows]), int32_column(route),
            self.hops_of, *self.hops, self.rate, change, start_ns, finish_ns,
        )  # fmt: skip
        tables = _Tables(*counts, *(address(array) for array in arrays))
        code = self.library.run_program(ctypes.byref(tables))
        if code == _TOO_CONTENDED:
            raise TooContendedError(f"more than {self.most_visits:,} links visited")
        if code == _NO_MEMORY:
            raise MemoryError(f"the event engine needs more memory for {count:,} ops")
        if code == _STUCK:
            raise ProgramError(complaint(self.program, start_ns, finish_ns))
        return Timing(start_ns, finish_ns)


def follow(
    count: int, waits: tuple[Ints, Indices], streams: tuple[Ints, Indices], library: ctypes.CDLL
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """What must pass on of ``count`` ops: (pointer [ops + 1], number of ops that each waits for, followers).

    Ragged rows as (pointer, items): ``waits`` of the ops on which each depends, ``streams`` of the ops of each stream.
    A dependency that a stream repeats counts once.
    """
    pointer, waiting = (np.zeros(count + extra, dtype=np.int32) for extra in (1, 0))
    follower = np.empty(len(waits[1]) + len(streams[1]), dtype=np.int32)
    rows = [(int64_column(ends), int32_column(items)) for ends, items in (waits, streams)]
    sizes = ctypes.c_int64(count), ctypes.c_int64(len(streams[0]) - 1)
    made = pointers(pointer, follower, waiting)
    library.follow(sizes[0], *pointers(*rows[0]), sizes[1], *pointers(*rows[1]), *made)
    return pointer, waiting, follower
