"""Why nothing fits, in one line: what the smallest plan needs, of what, and what would help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.errors import Infeasible, UserError
from simpar.hardware.cluster import MAX_DEVICES
from simpar.search.problem import Problem
from simpar.search.space.axes import Rows
from simpar.search.space.fit import Need, fullest, needs
from simpar.search.space.rows import memory_rows
from simpar.units import GIB

MOST_NODES = 64
WORDS = {"static_bytes": "model states", "activations_bytes": "activations", "transient_bytes": "workspaces"}


def nothing_fits(problem: Problem, need: Need) -> Infeasible:
    """The error for a space of which every row needs too much."""
    rows = memory_rows(problem)
    row = int(np.argmin(need.needed_bytes))
    stage, peak = int(need.stage[row]), fullest(rows, row)
    parts = {name: peak[name] for name in WORDS}
    most = WORDS[max(parts, key=lambda name: parts[name])]
    limit, least = problem.memory_limit_bytes, float(need.needed_bytes[row])
    advice = " or ".join([*_relaxed(problem, rows), *_more_nodes(problem)])
    return Infeasible(
        f"nothing fits: the smallest layout needs {least / GIB:.1f} GiB of {limit / GIB:.1f} on stage {stage}, "
        f"mostly {most}" + (f"; try {advice}" if advice else "")
    )


def _relaxed(problem: Problem, _: Rows) -> list[str]:
    """Constraints without which something would fit, with the value that does."""
    constraints, found = problem.constraints, []
    for name in constraints.fixed:
        others = {axis: value for axis, value in constraints.fixed.items() if axis != name}
        value = _first_fit(replace(problem, constraints=replace(constraints, fixed=others)), name)
        if value is not None:
            found.append(f"{name}={value}")
    if constraints.headroom and _fits(replace(problem, constraints=replace(constraints, headroom=0.0))):
        found.append("less headroom")
    if constraints.schedules and _fits(replace(problem, constraints=replace(constraints, schedules=None))):
        found.append("other schedules")
    return found


def _first_fit(problem: Problem, axis: str) -> object | None:
    """The value of an axis that the smallest fitting row has, or None."""
    try:
        rows = memory_rows(problem)
    except UserError:
        return None
    needed = needs(rows).needed_bytes
    row = int(np.argmin(needed))
    if needed[row] > problem.memory_limit_bytes or axis not in rows.domain:
        return None
    return rows.domain[axis][rows.code[axis][row]]  # type: ignore[no-any-return]


def _fits(problem: Problem) -> bool:
    try:
        return bool((needs(memory_rows(problem)).needed_bytes <= problem.memory_limit_bytes).any())
    except UserError:
        return False


def _more_nodes(problem: Problem) -> list[str]:
    """The fewest further nodes, in doublings, on which something fits."""
    cluster, factor = problem.cluster, 2
    while factor <= MOST_NODES and cluster.world_size * factor <= MAX_DEVICES and cluster.profile.scale_out:
        nodes = cluster.nodes * factor
        if _fits(replace(problem, cluster=replace(cluster, nodes=nodes))):
            more = nodes - cluster.nodes
            return [f"{more} more node{'s' if more > 1 else ''}"]
        factor *= 2
    return []
