"""Restrictions of plans to what the framework that runs them supports.

``--portable TARGET`` asks for plans that an export target can express completely. Without it, the framework behind the
stack restricts what nobody asked for: it leaves out schedules, recomputation, ZeRO stages, overlaps and sizes that the
framework does not have, but keeps what the user held or listed, and the model. ``--portable any`` turns both off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.frameworks.framework import StackFramework, framework_of, losses_of
from simpar.layout.moves import choice_of, leaders
from simpar.plan.choices import ANY_DEGREE, name_of
from simpar.plan.mesh import AXES as MESH_AXES
from simpar.plan.plan import Plan
from simpar.planner.problem import ANY, Framework, Problem
from simpar.planner.space.axes import AXIS_NAMES
from simpar.planner.space.jobs import fill_dp, without_axes
from simpar.planner.space.table import Codes, Rows, factorize
from simpar.units import Ints, unique

if TYPE_CHECKING:
    from simpar.frameworks.subject import Loss

UNCHECKED_AXES = ("micro_batch",)
"""Axes that no target looks at."""
SIMPLEST, SPREAD = 32, 32
"""Layouts per value that a target is asked about: the ones with the fewest axes in use, and a spread of others."""


def of_its_framework(problem: Problem) -> Problem:
    """The problem with the framework behind its stack, unless the problem says which plans are allowed.

    No framework is set if no export target has the stack, if none runs whole plans, or if the model cannot be described
    to any.
    """
    if problem.constraints.portable is not None or problem.framework is not None:
        return problem
    plan = without_axes(problem.base).with_values(dp=1)  # axes get values that the framework has
    framework = framework_for(problem, plan)
    if framework is None or framework.error or not framework.runs_all:
        return problem
    asked = {name_of(name) for name in problem.constraints.fixed}
    asked |= {"schedule"} if problem.constraints.schedules else set()
    return replace(problem, framework=Framework(framework.name, frozenset(AXIS_NAMES) - asked))


def refusals(rows: Rows, row: int) -> list[str]:
    """Why the target asked for or the framework refuses the plan of a row; empty if it accepts it."""
    target = rows.problem.target
    return [] if target is None else [str(loss) for loss in _counting(rows, row, target)]


def _counting(rows: Rows, row: int, target: str) -> list[Loss]:
    """Losses of a row that count: for a requested target all, for a framework those of its axes."""
    problem = rows.problem
    result = losses(problem, fill_dp(rows, row), target)
    if problem.export_target is not None or problem.framework is None:
        return result
    return [loss for loss in result if axis_of(loss) in problem.framework.axes]


def axis_of(loss: Loss) -> str:
    """The axis that a loss belongs to: that of its choice, or of the choice that leads it; else its field."""
    name = choice_of(loss.field)
    leading = leaders(name) & {*AXIS_NAMES}
    return name if name in AXIS_NAMES or not leading else min(leading)


def losses(problem: Problem, plan: Plan, target: str) -> list[Loss]:
    """What a target cannot express of a plan (which has its dp) on the problem's cluster, as an export reports it.

    Raises UserError if the target cannot be asked.
    """
    return list(losses_of(_placed(problem, plan), problem.workload, problem.stack, target))


def framework_for(problem: Problem, plan: Plan) -> StackFramework | None:
    """The framework behind the problem's stack, asked about a plan (which has its dp) on the problem's cluster."""
    return framework_of(_placed(problem, plan), problem.workload, problem.stack)


def _placed(problem: Problem, plan: Plan) -> Plan:
    return plan.model_copy(update={"cluster": problem.cluster_record})


def keep_expressible(rows: Rows) -> Rows:
    """Leave out values of axes that the target or framework refuses in all layouts it is asked about.

    Values that it refuses only in some layouts, such as a schedule with replicas, are found when a row's turn comes.
    Raises Infeasible if nothing is left.
    """
    target = rows.problem.target
    if target is None or not rows.count:
        return rows
    columns = _columns(rows)
    first, kind = factorize(*columns.values())
    kinds = {name: column[first] for name, column in columns.items()}
    use = np.sum([values > 0 for values in kinds.values()], axis=0)
    alive, refused = np.ones(len(first), dtype=bool), _Refusals(rows, first, kinds, target).of

    for name, values in kinds.items():
        for value in unique(values):
            mine = np.flatnonzero(alive & (values == value))
            if len(mine) and all(refused(one) for one in _tried(mine, use).tolist()):
                alive[mine] = False
                rows.left_out[name] = (*rows.left_out.get(name, ()), *_values(rows, name, int(value)))
    if not alive.any():
        raise Infeasible(_none_left(rows, int(first[np.argmin(use)]), target))
    rows.keep_only(alive[kind])
    return rows


@dataclass
class _Refusals:
    """Which kinds of layouts a target refuses; it is asked once about each, or about one of those it refuses alike.

    ``first`` is a row of every kind, ``kinds`` what distinguishes them, ``_told`` values that are refused in any plan.
    """

    rows: Rows
    first: Ints
    kinds: Mapping[str, Codes]
    target: str
    _known: dict[int, bool] = field(default_factory=dict)
    _told: list[dict[str, int]] = field(default_factory=list)

    def of(self, kind: int) -> bool:
        """Whether a kind is refused."""
        if kind not in self._known:
            told = any(all(self.kinds[name][kind] == code for name, code in each.items()) for each in self._told)
            self._known[kind] = told or self._asked(kind)
        return self._known[kind]

    def _asked(self, kind: int) -> bool:
        lost = _counting(self.rows, int(self.first[kind]), self.target)
        for names in (one.decided_by for one in lost):
            if names and self.kinds.keys() >= {*names}:
                self._told.append({name: int(self.kinds[name][kind]) for name in names})
        return bool(lost)


def _columns(rows: Rows) -> dict[str, Codes]:
    """What distinguishes layouts for a target, 0 if an axis is not in use: a narrow column [rows] per axis."""
    columns = {
        name: (np.array(values) > 1).astype(np.int8)[rows.code[name]] if name in ANY_DEGREE else rows.code[name]
        for name, values in rows.domain.items()
        if name not in UNCHECKED_AXES
    }
    first, which = factorize(rows.number(MESH_AXES))  # dp, which is none of those joined, follows from the others
    return columns | {"dp": (rows.at("dp", first) > 1).astype(np.int8)[which]}


def _values(rows: Rows, name: str, value: int) -> tuple[Any, ...]:
    """The values of an axis that a column gives the same number."""
    domain = rows.domain.get(name, ())  # dp has no domain: it follows from other axes
    if name not in ANY_DEGREE:
        return domain[value : value + 1]
    return tuple(size for size in domain if (size > 1) == bool(value))


def _tried(kinds: Ints, use: NDArray[np.int64]) -> Ints:
    """The simplest of some kinds of layouts, and a spread of the others."""
    by_use = kinds[np.argsort(use[kinds], kind="stable")]
    others = by_use[SIMPLEST:]
    some = np.linspace(0, len(others) - 1, min(len(others), SPREAD), dtype=np.int64)
    return np.concatenate([by_use[:SIMPLEST], others[some]])


def _none_left(rows: Rows, row: int, target: str) -> str:
    why = "; ".join(refusals(rows, row))
    if rows.problem.export_target is not None:
        return f"no plan is possible: {target} can express none, not even the simplest: {why}"
    stack = rows.problem.stack.name
    return f"no plan is possible: {target}, the framework of stack {stack}, has none: {why}; try --portable {ANY}"
