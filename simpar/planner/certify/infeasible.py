"""Why a search has no answer, in one line, and which flags would give one that was checked by simulation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from simpar.errors import Infeasible, Undecided, UserError
from simpar.hardware.cluster import MAX_DEVICES
from simpar.layout.deciders import resolve
from simpar.plan.choices import value_of
from simpar.planner.certify.branch_and_bound import BranchAndBound, Field
from simpar.planner.certify.exact import SimulatedPlan, measure
from simpar.planner.problem import ANY, Problem
from simpar.planner.space.fit import find_fullest_rank, needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import fixed_values, memory_rows, with_late_axes
from simpar.planner.space.table import Rows
from simpar.program.emission.emit import MOST_OPS, at_most
from simpar.uncertainty.memory import AS_PREDICTED
from simpar.units import GIB, format_seconds

MOST_NODES = 64
MOST_SURE = 99
"""The highest probability, in percent, that a hint suggests."""
TRIES, FEW_OPS = 3, 1_000_000
"""Plans simulated for a hint until one fits (TRIES), and the most ops that each may have."""
WORDS = {"static_bytes": "model states", "activations_bytes": "activations", "transient_bytes": "workspaces"}
Smallest = tuple[Rows, SimulatedPlan]


def explain_no_answer(search: BranchAndBound, problem: Problem) -> Infeasible:
    """Why a search found no plan that satisfies its constraints."""
    progress, constraints = search.progress, problem.constraints
    if progress.interrupted:
        return Undecided(f"stopped ({progress.stopped}) before any plan that fits was found")
    if not search.fields:
        return Infeasible("no plan is possible on any number of nodes")
    misfits = [one.needed_bytes for one in search.simulated if not one.fits]
    if not search.frontiers or (misfits and len(misfits) == len(search.simulated)):
        hints = [] if progress.brief else [hint for hint in _hints(problem) if hint]
        tried = f"; try {' or '.join(hints)}" if hints else ""
        limit = problem.memory_limit_bytes / GIB
        if not search.frontiers:
            return Infeasible(f"nothing fits: the smallest layout needs {_least(search.fields[-1])}{tried}")
        return Infeasible(
            f"nothing fits: of {len(misfits)} layouts simulated the smallest needs {min(misfits) / GIB:.1f} GiB of "
            f"{limit:.1f}{', not sure enough to fit' * (min(misfits) <= limit * GIB)}{tried}"
        )
    if count := search.unbuilt():
        return explain_too_large(count)
    best = _quickest(search)
    if constraints.deadline_s is not None:
        lowest = min(float(np.min(frontier.bound_s)) for frontier in search.frontiers)
        later = f'; try --deadline "{_rounded_up(best.step_time_s)} s"' if best else ""
        return Infeasible(
            f"no plan meets the deadline of {format_seconds(constraints.deadline_s)}: every step takes at least "
            f"{format_seconds(lowest)}{later}"
        )
    freely = f"; try --portable {ANY}" if best else ""
    return Infeasible(f"{problem.target} can express none of the plans that fit{freely}")


def explain_too_large(count: int) -> Undecided:
    """The error if no plan was simulated because those that may be best have more ops than are built."""
    return Undecided(
        f"none of the {count:,} plans that may be best can be simulated: more than {MOST_OPS:,} ops a step; "
        "allowed: fewer microbatches (a smaller global batch, a larger micro-batch)"
    )


def _least(field: Field) -> str:
    """The need of the row with the lowest memory bound, on which rank, and what fills it."""
    need, row = field.need, int(np.argmin(field.need.needed_bytes))
    peak = find_fullest_rank(field.rows, row)
    parts = {name: peak[name] for name in WORDS}
    most = WORDS[max(parts, key=lambda name: parts[name])]
    limit, least = field.problem.memory_limit_bytes, float(need.needed_bytes[row])
    return (
        f"at least {least / GIB:.1f} GiB of {limit / GIB:.1f} on stage {int(need.stage[row])}"
        f"{field.problem.constraints.sure_words}, mostly {most}"
    )


def _quickest(search: BranchAndBound) -> SimulatedPlan | None:
    """The fastest simulated plan that fits, ignoring the deadline and the export target; simulates one if need be."""
    known = [one for one in search.simulated if one.fits]
    if known:
        return min(known, key=lambda one: one.step_time_s)
    with at_most(FEW_OPS):
        return search.frontiers[-1].first_that(lambda one: one.fits, on_any_target=True)


def _rounded_up(seconds: float) -> str:
    """Seconds rounded up to three digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return f"{(math.floor(seconds / unit) + 1) * unit:.12g}"


def _hints(problem: Problem) -> Iterator[str | None]:
    """Flags, in place of those given, with which something fits: one constraint less, or more nodes."""
    constraints = problem.constraints

    def without(said: Callable[[Smallest], str], **changes: object) -> str | None:
        smallest = _smallest(replace(problem, constraints=replace(constraints, **changes)))  # type: ignore[arg-type]
        return said(smallest) if smallest else None

    fixed = fixed_values(constraints.fixed)
    for name in fixed:
        others = {axis: values for axis, values in fixed.items() if axis != name}
        yield without(lambda smallest, name=name: _fixing(name, smallest), fixed=others)  # type: ignore[misc]
    if constraints.fit_probability > AS_PREDICTED:
        yield without(lambda smallest: f"--fit-probability {_sure(smallest[1]):g}", fit_probability=AS_PREDICTED)
    if constraints.headroom:
        yield without(lambda smallest: f"--headroom {_left(smallest[1]):g}", headroom=0.0)
    if constraints.schedules:
        yield without(lambda smallest: f"--schedules {smallest[1].plan.schedule}", schedules=None)
    if problem.target:
        yield without(lambda _: f"--portable {ANY}", portable=ANY)
    yield _more_nodes(problem)


def _fixing(name: str, smallest: Smallest) -> str:
    """The flag that gives an axis the value it has in the only row, or says to leave the axis out if it has none.

    Axes on request that are not asked for are no columns: they have the value of the plan, or of the stack.
    """
    rows, simulated = smallest
    if name == "dp":
        value = rows[name][0]
    elif name in rows.domain:
        value = rows.domain[name][rows.code[name][0]]
    else:
        value = value_of(resolve(simulated.plan, simulated.problem.stack), name)
    return f"no --fix {name}" if value is None else f"--fix {name}={value}"


def _left(simulated: SimulatedPlan) -> float:
    """The share of the device that a plan leaves free, rounded down to whole percent."""
    memory = simulated.report().memory
    return max(0, math.floor(100 * memory.headroom_bytes / memory.capacity_bytes)) / 100


def _sure(simulated: SimulatedPlan) -> float:
    """The probability that a plan fits, in whole percent, at most MOST_SURE."""
    known = simulated.report().certainty
    percent = math.floor(100 * known.fit_probability) if known else 0
    return max(AS_PREDICTED, min(percent, MOST_SURE) / 100)


def _smallest(problem: Problem) -> Smallest | None:
    """Among the rows that need the least memory, the first that fits and meets the deadline when simulated."""
    try:
        rows = memory_rows(problem)
        needed = needs(rows).needed_bytes
        for row in np.argsort(needed, kind="stable")[:TRIES]:
            if needed[row] > problem.memory_limit_bytes:
                return None
            one = with_late_axes(rows.subset(np.array([row])))
            with at_most(FEW_OPS):
                result = measure(problem, plan_of(one, 0))
            if result.fits and result.step_time_s <= (problem.constraints.deadline_s or math.inf):
                return one, result
    except UserError:  # no legal row, or too many ops: no hint
        return None
    return None


def _more_nodes(problem: Problem) -> str | None:
    """The smallest number of nodes, doubling from the present one, on which something fits."""
    cluster, factor = problem.cluster, 2
    while factor <= MOST_NODES and cluster.world_size * factor <= MAX_DEVICES and cluster.profile.scale_out:
        nodes = cluster.nodes * factor
        if _smallest(replace(problem, cluster=replace(cluster, nodes=nodes))):
            return f"--nodes {nodes}"
        factor *= 2
    return None
