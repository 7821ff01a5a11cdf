"""Chains of binding predecessors: what every op waited for last, and what lies behind it.

Large Programs take compiled loops (`chains.c`), others numpy. Both give the same numbers: sums are of multiples of
1 / TICKS_PER_NS ns (:mod:`simpar.report.loops`), which floats add up exactly in any order.
"""

import ctypes
from pathlib import Path

import numpy as np

from simpar.native import NativeLibrary, int32_column, int64_column, pointers
from simpar.program.ir.program import Program, Timing, stream_edges
from simpar.units import Flags, Floats, Indices, Ints

LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), worth=500_000)  # ops
A_STEP = 500
"""The ops that take as long as one step back from a few of them."""


def binding_predecessors(program: Program, timing: Timing) -> Indices:
    """For every op the predecessor that finishes last, the first among equals: int32[num_ops], -1 for none."""
    count, waits, streams = len(program), program.dependencies, program.streams
    if library := LIBRARY.load_for(count):
        result = np.empty(count, dtype=np.int32)
        rows = [(int64_column(each.pointer), int32_column(each.item)) for each in (waits, streams)]
        given = int64_column(timing.finish_ns), result
        sizes = [ctypes.c_int64(size) for size in (count, len(streams))]
        library.bind(sizes[0], *pointers(*rows[0]), sizes[1], *pointers(*rows[1]), *pointers(*given))
        return result
    before, after = stream_edges(program)
    result, latest = np.full(count, -1, dtype=np.int32), np.full(count, -1, dtype=np.int64)
    owners, finish = waits.owners(), timing.finish_ns
    np.maximum.at(latest, after, finish[before])
    np.maximum.at(latest, owners, finish[waits.item])
    # the last write stays: dependencies win over streams, and the first of them over the others
    for first, second in ((before, after), (waits.item, owners)):
        last = np.flatnonzero(finish[first] == latest[second])[::-1]
        result[second[last]] = first[last]
    return result


def chain_to(binding: Indices, op: int) -> Ints:
    """The ops of the chain that leads to an op, first to last, int64[n]; the op itself is the last one."""
    if library := LIBRARY.load_for(len(binding)):
        room, column, count = np.empty(len(binding), dtype=np.int64), int32_column(binding), len(binding)
        length = library.follow_chain(ctypes.c_int64(count), *pointers(column), ctypes.c_int64(op), *pointers(room))
        return room[count - length :].copy()
    last, chain = binding.data, [op]  # indexing a memoryview is much faster than indexing an array
    while (before := last[chain[-1]]) >= 0:
        chain.append(before)
    return np.array(chain[::-1], dtype=np.int64)


def sum_along(binding: Indices, values: Floats) -> Floats:
    """Sums of ``values`` float64[num_ops], in whole ticks, over every op and the chain of its binding predecessors."""
    if library := LIBRARY.load_for(len(binding)):
        result, given = np.empty(len(binding)), (int32_column(binding), np.ascontiguousarray(values, np.float64))
        if library.sum_along(ctypes.c_int64(len(binding)), *pointers(*given, result)):
            return result
    # Pointer doubling: the number of rounds is the logarithm of the longest chain. Chains end at the extra last entry.
    total, hop = np.append(values, 0.0), np.append(binding, -1).astype(np.int64)
    more, onward = np.empty_like(total), np.empty_like(hop)  # allocating in every round would double the time
    while hop.max() >= 0:
        total += np.take(total, hop, out=more, mode="wrap")
        hop, onward = np.take(hop, hop, out=onward, mode="wrap"), hop
    return total[:-1]


def nearest_flagged(binding: Indices, flagged: Flags, ops: Ints) -> Ints:
    """The first flagged op on the chains that start with some ops, int64[len(ops)]; -1 without one.

    Chains are followed step by step until that has taken as long as asking all ops at once.
    """
    result, at = np.full(len(ops), -1), ops.astype(np.int64)
    live = np.arange(len(ops)) if flagged.any() else np.zeros(0, dtype=np.int64)
    left = len(binding)
    while len(live) and left > 0:
        left -= len(live) + A_STEP
        hit = flagged[at[live]]
        result[live[hit]] = at[live[hit]]
        live = live[~hit]
        at[live] = binding[at[live]]
        live = live[at[live] >= 0]
    if len(live):
        result[live] = _nearest_of_all(binding, flagged)[at[live]]
    return result


def _nearest_of_all(binding: Indices, flagged: Flags) -> Ints:
    """As :func:`nearest_flagged`, of every op."""
    result, hop = np.where(flagged, np.arange(len(binding)), -1), binding.astype(np.int64)
    live = np.flatnonzero((result < 0) & (hop >= 0))
    while len(live):
        result[live] = result[hop[live]]
        hop[live] = hop[hop[live]]
        live = live[(result[live] < 0) & (hop[live] >= 0)]
    return result
