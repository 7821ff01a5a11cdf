"""The sweep engine: longest path, level by level in numpy, with a batch axis over configurations.

Exact where no link is shared; where links are shared it refuses, or gives a lower bound: with a static order,
finish times grow with every duration, and a flow alone on its links is never slower than one that shares them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.program.program import Program, Timing, predecessors, solo_durations_ns

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """The precedence graph of a Program, cut into levels: ops of level i wait only for ops of earlier levels.

    ``order`` int64[n] lists ops by level, ``bounds`` the start of each level in it; ``pointer``/``preds`` are
    the predecessors of ``order[i]``, CSR in that same order.
    """

    order: Ints
    bounds: Ints
    pointer: Ints
    preds: Ints

    @staticmethod
    def of(program: Program) -> Structure:
        """Levels of a Program. Raises ValueError naming an op on a cycle."""
        pointer, preds = predecessors(program)
        level = _levels(pointer, preds)
        order = np.argsort(level, kind="stable")
        counts = np.diff(pointer)[order]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        take = np.repeat(pointer[order] - starts[:-1], counts) + np.arange(len(preds))
        bounds = np.concatenate([[0], np.cumsum(np.bincount(level))]).astype(np.int64)
        return Structure(order, bounds, starts, preds[take])


def _levels(pointer: Ints, preds: Ints) -> Ints:
    """Level of every op: 0 without predecessors, else one more than the highest predecessor (Kahn's order)."""
    num = len(pointer) - 1
    waiting = np.diff(pointer).astype(np.int64)
    owner = np.repeat(np.arange(num), waiting)
    order = np.argsort(preds, kind="stable")
    followers = owner[order]
    starts = np.searchsorted(preds[order], np.arange(num + 1))
    level = np.zeros(num, dtype=np.int64)
    ready = np.flatnonzero(waiting == 0)
    depth, done = 0, 0
    while len(ready):
        level[ready] = depth
        done += len(ready)
        counts = starts[ready + 1] - starts[ready]
        offsets = np.repeat(starts[ready] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        next_ops = followers[offsets + np.arange(int(counts.sum()))]
        np.subtract.at(waiting, next_ops, 1)
        ready = np.unique(next_ops[waiting[next_ops] == 0])
        depth += 1
    if done < num:
        raise ValueError(f"deadlock: ops {np.flatnonzero(waiting > 0)[:8].tolist()} wait for each other")
    return level


def run(program: Program, *, lower_bound: bool = False) -> Timing:
    """Start and finish of every op. Raises ValueError if links are shared, unless a lower bound is wanted."""
    if not lower_bound and (program.ops.work_bytes > 0).any():
        raise ValueError("the sweep engine is exact only where no link is shared; pass lower_bound=True or use reference")
    durations = solo_durations_ns(program)
    finish = run_batch(Structure.of(program), durations[None, :])[0]
    return Timing(finish - durations, finish)


def run_batch(structure: Structure, durations_ns: Ints) -> Ints:
    """Finish times int64[batch, n] for durations int64[batch, n] on one structure."""
    finish = np.zeros((durations_ns.shape[1], durations_ns.shape[0]), dtype=np.int64)
    durations = durations_ns.T
    for begin, end in zip(structure.bounds[:-1], structure.bounds[1:], strict=True):
        ops = structure.order[begin:end]
        first, last = structure.pointer[begin], structure.pointer[end]
        if last > first:
            ready = np.maximum.reduceat(finish[structure.preds[first:last]], structure.pointer[begin:end] - first, axis=0)
            finish[ops] = ready + durations[ops]
        else:
            finish[ops] = durations[ops]
    return finish.T
