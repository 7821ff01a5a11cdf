"""The best layouts near a given one: all that are one or two choices away are bounded, and the best simulated.

Neighbours are rows of the uniform space (:mod:`simpar.planner.space`) that the framework can express, so that they are
bounded in columns, at the cost of about one simulation for all of them. How many are simulated depends only on the ops
of their Programs, so the same input gives the same answer on any machine.
"""

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.errors import Infeasible, TooManyOps
from simpar.layout.moves import is_size, leaders, values_around
from simpar.plan.choices import names_that_decide, path_of, value_of
from simpar.plan.choices.choice import OPS
from simpar.plan.plan import Plan
from simpar.plan.schedules import natural_vpp
from simpar.planner.certify.exact import is_allowed, job_of
from simpar.planner.certify.frontier import STEP, Frontier
from simpar.planner.problem import ANY, Framework, Problem
from simpar.planner.space.axes import AXIS_NAMES
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of, without_axes
from simpar.planner.space.portable import axis_of, losses, refusals
from simpar.planner.space.rows import ORIGIN, memory_rows, with_late_axes
from simpar.planner.space.table import Rows
from simpar.program.emission.emit import at_most
from simpar.program.lower import Outline
from simpar.program.perturbation import Perturbation
from simpar.report.context import SummaryInputs
from simpar.report.result import Result
from simpar.report.summarise import summarise
from simpar.simulation import outline_job
from simpar.uncertainty.memory import NORMAL
from simpar.units import Flags, Ints

MOST_CHANGES = 2
MOST_SIMULATED, MOST_LOOKED_AT, MOST_LARGE = 3, 8, 4
MOST_OPS = 50_000
"""The most ops of all Programs that are simulated, about 0.05 s of a core; a row with which they exceed it is left out.

The first is simulated nevertheless if it has at most MOST_ALONE.
"""
MOST_ALONE = 300_000
"""The most ops of the first Program, about 0.25 s of a core; MOST_LARGE rows with more end the search."""


@dataclass(frozen=True)
class Nearby:
    """Simulated neighbours that fit with the wanted probability, fastest first, and the number of all neighbours.

    ``least_s`` is the lowest bound of the steps that were not simulated, in seconds, None if there are none.
    """

    simulated: tuple[tuple[Plan, Result], ...]
    count: int
    least_s: float | None


ALL = frozenset(AXIS_NAMES)
WAITS = "defer_grad_reduce"
"""The choice beside these that neighbours may change: where whole gradients wait for the last microbatch, False saves
memory."""


def nearby(problem: Problem, plan: Plan, target: str, axes: frozenset[str] = ALL) -> Nearby:
    """Layouts near a plan, which is resolved and has its dp, on the problem's cluster; only ``axes`` change.

    ``problem`` has the constraints on a plan; its base is the plan as it was asked for. Raises UserError.
    """
    framework = Framework(target, frozenset(AXIS_NAMES))
    base = without_axes(problem.base)
    asked = replace(problem, base=base, objective="time", framework=framework)
    fixed = _sayable(asked, plan, _near(problem, plan, axes)) | _waiting(plan, axes)
    anything = replace(asked.constraints, fixed=fixed, portable=ANY)
    try:
        frontier, count = _frontier(replace(asked, constraints=anything), asked, plan)
    except Infeasible:
        return Nearby((), 0, None)
    if frontier is None:
        return Nearby((), count, None)
    open_rows = np.ones(frontier.rows.count, dtype=np.bool_)
    simulated = list(_simulated(frontier, open_rows, frozenset(_said(asked, plan))))
    least = frontier.bound_s[open_rows & np.isfinite(frontier.bound_s)]
    ranked = tuple(sorted(simulated, key=lambda one: one[1].step_time_s))
    return Nearby(ranked, count, float(least.min()) if len(least) else None)


@dataclass
class _Budget:
    """Ops that were simulated, and those of outlines by the axes that decide their number (OPS).

    ``beyond`` are values of these axes whose outlines have more than MOST_ALONE; rows that need more than
    ``most_bytes`` will not fit.
    """

    spent: int = 0
    most_bytes: float = np.inf
    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    beyond: set[tuple[int, ...]] = field(default_factory=set)

    def allows(self, ops: int) -> bool:
        """Whether a Program of ``ops`` ops may be simulated; the first may have any size."""
        return not self.spent or self.spent + ops <= MOST_OPS

    @property
    def is_spent(self) -> bool:
        """Whether all Programs seen are too large, or half the microbatches of the smallest are more than is left."""
        fewest = min(self.known.values(), default=0)
        return not self.allows(fewest // 2) or (not self.known and len(self.beyond) >= MOST_LARGE)


def _simulated(frontier: Frontier, open_rows: Flags, habit: frozenset[str]) -> Iterator[tuple[Plan, Result]]:
    """Rows with the lowest bounds that fit with the wanted probability, simulated, until there are enough.

    ``habit`` is what the target cannot express of the plan itself, which its text says all the same.

    The first may have MOST_ALONE ops; others are left out where all would exceed MOST_OPS. After a row that did not
    fit, rows that need as much memory are skipped. Rows that were simulated, or that the framework refuses, are no
    longer open.
    """
    problem, budget = frontier.rows.problem, _Budget()
    count = 0
    for row, plan, run in _outlined(frontier, open_rows, budget, habit):
        if not budget.allows(len(run)):
            continue
        open_rows[row] = False
        result = _result(run, problem, plan)
        budget.spent += len(run)
        if not is_allowed(problem, result, problem.constraints.fit_probability):
            budget.most_bytes = frontier.needed_bytes[row] - _lacking_bytes(problem, result)
            continue
        yield plan, result
        count += 1
        if count == MOST_SIMULATED:
            return


def _outlined(
    frontier: Frontier, open_rows: Flags, budget: _Budget, habit: frozenset[str]
) -> Iterator[tuple[int, Plan, Outline]]:
    """Rows with the lowest bounds that may fit, with their plans and outlined Programs, while there is budget."""
    left, rows = open_rows.copy(), frontier.rows
    for _ in range(MOST_LOOKED_AT):
        row = None if budget.is_spent else frontier.shortest(left, STEP)
        if row is None:
            return
        left[row] = False
        sizes = tuple(
            int(rows.code[name][row]) for name in (*names_that_decide(OPS), "micro_batch") if name in rows.code
        )
        if set(refusals(rows, row)) - habit or not frontier.may_fit(row):
            open_rows[row] = False
        elif frontier.needed_bytes[row] > budget.most_bytes:
            continue
        elif sizes not in budget.beyond and budget.allows(budget.known.get(sizes, 0)):
            plan, problem = plan_of(rows, row), rows.problem
            try:
                with at_most(MOST_ALONE):
                    run = outline_job(job_of(problem, plan), problem.cluster, apart=False)
            except TooManyOps:
                budget.beyond.add(sizes)
                continue
            budget.known[sizes] = len(run)
            yield row, plan, run


def _lacking_bytes(problem: Problem, result: Result) -> float:
    """Roughly how much less memory a layout would have to need to fit as wanted, from the width of its interval."""
    over = result.memory.peak_reserved_bytes - (1.0 - problem.constraints.headroom) * result.memory.capacity_bytes
    known = result.certainty
    if known is None:
        return max(over, 0.0)
    low, high = known.reserved_memory_interval_bytes
    deviation = (high - low) / (NORMAL.inv_cdf(0.95) - NORMAL.inv_cdf(0.05))
    short = NORMAL.inv_cdf(problem.constraints.fit_probability) - NORMAL.inv_cdf(
        min(max(known.fit_probability, 0.001), 0.999)
    )
    return max(over, deviation * max(short, 0.0))


def _result(run: Outline, problem: Problem, plan: Plan) -> Result:
    """The simulated step of an outline."""
    lowered = run.lowered()
    timing = choose_engine("auto", lowered.program)(lowered.program)
    context = SummaryInputs(lowered, timing, problem.cluster, "auto", "full", Perturbation(), asked=plan)
    return summarise(context, with_timeline=False)


def _near(problem: Problem, plan: Plan, axes: frozenset[str]) -> dict[str, list[Any]]:
    """Values of the axes around those of a plan; others, and axes without any, keep the plan's."""
    around = {name: values for name, values in values_around(plan, problem.workload).items() if name in axes}
    return {name: around.get(name, [value_of(plan, name)]) for name in AXIS_NAMES}


def _waiting(plan: Plan, axes: frozenset[str]) -> dict[str, list[Any]]:
    """Gradients that wait and that do not, if that is asked for and those of a plan wait for the last microbatch."""
    data = plan.data_parallel
    return {WAITS: [True, False]} if WAITS in axes and data.defer_grad_reduce and data.zero >= 2 else {}


def _sayable(problem: Problem, plan: Plan, near: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Values on axes that are not sizes: the plan's own, and those that the target can express in the plan."""
    habit = set(_said(problem, plan))
    result = dict(near)
    for name in (name for name in AXIS_NAMES if not is_size(name)):
        own, *others = near[name]
        said = (value for value in others if not set(_lost(problem, plan, name, value)) - habit)
        result[name] = [own, *said]
    return result


def _lost(problem: Problem, plan: Plan, name: str, value: Any) -> list[str]:
    """What the target cannot express of a plan with another value of one axis."""
    if name == "schedule":
        stages: dict[str, Any] = {"pp": max(plan.mesh.pp, 2), "dp": 1, "layers": None}
        return _said(problem, plan.with_values(schedule=value, vpp=natural_vpp(value), **stages))
    section, field = path_of(name)
    part = getattr(plan, section).model_copy(update={field: value})
    return _said(problem, plan.model_copy(update={section: part}))


def _said(problem: Problem, plan: Plan) -> list[str]:
    """Axes of a plan that the target cannot express."""
    reasons = losses(problem, plan, str(problem.target))
    return [str(loss) for loss in reasons if axis_of(loss) in AXIS_NAMES]


def _frontier(anything: Problem, problem: Problem, plan: Plan) -> tuple[Frontier | None, int]:
    """The rows near a plan that may fit, bounded (None if there are none), and the number of all rows.

    They are joined under ``anything``, which has no framework, so that no framework is asked about every value.
    ``problem`` has it, and is asked when a row is simulated. Raises Infeasible if there are no rows.
    """
    rows = memory_rows(anything)
    rows = rows.subset(_close(rows, plan, least=0))  # a neighbour may change late axes only
    need = needs(rows)
    fit = need.needed_bytes <= problem.memory_limit_bytes
    if not fit.any():
        return None, rows.count
    feasible = with_late_axes(rows.subset(np.flatnonzero(fit)))
    close = _close(feasible, plan)
    needed = need.needed_bytes[fit][feasible.code[ORIGIN][close]]
    feasible = feasible.subset(close)
    feasible.problem = problem
    return Frontier.of(feasible, needed), len(close) + int((~fit).sum())


def _close(rows: Rows, plan: Plan, least: int = 1) -> Ints:
    """Numbers of the rows that differ from a plan in ``least`` to MOST_CHANGES choices."""
    differs: dict[str, Flags] = {}
    for name in rows.domain:
        if name in AXIS_NAMES or name == WAITS:
            own = (value_of(plan, name), *([None] if name == WAITS else ()))  # None: it means nothing in a row
            unlike = np.array([value not in own for value in rows.domain[name]])
            differs[name] = unlike[rows.code[name]]
    count = np.zeros(rows.count, dtype=np.int64)
    for name, column in differs.items():
        led = [differs[leader] for leader in leaders(name) if leader in differs]
        count += column & ~np.logical_or.reduce(led) if led else column
    return np.flatnonzero((count >= least) & (count <= MOST_CHANGES))
