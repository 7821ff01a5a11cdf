"""The axes of the uniform space, by what searches do with them: always joined, joined late, or on request.

The choices of a plan declare them (:mod:`simpar.plan.choices`). Optional axes have the plan's value unless values are
asked for (``--fix axis=value,value``); each value is tried where it changes anything and the rules of
:mod:`simpar.layout.check` allow it, and other rows have the neutral value, the default of a Plan.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from simpar.layout.check import keeps_rules
from simpar.layout.decider import Decider, fill_open_choices
from simpar.layout.deciders import BY_STACK, DISPATCH, SCHEME
from simpar.layout.layout import Layout, stated_choices
from simpar.plan.choices import AXES, CHOICES, OPTIONAL_AXES, name_of, value_of
from simpar.plan.choices.choice import MEMORY, AnyAxis, Axis, OptionalAxis, Rules
from simpar.plan.plan import Plan
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.table import Mask, Rows, factorize
from simpar.simulation import may_be_tuned

AXIS_NAMES = tuple(axis.name for axis in AXES)
OPTIONAL_NAMES = tuple(axis.name for axis in OPTIONAL_AXES)
ALL_NAMES = (*AXIS_NAMES, *OPTIONAL_NAMES)
MEMORY_AXES = tuple(axis for axis in AXES if MEMORY in axis.decides)
_DECIDERS: tuple[Decider[Any], ...] = (DISPATCH, *BY_STACK, SCHEME)
_NEEDED = {name for decider in _DECIDERS for name in decider.needs}
_COLUMNS = tuple(choice.name for choice in CHOICES if choice.is_number and choice.name not in _NEEDED)
"""Sizes from which no other choice of a row is decided."""
LATE_AXES = tuple(axis for axis in AXES if MEMORY not in axis.decides)
"""Axes that do not change memory: they are joined only to the rows that fit."""


def default_of(axis: OptionalAxis) -> Any:
    """The value of rows in which an optional axis changes nothing."""
    return value_of(Plan(), axis.name)


def domain_of(axis: AnyAxis, problem: Problem) -> Sequence[Any]:
    """The values that an axis offers; of an optional axis, the plan's if that is not the default."""
    if isinstance(axis, Axis):
        return axis.domain(problem)
    value = value_of(problem.base, axis.name)
    return () if value == default_of(axis) else (value,)


def companions(name: str) -> Mapping[str, Any]:
    """Values of other choices that a value of an axis requires."""
    return next((axis.companions for axis in OPTIONAL_AXES if axis.name == name), {})


def list_offered(problem: Problem) -> tuple[OptionalAxis, ...]:
    """Optional axes that are asked for, or for which the base plan differs from the default."""
    asked = [name_of(name) for name in problem.constraints.fixed]
    return tuple(axis for axis in OPTIONAL_AXES if axis.name in asked or domain_of(axis, problem))


def rule_of(axis: AnyAxis) -> Callable[[Rows], Mask]:
    """The mask of rows to keep once an axis is joined."""
    return axis.keep if isinstance(axis, Axis) else partial(_keep_where_it_matters, axis)


def _keep_where_it_matters(axis: OptionalAxis, rows: Rows) -> Mask:
    """Rows with asked values where these differ and are legal, and with the neutral value elsewhere."""
    asked_for, differs = rows.code[axis.name] > 0, axis.matters(rows)
    kept = np.flatnonzero(asked_for == differs)
    asked = kept[asked_for[kept]]
    mask = np.zeros(rows.count, dtype=bool)
    mask[kept] = True
    if len(asked):
        some = rows.subset(asked)
        legal = axis.legal(some)
        for rules in axis.rules:
            legal = legal & rows_keeping(some, rules)
        mask[asked] = legal
    return mask


def rows_keeping(rows: Rows, rules: Rules) -> Mask:
    """Rows whose layouts keep some rules: in columns of sizes, once per combination of the other choices they read."""
    problem = rows.problem
    target = problem.workload
    first, which = factorize(rows.number([name for name in rules.reads if name not in _COLUMNS]))
    keeps = np.zeros(rows.count, dtype=bool)
    for at, row in enumerate(first.tolist()):
        plan = fill_dp(rows, row)
        if plan.tuning.is_used and not may_be_tuned(plan):
            continue
        alike = np.flatnonzero(which == at)
        choices = fill_open_choices(stated_choices(plan), (DISPATCH, *BY_STACK), problem.stack)
        layout = Layout.of(plan, fill_open_choices(choices, (SCHEME,), target))
        columns = layout.with_columns({name: rows[name][alike] for name in _COLUMNS if name in ("dp", *rows.domain)})
        keeps[alike] = keeps_rules(columns, target, *rules.names)
    return keeps
