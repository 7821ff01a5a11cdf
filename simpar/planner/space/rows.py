"""The uniform space as columns: every legal plan of the axis tables, each once, enumerated in numpy."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from simpar import files
from simpar.errors import Infeasible, UserError
from simpar.files import allowed, suggest
from simpar.plan.choices import name_of, to_file_value, value_of
from simpar.plan.choices.choice import AnyAxis, OptionalAxis
from simpar.plan.choices.mesh import split_order
from simpar.plan.plan import Plan
from simpar.plan.schedules import schedule_named
from simpar.planner.problem import Problem
from simpar.planner.space.axes import (
    ALL_NAMES,
    LATE_AXES,
    MEMORY_AXES,
    companions,
    default_of,
    domain_of,
    list_offered,
    rule_of,
)
from simpar.planner.space.portable import UNCHECKED_AXES, keep_expressible
from simpar.planner.space.table import Rows, factorize

WORDS = {"true": True, "false": False, "on": True, "off": False}
ORIGIN = "origin"


def enumerate_space(problem: Problem) -> Rows:
    """All rows of the space of a problem. Raises UserError for an unknown axis, Infeasible if none is left."""
    return keep_expressible(join_axes(memory_rows(problem), LATE_AXES))


def memory_rows(problem: Problem) -> Rows:
    """Rows over the axes that memory depends on. Raises as :func:`enumerate_space` does."""
    return keep_expressible(join_axes(Rows(problem), (*MEMORY_AXES, *list_offered(problem)))).forget()


def with_late_axes(rows: Rows) -> Rows:
    """Rows joined with the axes that memory does not depend on; column ORIGIN is the row each comes from."""
    rows.code[ORIGIN] = np.arange(rows.count, dtype=np.int32)
    return keep_expressible(join_axes(rows, LATE_AXES)).forget()


def late_count(rows: Rows) -> int:
    """How many rows result from joining the late axes, counted once for rows alike in all that decides it.

    What decides it are the columns that the rules of these axes read: they are joined to one row of each combination of
    those that are known, until the rules read no others.
    """
    names: tuple[str, ...] = ()
    while True:
        first, which = factorize(rows.number(names))
        some, read = rows.subset(first), set[str]()
        some.read, some.code[ORIGIN] = read, np.arange(some.count, dtype=np.int32)
        if rows.problem.target is not None:
            read.update(set(rows.domain) - set(UNCHECKED_AXES))
        with suppress(Infeasible):  # none of these
            joined = keep_expressible(join_axes(some, LATE_AXES))
            if read & set(rows.domain) <= set(names):
                return int(np.bincount(which)[joined.code[ORIGIN]].sum())
        if read & set(rows.domain) <= set(names):
            return 0
        names = tuple(name for name in rows.domain if name in read or name in names)


def join_axes(rows: Rows, axes: Sequence[AnyAxis]) -> Rows:
    """Join axes to rows, in order, and keep the rows that are legal and new. Raises Infeasible if none is left."""
    fixed = fixed_values(rows.problem.constraints.fixed)
    for axis in axes:
        offered_values = domain_of(axis, rows.problem)
        domain = in_order(fixed[axis.name], offered_values) if axis.name in fixed else tuple(offered_values)
        domain = (default_of(axis), *domain) if isinstance(axis, OptionalAxis) else domain
        before = rows.count
        rows.join(axis.name, domain, rule_of(axis))
        if axis.name == "pp" and "dp" in fixed:
            rows.keep_only(np.isin(rows["dp"], fixed["dp"]))
        if before and not rows.count:
            raise Infeasible(_emptied(rows, axis, fixed, f"{before}"))
        # Rows in which an optional axis changes nothing are kept once each: those that are gone had no legal value.
        held = isinstance(axis, OptionalAxis) and default_of(axis) not in fixed.get(axis.name, (default_of(axis),))
        if held and rows.count < before and not rows.code[axis.name].any():
            raise Infeasible(_emptied(rows, axis, fixed, f"{before - rows.count} where it matters"))
    return rows


def _emptied(rows: Rows, last: AnyAxis, fixed: dict[str, tuple[Any, ...]], before: str) -> str:
    name, domain = last.name, rows.domain[last.name][isinstance(last, OptionalAxis) :]
    given = {axis: values for axis, values in fixed.items() if axis in (*rows.domain, "dp")}
    said = ", ".join(f"{axis} = {'|'.join(map(str, values))}" for axis, values in given.items())
    tried = "|".join(str(value) for value in list(domain)[:8])
    return f"no plan is possible: {name} = {tried or 'nothing'} leaves none of {before}" + (
        f"; fixed: {said}" if said else ""
    )


DROPLESS = ("capacity_factor",)
"""Axes on which "none" is a value of its own."""


def fixed_values(fixed: Any) -> dict[str, tuple[Any, ...]]:
    """The allowed values of each fixed axis, without duplicates: one, or several as a list or separated by commas.

    The given order is not kept (:func:`in_order`). Raises UserError for an axis that the space does not have.
    """
    result: dict[str, tuple[Any, ...]] = {}
    for name, value in fixed.items():
        axis = name_of(name)
        if axis not in (*ALL_NAMES, "dp"):
            raise UserError(f"--fix {name}: no axis{suggest(name, ALL_NAMES) or allowed(ALL_NAMES)}")
        items = value.split(",") if isinstance(value, str) else value
        values = items if isinstance(items, list | tuple) else [items]
        result[axis] = in_order([_typed(axis, item) for item in values])
    return result


def in_order(values: Sequence[Any], offered_values: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Distinct values in the order that they have in every space: as the axis offers them, then by size or name.

    The position of a value decides which of equal plans is named first, and which value stands for all if they make no
    difference. It must not depend on the order in which a user writes them.
    """
    known = {value: place for place, value in enumerate(offered_values)}

    def place(value: Any) -> tuple[Any, ...]:
        number = float(value) if isinstance(value, int | float) else 0.0
        return known.get(value, len(known)), value is not None, isinstance(value, str), number, str(value)

    return tuple(sorted(dict.fromkeys(values), key=place))


def _typed(axis: str, item: Any) -> Any:
    """A value as the Plan has it. Raises UserError if no plan can have it."""
    value: Any = _scalar(item) if isinstance(item, str) else item
    value = None if axis in DROPLESS and value == "none" else value
    plan = files.parse(Plan, {**to_file_value(axis, value), **companions(axis)}, source=f"--fix {axis}={item}")
    if axis == "order":
        return "-".join(split_order(value))
    read = value_of(plan, axis)
    return schedule_named(read) if axis == "schedule" else read


def _scalar(text: str) -> Any:
    """Parse text as a truth value, a number or a string."""
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    whole, point, rest = text.partition(".")
    if whole.lstrip("-").isdecimal() and (not point or rest.isdecimal()):
        return float(text) if point else int(text)
    return text
