"""Loops over the slots, ops and gaps of a step: compiled for large ones (`loops.c`), else numpy, which gives the same.

Floats are whole multiples of 1 / TICKS_PER_NS nanoseconds.
"""

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from simpar.native import NativeLibrary, int32_column, int64_column, pointers
from simpar.units import Floats, Indices, Ints

LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), worth=1_000_000)  # slots, gaps or intervals
TICKS_PER_NS = 64
"""Sums of a step of up to 39 hours are exact."""


def to_ticks(ns: ArrayLike) -> Floats:
    """Nanoseconds rounded to what floats add up exactly in any order."""
    result: Floats = np.rint(np.asarray(ns, np.float64) * TICKS_PER_NS) / TICKS_PER_NS
    return result


def tally(node: Indices, duration_ns: Ints) -> tuple[Ints, Ints]:
    """How many slots every node has and their time in ns, up to the last node that is there: int64[nodes] each.

    ``node`` int32[slots] is that of every slot, ``duration_ns`` int64[slots] its time.
    """
    size = int(node.max(initial=-1)) + 1
    count, total_ns = np.zeros((2, size), dtype=np.int64)
    if library := LIBRARY.load_for(len(node)):
        given = int32_column(node), int64_column(duration_ns)
        library.tally(ctypes.c_int64(len(node)), *pointers(*given, count, total_ns))
        return count, total_ns
    count += np.bincount(node, minlength=size)
    np.add.at(total_ns, node, duration_ns)
    return count, total_ns


def weigh(node: Indices, duration_ns: Ints, less: Floats, factor: Floats, more: Floats) -> Floats:
    """``more`` + (duration - ``less``) * ``factor`` of every slot in whole ticks, with numbers float64[nodes] each."""
    numbers = [np.ascontiguousarray(each, np.float64) for each in (less, factor, more)]
    if library := LIBRARY.load_for(len(node)):
        result, given = np.empty(len(node)), (int32_column(node), int64_column(duration_ns))
        sizes = ctypes.c_int64(len(node)), ctypes.c_double(TICKS_PER_NS)
        library.weigh(sizes[0], *pointers(*given, *numbers), sizes[1], *pointers(result))
        return result
    less, factor, more = (each[node] for each in numbers)
    return to_ticks(more + (duration_ns - less) * factor)


def follow_gaps(
    begin: Ints, end: Ints, behind: Ints, start_ns: Ints, binding: Indices
) -> tuple[Ints, Ints, Ints, Ints]:
    """Gaps cut by the ops of the chains that lead back from their ends: columns gap, begin, end and op, int64[pieces].

    Gaps have ``begin``, ``end`` and the op ``behind``, int64[gaps] each. ``start_ns`` int64[num_ops] is when ops start,
    ``binding`` int32[num_ops] the op that each waited for last. The last piece of a gap comes first.
    """
    if library := LIBRARY.load_for(len(begin)):
        library.follow_gaps.restype = ctypes.c_int64
        given = [int64_column(each) for each in (begin, end, behind, start_ns)]
        call = ctypes.c_int64(len(begin)), *pointers(*given, int32_column(binding))
        pieces = library.follow_gaps(*call, *[None] * 4)
        gap, first, until, op = (np.empty(pieces, dtype=np.int64) for _ in range(4))
        library.follow_gaps(*call, *pointers(gap, first, until, op))
        return gap, first, until, op
    parts: list[Ints] = []
    active, at, until = np.arange(len(begin)), behind.astype(np.int64), end
    while len(active):
        known = at >= 0
        active, at, until = active[known], at[known], until[known]
        start, begins = start_ns[at], begin[active]
        first = np.maximum(start, begins)
        rows = np.flatnonzero(until > first)
        parts.append(np.stack([active[rows], first[rows], until[rows], at[rows]]))
        more = start > begins
        active, at, until = active[more], binding[at[more]].astype(np.int64), start[more]
    gap, first, until, op = np.concatenate(parts or [np.zeros((4, 0), dtype=np.int64)], axis=1)
    order = np.lexsort((-until, gap))
    return gap[order], first[order], until[order], op[order]


def split_waiting(wait_ns: Ints, surplus: Floats) -> Ints:
    """Waiting int64[gaps] in time order by cause, int64[gaps, causes], for a ``surplus`` float64[gaps, causes] in ns.

    A surplus is one since the step began: what earlier gaps were not given goes to a gap, up to its waiting, the first
    cause first. Gaps in which no surplus reaches a nanosecond are given nothing.
    """
    result, causes = np.zeros(surplus.shape, dtype=np.int64), surplus.shape[1]
    if library := LIBRARY.load_for(len(wait_ns)):
        given = int64_column(wait_ns), np.ascontiguousarray(surplus, np.float64), np.zeros(causes, dtype=np.int64)
        sizes = ctypes.c_int64(len(wait_ns)), ctypes.c_int64(causes)
        library.split_waiting(*sizes, *pointers(*given, result))
        return result
    gaps = np.flatnonzero((wait_ns > 0) & (surplus >= 1.0).any(axis=1))
    shares, so_far = list[int](), [0] * causes
    columns = wait_ns[gaps].tolist(), np.rint(surplus[gaps]).astype(np.int64).tolist()
    for left, wanted in zip(*columns, strict=True):
        for cause, total in enumerate(wanted):
            part = min(left, max(0, total - so_far[cause]))
            shares.append(part)
            so_far[cause] += part
            left -= part
    result[gaps] = np.array(shares, dtype=np.int64).reshape(-1, causes)
    return result


def unite(start: Ints, finish: Ints) -> tuple[Ints, Ints]:
    """The unions of intervals int64[n] given in any order: first and last instants, ascending."""
    order = np.argsort(start, kind="stable")
    if library := LIBRARY.load_for(len(start)):
        library.unite.restype = ctypes.c_int64
        first, last = (np.empty(len(start), dtype=np.int64) for _ in range(2))
        given = int64_column(order), int64_column(start), int64_column(finish)
        unions = library.unite(ctypes.c_int64(len(start)), *pointers(*given, first, last))
        return first[:unions], last[:unions]
    start, reached = start[order], np.maximum.accumulate(finish[order])
    begins = np.flatnonzero(np.append(True, start[1:] > reached[:-1])[: len(start)])
    ends = np.append(begins[1:], len(start))[: len(begins)] - 1
    return start[begins], reached[ends]
