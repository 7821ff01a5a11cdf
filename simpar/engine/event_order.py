"""Compiled kernels of the event engine that put ops in order, before a run. They need numba, as `event_kernel` does."""

from simpar.engine.event_kernel import Records, compiled
from simpar.units import Ints

Rows = tuple[Ints, Ints]
"""Ragged rows: row i is ``item[pointer[i]:pointer[i + 1]]`` of (pointer, item)."""
FEW = 8
"""Number of an op's first followers among which duplicates are looked for."""


@compiled
def follow(waits: Rows, streams: Rows, pointer: Ints, follower: Ints, waiting: Ints) -> int:
    """Write the followers of every op and the number of ops for which each waits; returns the number of pairs.

    Row i of ``waits`` are the ops on which op i depends, rows of ``streams`` the ops of each stream in order.
    ``pointer`` [ops + 1] and ``waiting`` [ops] begin as zeros. The followers of op i end up in
    ``follower[pointer[i]:pointer[i + 1]]``: ops that depend on it, then ops behind it on streams. A pair that is both a
    dependency and in stream order counts once, if it is among the first FEW of an op.
    """
    (depends, depend), (begins, stream) = waits, streams
    for op in range(len(waiting)):
        waiting[op] += depends[op + 1] - depends[op]
        for i in range(depends[op], depends[op + 1]):
            pointer[depend[i]] += 1
    for one in range(len(begins) - 1):
        for i in range(begins[one] + 1, begins[one + 1]):
            pointer[stream[i - 1]] += 1
            waiting[stream[i]] += 1
    for op in range(1, len(pointer)):
        pointer[op] += pointer[op - 1]
    for one in range(len(begins) - 2, -1, -1):
        for i in range(begins[one + 1] - 1, begins[one], -1):
            pointer[stream[i - 1]] -= 1
            follower[pointer[stream[i - 1]]] = stream[i]
    for op in range(len(waiting) - 1, -1, -1):
        for i in range(depends[op + 1] - 1, depends[op] - 1, -1):
            pointer[depend[i]] -= 1
            follower[pointer[depend[i]]] = op
    kept = 0
    for op in range(len(pointer) - 1):
        begin, pointer[op] = pointer[op], kept
        for i in range(begin, pointer[op + 1]):
            known = False
            for one in range(pointer[op], min(kept, pointer[op] + FEW)):
                known |= follower[one] == follower[i]
            if known:
                waiting[follower[i]] -= 1
            else:
                follower[kept] = follower[i]
                kept += 1
    pointer[-1] = kept
    return kept


@compiled
def begin(ops: Records, pointer: Ints, waiting: Ints, fixed_ns: Ints, work_bytes: Ints) -> None:
    """Fill the records of ops before the run; ops with work get numbers."""
    flows = 0
    for op in range(len(ops)):
        fresh = ops[op]
        fresh.first_follower = pointer[op]
        fresh.last_follower = pointer[op + 1]
        fresh.waiting = waiting[op]
        fresh.ready_ns = 0
        fresh.ends_ns = fixed_ns[op]
        fresh.flow = -1
        if work_bytes[op] != 0:
            fresh.flow = flows
            flows += 1
