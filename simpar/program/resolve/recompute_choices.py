"""Optimal checkpointing: what to keep and what to run again, in the least time under a memory budget.

A run of equal layers may mix choices: a layer keeps everything, drops the outputs of some operators, or keeps its input
alone; and K layers may keep one input together, which all run forward again from there. Of a chain of L equal layers
whose tensors are as large as their inputs, segments of sqrt(L) then need 2 sqrt(L) of memory for one more forward
[Chen et al. 2016, arXiv 1604.06174]. The choice is an integer program, solved to optimality: with the largest
workspace fixed it is linear in the number of layers under each choice, and there are few different workspaces.
:mod:`simpar.program.resolve.fastest_mix` enumerates what may be optimal; HiGHS solves what is too much for that.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.program.resolve.fastest_mix import (
    ROUNDING,
    MemoryPrice,
    Mix,
    RunColumns,
    TooManyMixes,
    fastest_mix,
    price_of,
)
from simpar.units import PS_PER_S, Floats


@dataclass(frozen=True)
class RecomputeChoice:
    """One way to treat ``layers`` consecutive layers.

    A microbatch in flight keeps ``saved_bytes``; ``held_bytes`` are there while the backward of these layers runs;
    recomputation adds ``again_s`` seconds to that backward.
    """

    mode: str
    layers: int
    saved_bytes: float
    held_bytes: float
    again_s: float


@dataclass(frozen=True)
class LayerRun:
    """Consecutive layers that are alike, and the choices for them."""

    length: int
    choices: tuple[RecomputeChoice, ...]


def choose(runs: Sequence[LayerRun], in_flight: Floats, budget_bytes: float) -> list[list[tuple[RecomputeChoice, int]]]:
    """The fastest choices within a memory budget: for every run a list of (choice, how often it is taken).

    ``in_flight`` float64[moments, runs] says how many microbatches of every run are in flight at the moments that may
    bind. With n_c the times that choice c is taken, it minimises sum n_c again_s(c), where the layers of every run are
    covered, and at every moment sum in_flight n_c saved_bytes(c) + max held_bytes(c) <= ``budget_bytes``. Of equally
    fast answers it takes the one that needs least memory. Raises Infeasible.
    """
    runs = [LayerRun(run.length, _undominated(run.choices)) for run in runs]
    held = sorted({choice.held_bytes for run in runs for choice in run.choices if choice.held_bytes <= budget_bytes})
    spaces = [space for each in held if (space := _Workspace.of(runs, in_flight, budget_bytes, each))]
    best: tuple[int, float, float, list[list[tuple[RecomputeChoice, int]]]] | None = None
    for space in sorted(spaces, key=lambda each: (each.price.bound_ps, each.held_bytes)):
        if best is not None and space.price.bound_ps * (1 - ROUNDING) > best[0]:
            break
        mix = space.fastest(np.inf if best is None else best[0])
        if mix is not None:
            taken = [
                [(choice, int(n)) for choice, n in zip(some, counts, strict=True) if n]
                for some, counts in zip(space.choices, mix.counts, strict=True)
            ]
            chosen = mix.again_ps, mix.saved_bytes + space.held_bytes, space.held_bytes, taken
            best = chosen if best is None or chosen[:3] < best[:3] else best
    if best is None:
        raise Infeasible(f"no choice of what to recompute fits in {budget_bytes:.4g} bytes of activations")
    return best[3]


@dataclass(frozen=True)
class _Workspace:
    """What runs may choose from if no choice holds more than ``held_bytes``, with the price of what they save."""

    held_bytes: float
    limit_bytes: float
    choices: list[list[RecomputeChoice]]
    runs: list[RunColumns]
    price: MemoryPrice

    @staticmethod
    def of(runs: Sequence[LayerRun], in_flight: Floats, budget_bytes: float, held_bytes: float) -> _Workspace | None:
        """The choices within a workspace; None if some run has none, or saves too much under all of them."""
        choices = [[one for one in r.choices if one.held_bytes <= held_bytes and one.layers <= r.length] for r in runs]
        if not all(choices):
            return None
        columns = [
            RunColumns(
                run.length,
                np.array([one.layers for one in some]),
                np.array([round(one.again_s * PS_PER_S) for one in some]),
                np.array([one.saved_bytes for one in some], dtype=np.float64),
                in_flight[:, at],
            )
            for at, (run, some) in enumerate(zip(runs, choices, strict=True))
        ]
        limit_bytes = budget_bytes - held_bytes
        price = price_of(columns, limit_bytes)
        return None if price is None else _Workspace(held_bytes, limit_bytes, choices, columns, price)

    def fastest(self, most_ps: float) -> Mix | None:
        """The fastest mix, of equally fast ones that with the fewest bytes; None if none takes up to ``most_ps``."""
        try:
            return fastest_mix(self.runs, self.limit_bytes, self.price, most_ps)
        except TooManyMixes:
            return _by_program(self.runs, self.limit_bytes)


def _undominated(choices: Sequence[RecomputeChoice]) -> tuple[RecomputeChoice, ...]:
    """Choices that no other choice for as many layers equals or beats in every respect; the first of equal ones."""
    sizes: dict[tuple[float, ...], RecomputeChoice] = {}
    for one in choices:
        sizes.setdefault((one.layers, one.saved_bytes, one.held_bytes, one.again_s), one)
    beaten = {
        mine
        for mine in sizes
        for other in sizes
        if other != mine and other[0] == mine[0] and all(a <= b for a, b in zip(other, mine, strict=True))
    }
    return tuple(one for size, one in sizes.items() if size not in beaten)


def _by_program(runs: Sequence[RunColumns], limit_bytes: float) -> Mix | None:
    """The fastest mix whose bytes in flight are within a limit, by an integer program; None if there is none."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    of_run = np.repeat(np.arange(len(runs)), [len(run.layers) for run in runs])
    layers, again_ps, saved = (
        np.concatenate([getattr(run, name) for run in runs]) for name in ("layers", "again_ps", "saved_bytes")
    )
    lengths = np.array([run.length for run in runs])
    covered = (of_run == np.arange(len(runs))[:, None]) * layers
    in_flight = np.array([run.in_flight for run in runs]).T
    scale = max(limit_bytes, 1.0)
    held = in_flight[:, of_run] * saved / scale
    constraints = [LinearConstraint(covered, lengths, lengths), LinearConstraint(held, -np.inf, limit_bytes / scale)]
    if pairs := _ordered(runs):
        sizes = (of_run == np.arange(len(runs))[:, None]) * saved / scale
        more, fewer = np.array(pairs).T
        constraints.append(LinearConstraint(sizes[more] - sizes[fewer], -np.inf, 0.0))
    with _silent():
        solution = milp(
            again_ps / max(int(again_ps.max(initial=0)), 1),
            constraints=constraints,
            integrality=np.ones(len(layers), dtype=int),
            bounds=Bounds(0, np.inf),
            options={"mip_rel_gap": 0.0},
        )
    if solution.x is None:
        return None
    counts = np.rint(solution.x).astype(np.int64)
    most = float((held @ counts).max(initial=0.0)) * scale
    return Mix(int(again_ps @ counts), most, [counts[of_run == at] for at in range(len(runs))])


def _ordered(runs: Sequence[RunColumns]) -> list[tuple[int, int]]:
    """Pairs of equal runs of which the first has at least as many microbatches in flight at every moment.

    Some fastest mix keeps no more for a microbatch of the first than of the second: else the two change places, in as
    much time and no more bytes. Without that, a solver tries every permutation of such mixes.
    """
    last: dict[tuple[object, ...], int] = {}
    result = []
    for at, run in enumerate(runs):
        kind = run.length, *(each.tobytes() for each in (run.layers, run.again_ps, run.saved_bytes))
        if (before := last.get(kind)) is not None:
            if (runs[before].in_flight >= run.in_flight).all():
                result.append((before, at))
            elif (runs[before].in_flight <= run.in_flight).all():
                result.append((at, before))
        last[kind] = at
    return result


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing that compiled code writes reaches standard output: HiGHS reports steps of its heuristics there."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what lies in the buffer of C belongs to the solver
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
