"""What a certificate covers: the values of every axis, which axes were held, and what the space leaves out.

All of it is read from the tables of axes, so that it follows their changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from simpar.plan.choices import AXES, CHOICES, OPTIONAL_AXES, SECTION_OF, path_of
from simpar.plan.choices.choice import AnyAxis
from simpar.plan.plan import Plan
from simpar.planner.problem import Problem
from simpar.planner.space.axes import domain_of, list_offered
from simpar.planner.space.portable import framework_for
from simpar.planner.space.rows import fixed_values, in_order

MAX_LISTED_VALUES = 6
"""The number of values that are listed one by one."""


def scope(problem: Problem, refused: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> dict[str, Any]:
    """Values searched by axis, values held by axis with the reason, and what is left out, in words.

    ``refused`` are the values by axis that the export target has left out.
    """
    offers, asked = domains(problem), fixed_values(problem.constraints.fixed)
    searched = {
        name: tuple(value for value in values if value not in refused.get(name, ())) for name, values in offers.items()
    }
    held = {name: values[0] for name, values in searched.items() if len(values) == 1}
    plan = {name: _value(problem.base, name) for name in (*_names_of(problem), *_elsewhere())}
    return {
        "searched": {name: list(values) for name, values in searched.items() if len(values) > 1},
        "held": held | plan,
        "restricted": [name for name in asked if name in searched],
        "left_out": list(describe_left_out(problem, offers)),
        "decided_by": _decided_by(problem, refused),
    }


def _decided_by(problem: Problem, refused: Mapping[str, Sequence[Any]]) -> dict[str, Any] | None:
    """The target that restricts plans, whether it was asked for, and the values it left out."""
    if problem.target is None:
        return None
    values = {name: list(values) for name, values in refused.items() if values}
    return {"target": problem.target, "asked": problem.export_target is not None, "left_out": values}


def domains(problem: Problem) -> dict[str, tuple[Any, ...]]:
    """The values that the space of a problem offers for each of its axes."""
    fixed = fixed_values(problem.constraints.fixed)
    result = {}
    axes: tuple[AnyAxis, ...] = (*AXES, *list_offered(problem))
    for axis in axes:
        usual = domain_of(axis, problem)
        result[axis.name] = in_order(fixed[axis.name], usual) if axis.name in fixed else tuple(usual)
    return result


def describe_left_out(problem: Problem, searched: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """What no row of the space has although a plan may: values that an axis does not offer, and exclusions by rules."""
    fixed = fixed_values(problem.constraints.fixed)
    for axis in AXES:
        possible = () if axis.possible is None or axis.name in fixed else axis.possible(problem)
        if missing := [value for value in possible if value not in searched[axis.name]]:
            yield f"{axis.name} {list_values(missing)}"
    yield from (axis.omits for axis in AXES if axis.omits and len(searched[axis.name]) > 1)


def list_values(values: Sequence[Any]) -> str:
    """A few values, and how many more there are."""
    more = f" and {len(values) - MAX_LISTED_VALUES} more" if len(values) > MAX_LISTED_VALUES else ""
    return ", ".join(map(str, values[:MAX_LISTED_VALUES])) + more


def _names_of(problem: Problem) -> list[str]:
    """Axes on request that are not searched."""
    searched = {axis.name for axis in list_offered(problem)}
    return [axis.name for axis in OPTIONAL_AXES if axis.name not in searched]


def _elsewhere() -> list[str]:
    """Keys of a plan that are not axes."""
    return [each.name for each in CHOICES if each.axis is None and each.is_held and each.name in SECTION_OF]


def default_axis_values() -> dict[str, Any]:
    """The default of a Plan for every axis that a search may hold."""
    return {name: _value(Plan(), name) for name in (*(axis.name for axis in OPTIONAL_AXES), *_elsewhere())}


def _value(plan: Plan, name: str) -> Any:
    section, field = path_of(name)
    return plan.model_dump(mode="json")[section][field]


def not_portable(problem: Problem, plan: Plan) -> dict[str, Any] | None:
    """Why the framework of the problem's stack cannot express a plan (which has its dp); None if it can.

    Also None if the search was restricted to a target, or if no target has the stack.
    """
    own = None if problem.export_target is not None else framework_for(problem, plan)
    return None if own is None or not own.reasons else {"target": own.name, "reasons": own.reasons}
