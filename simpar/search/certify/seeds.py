"""Good plans before the search proper: the ways of splitting a model that people start from, the best row of each.

They give every search an answer from its first seconds on, and bounds something to be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError
from simpar.search.certify.branch_and_bound import BranchAndBound, Field
from simpar.search.certify.exact import Exact
from simpar.search.certify.frontier import STEP, Frontier
from simpar.search.problem import Problem
from simpar.search.progress import Progress
from simpar.search.space.axes import DEFAULT_ORDER, Rows, tensor_degrees

PLAIN: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "selective", "full"), "schedule": ("1f1b",), "vpp": (1,), "hsdp": (1,), "micro_batch": (1,),
    "tp_overlap": (False,), "overlap_grad_reduce": (True,), "overlap_param_gather": (True,), "order": (DEFAULT_ORDER,),
}  # fmt: skip
"""What nobody tunes at first."""
FAMILIES: tuple[Mapping[str, tuple[Any, ...]], ...] = ({"cp": (1,)}, {"tp": (1,), "cp": (1,), "pp": (1,)})
"""Tensor parallelism inside nodes with pipelines across them, and data parallelism alone."""
TRIES = 3
"""Rows of a family that are simulated until one fits."""


def seed(search: BranchAndBound) -> None:
    """Simulate the best plain plan of every family in the frontier with most devices, by the bounds of whole steps."""
    if not search.frontiers:
        return
    frontier = search.frontiers[-1]
    for family in FAMILIES:
        _simulate(search, frontier, plain(frontier.rows, family))


def plain(rows: Rows, family: Mapping[str, tuple[Any, ...]]) -> NDArray[np.bool_]:
    """Rows of a family with plain values of all other axes, as far as there are any."""
    found = np.asarray(rows["tp"] <= rows.problem.cluster.domain_size)
    found = found if found.any() else np.ones(rows.count, dtype=bool)
    for axis, values in {**family, **PLAIN}.items():
        narrower = found & rows.one_of(axis, *values)
        found = narrower if narrower.any() else found
    return found


def _simulate(search: BranchAndBound, frontier: Frontier, mask: NDArray[np.bool_]) -> Exact | None:
    """The first of a few rows that fits when it is simulated."""
    for _ in range(TRIES):
        row = frontier.shortest(mask, STEP)
        if row is None or row in frontier.simulated:
            return None
        found = search.simulate(frontier, row)
        if found is not None and search.counts_for(found):
            return found
        mask[row] = False
    return None


def first_plan(search: BranchAndBound, problem: Problem) -> None:
    """A plan for a search that was stopped before it had any: the best plain one, of a small space of its own.

    That takes a second. Its bounds say nothing about other plans. Nothing is found where no plain plan fits.
    """
    constraints = problem.constraints
    degrees = [tp for tp in tensor_degrees(problem) if tp <= problem.cluster.domain_size]
    held: dict[str, Any] = {**PLAIN, "tp": degrees, "cp": (1,)}
    if constraints.schedules:
        del held["schedule"], held["vpp"]
    narrow = replace(constraints, fixed={**held, **constraints.fixed})
    try:
        small = BranchAndBound([Field.of(replace(problem, constraints=narrow))], Progress())
    except UserError:
        return
    for frontier in small.frontiers:
        found = _simulate(small, frontier, np.ones(frontier.rows.count, dtype=bool))
        if found is not None:
            search.found.append(replace(found, problem=problem))
            search.is_bounded = False
