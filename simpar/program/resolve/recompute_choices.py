"""Optimal checkpointing: what to keep and what to run again, in the least time under a memory budget.

A run of equal layers may mix choices: a layer keeps everything, drops the outputs of some operators, or keeps its input
alone; and K layers may keep one input together, which all run forward again from there. Of a chain of L equal layers
whose tensors are as large as their inputs, segments of sqrt(L) then need 2 sqrt(L) of memory for one more forward
[Chen et al. 2016, arXiv 1604.06174]. The choice is an integer program, solved to optimality by HiGHS: with the largest
workspace fixed it is linear in the number of layers under each choice, and there are few different workspaces.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.units import Floats

TOLERANCE = 2.0**-19
"""By how much, as a share, a solution may exceed a limit: twice what HiGHS lets pass."""
ROUNDING = 2.0**-30
"""The share by which sums of floats may differ from the exact ones."""


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
    least_s = [_least_s(runs, in_flight, budget_bytes - workspace, workspace) for workspace in held]
    best: tuple[float, float, float, list[list[tuple[RecomputeChoice, int]]]] | None = None
    for bound_s, workspace in sorted(zip(least_s, held, strict=True)):
        if np.isinf(bound_s) or (best is not None and bound_s > best[0]):
            break
        chosen = _within(runs, in_flight, budget_bytes - workspace, workspace)
        if chosen is None:
            continue
        seconds, saved = (
            sum(getattr(choice, name) * count for taken in chosen for choice, count in taken)
            for name in ("again_s", "saved_bytes")
        )
        if best is None or (seconds, saved + workspace, workspace) < best[:3]:
            best = seconds, saved + workspace, workspace, chosen
    if best is None:
        raise Infeasible(f"no choice of what to recompute fits in {budget_bytes:.4g} bytes of activations")
    return best[3]


def _least_s(runs: Sequence[LayerRun], in_flight: Floats, saved_limit: float, workspace: float) -> float:
    """A lower bound on the seconds of all mixes of :func:`_within`: infinite where none exists.

    The Lagrangian dual of the mix with fractions of layers, under the limit of one moment m at a time: for any
    lambda >= 0 it is sum over runs of length min_c (again_s + lambda in_flight saved_bytes) - lambda limit, each per
    layer; it is largest where the best choice of some run changes. The limit is as wide as HiGHS takes it.
    """
    limit = saved_limit + TOLERANCE * max(saved_limit, 1.0)
    sizes: list[tuple[int, Floats, Floats]] = []
    for run in runs:
        if not (some := _within_workspace(run, workspace)):
            return np.inf
        each = np.array([(one.again_s / one.layers, one.saved_bytes / one.layers) for one in some])
        sizes.append((run.length, each[:, 0], each[:, 1]))
    best = 0.0
    for flying in in_flight:
        if sum(length * f * saved.min() for f, (length, _, saved) in zip(flying, sizes, strict=True)) > limit:
            return np.inf
        prices = [np.zeros(1)]
        for f, (_, again, saved) in zip(flying, sizes, strict=True):
            slower, smaller = again[:, None] - again, f * (saved - saved[:, None])
            prices.append(slower[(slower > 0) & (smaller > 0)] / smaller[(slower > 0) & (smaller > 0)])
        price = np.unique(np.concatenate(prices))[:, None]
        total = -price[:, 0] * limit
        for f, (length, again, saved) in zip(flying, sizes, strict=True):
            total += length * (again + price * f * saved).min(axis=1)
        best = max(best, float(total.max()))
    return best * (1 - ROUNDING)


def _within_workspace(run: LayerRun, workspace: float) -> list[RecomputeChoice]:
    """The choices for a run that hold at most ``workspace`` bytes."""
    return [one for one in run.choices if one.held_bytes <= workspace and one.layers <= run.length]


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


def _within(
    runs: Sequence[LayerRun], in_flight: Floats, saved_limit: float, workspace: float
) -> list[list[tuple[RecomputeChoice, int]]] | None:
    """The fastest mix of choices that hold at most ``workspace`` bytes each; None where every mix saves too much."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    columns = [(number, choice) for number, run in enumerate(runs) for choice in _within_workspace(run, workspace)]
    of_run = np.array([[number == at for number, _ in columns] for at in range(len(runs))], dtype=float)
    layers = of_run * np.array([choice.layers for _, choice in columns])
    lengths = [run.length for run in runs]
    if not columns or not of_run.any(axis=1).all():
        return None
    scale = max(saved_limit, 1.0)
    saved = (in_flight @ of_run) * np.array([choice.saved_bytes for _, choice in columns]) / scale
    seconds = np.array([choice.again_s for _, choice in columns])
    constraints = [LinearConstraint(layers, lengths, lengths), LinearConstraint(saved, -np.inf, saved_limit / scale)]
    with _silent():
        solution = milp(
            seconds / (seconds.max(initial=0.0) or 1.0),
            constraints=constraints,
            integrality=np.ones(len(columns), dtype=int),
            bounds=Bounds(0, np.inf),
            options={"mip_rel_gap": 0.0},
        )
    if solution.x is None:
        return None
    counts = np.rint(solution.x).astype(int)
    return [
        [(choice, int(n)) for (number, choice), n in zip(columns, counts, strict=True) if n and number == at]
        for at in range(len(runs))
    ]


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
