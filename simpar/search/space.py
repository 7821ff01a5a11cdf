"""The uniform space as columns: every legal plan of the axis table, each once, enumerated in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simpar.errors import Infeasible, UserError
from simpar.files import allowed, suggest
from simpar.plan import flat
from simpar.plan.plan import Plan
from simpar.search.axes import AXES, AXIS_NAMES, PATHS, Rows
from simpar.search.problem import Problem

WORDS = {"true": True, "false": False, "on": True, "off": False}


def enumerate_space(problem: Problem) -> Rows:
    """All rows of the space of a problem. Raises UserError for an unknown axis, Infeasible where none is left."""
    fixed = fixed_values(problem.constraints.fixed)
    rows = Rows(problem)
    for axis in AXES:
        domain = fixed.get(axis.name, axis.domain(problem))
        rows.join(axis.name, domain)
        before = rows.count
        rows.take(axis.keep(rows))
        if not rows.count:
            raise Infeasible(_emptied(axis.name, domain, fixed, before))
    return rows


def _emptied(name: str, domain: Sequence[Any], fixed: dict[str, tuple[Any, ...]], before: int) -> str:
    given = {
        axis: values for axis, values in fixed.items() if AXIS_NAMES.index(axis) <= AXIS_NAMES.index(name)
    }
    said = ", ".join(f"{axis} = {'|'.join(map(str, values))}" for axis, values in given.items())
    tried = "|".join(str(value) for value in list(domain)[:8])
    return f"no plan is possible: {name} = {tried or 'nothing'} leaves none of {before}" + (
        f"; fixed: {said}" if said else ""
    )


def fixed_values(fixed: Any) -> dict[str, tuple[Any, ...]]:
    """The values that each fixed axis may have: one, or several in a list or separated by commas.

    Raises UserError for an axis that the space does not have.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in fixed.items():
        axis = {"rank_order": "order"}.get(flat.SYNONYMS.get(name, name), flat.SYNONYMS.get(name, name))
        if axis not in AXIS_NAMES:
            raise UserError(f"--fix {name}: no axis{suggest(name, AXIS_NAMES) or allowed(AXIS_NAMES)}")
        items = value.split(",") if isinstance(value, str) else value
        values = items if isinstance(items, list | tuple) else [items]
        found[axis] = tuple(_typed(axis, item) for item in values)
    return found


def _typed(axis: str, item: Any) -> Any:
    """A value as the Plan has it. Raises UserError."""
    if not isinstance(item, str):
        return item
    text = item.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return int(text)
    except ValueError:
        if axis in ("schedule", "recompute", "order", "precision"):
            return text
        raise UserError(f"--fix {axis}={item}: wants a whole number, true or false") from None


def plan_of(rows: Rows, index: int) -> Plan:
    """The plan of one row, on top of the problem's base plan."""
    sections: dict[str, dict[str, Any]] = {}
    loose: dict[str, Any] = {}
    for name in AXIS_NAMES:
        value = rows.domain[name][rows.code[name][index]]
        value = flat.axes(value) if name == "order" else value
        section, field = PATHS.get(name, (flat.SECTION_OF.get(name, ""), name))
        if section:
            sections.setdefault(section, {})[field] = value
        else:
            loose[name] = value
    base = rows.problem.base.model_dump(exclude={"predicted"})
    merged = {section: {**base[section], **values} for section, values in sections.items()}
    return Plan.model_validate({**base, **merged, **loose})
