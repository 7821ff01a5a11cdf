"""The plans next to a plan, generated from the moves that its choices declare (:mod:`simpar.plan.choices`).

Values to try one at a time (:func:`single_changes`), those of a joint space around a plan (:func:`values_around`) and
those of menus (:func:`menus`), the changes that values require of other choices, and replacements of what a framework
does not have. None of them is checked here: a rule of :mod:`simpar.layout.check` may refuse it.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from simpar.plan.choices import BY_NAME, CHOICES, MOVES, value_of
from simpar.plan.choices.choice import Change, Moves, divisors
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan

FOLLOW_CLUSTER = {"nodes": ("dp",), "hardware": ("dp",)}
"""Choices of a plan that follow from the number of nodes and their profile."""
IN_MENUS = tuple(moves.name for moves in MOVES if moves.size or moves.menu)
"""Choices that have a menu."""
_RANKED = tuple(
    (choice.name, choice.moves, choice.moves.saves)
    for choice in CHOICES
    if choice.moves is not None and choice.moves.saves is not None
)
"""Choices whose values are ranked by the memory that they save, with their moves and the rank of a value."""


def single_changes(plan: Plan, target: Workload, *, is_measured: bool = False) -> Iterator[Change]:
    """Changes of one choice of a resolved plan, with the keys that belong to it.

    ``is_measured``: also those that only help a run with other switches than its stack has by default.
    """
    for moves in MOVES:
        if moves.near is not None and (is_measured or not moves.for_measured):
            for value in moves.near(plan, target):
                yield next(changes_to(plan, moves.name, value))


def changes_to(plan: Plan, name: str, value: Any) -> Iterator[Change]:
    """The keys that give a choice a value; then the same with more keys, with which it is legal more often."""
    moves = BY_NAME[name].moves
    yield from (moves.change(plan, value) if moves is not None and moves.change is not None else ({name: value},))


def values_around(plan: Plan, target: Workload) -> dict[str, list[Any]]:
    """Values of every choice that a joint space around a plan varies, the plan's own among them.

    Sizes are ascending; of other choices, the plan's value comes first.
    """
    near: dict[str, list[Any]] = {}
    for moves in MOVES:
        now = value_of(plan, moves.name)
        if moves.size is not None:
            most = moves.size.divides and moves.size.divides(target)
            sizes = {*moves.around, max(now // 2, 1), 2 * now}
            near[moves.name] = sorted({now, *(size for size in sizes if most is None or most % size == 0)})
        elif moves.around:
            near[moves.name] = list(dict.fromkeys((now, *moves.around)))
    return near


def is_size(name: str) -> bool:
    """Whether a choice is a degree or a count."""
    moves = BY_NAME[name].moves
    return moves is not None and moves.size is not None


def menus(plan: Plan, target: Workload) -> dict[str, list[Any]]:
    """All values of every choice that menus offer, in order, the plan's own among them."""
    return {moves.name: _menu(moves, plan, target) for moves in MOVES if moves.name in IN_MENUS}


def _menu(moves: Moves, plan: Plan, target: Workload) -> list[Any]:
    now = value_of(plan, moves.name)
    if moves.size is None:
        values = list(moves.menu(plan, target)) if moves.menu is not None else []
        return values if now in values else [*values, now]
    most = moves.size.most(plan, target)
    sizes = range(1, most + 1) if moves.size.divides is None else divisors(moves.size.divides(target), most)
    return sorted({*sizes, now})


def changes_making_room(plan: Plan, change: Change) -> Iterator[Change]:
    """A change with others that make room for it, those that leave the mesh as it is first; then with pairs of them.

    None of them makes it idle, as a single pipeline rank does with chunks.
    """
    declared = sorted(MOVES, key=lambda moves: BY_NAME[moves.name].section == "mesh")
    single = [more for moves in declared if moves.room is not None and (more := moves.room(plan))]
    leading = frozenset[str]().union(*map(leaders, change))
    for more in (*single, *({**one, **other} for one, other in combinations(single, 2))):
        if not {*more} & {*change} and all(more.get(leader) != 1 for leader in leading):
            yield {**more, **change}


def choice_of(field: str) -> str:
    """The choice that a field of a section is, by name; the field itself if it is none."""
    return next((choice.name for choice in CHOICES if field in (choice.key, choice.field)), field)


def replacements(plan: Plan, name: str) -> Iterator[Change]:
    """Changes that replace the value of a choice, the nearest first, except those that change nothing."""
    moves, now = BY_NAME[name].moves if name in BY_NAME else None, plan.flat_values()
    for change in moves.replacements(plan) if moves is not None and moves.replacements is not None else ():
        if any(now.get(key) != value for key, value in change.items()):
            yield change


def savings(plan: Plan) -> Iterator[Change]:
    """Changes of one choice around a plan that save memory, in the order of a plan file."""
    for name, moves, saves in _RANKED:
        rank = saves(plan.get(name))
        yield from ({name: value} for value in moves.around if saves(value) > rank)


def forgone_savings(plan: Plan, other: Plan) -> tuple[str, ...]:
    """Choices with which a plan saves more memory than another, in the order of a plan file."""
    return tuple(name for name, _, saves in _RANKED if saves(other.get(name)) < saves(plan.get(name)))


def leaders(name: str) -> frozenset[str]:
    """Choices that lead a choice, directly or through others: their changes may bring one of it along."""
    moves = BY_NAME[name].moves if name in BY_NAME else None
    return frozenset({moves.led_by, *leaders(moves.led_by)}) if moves is not None and moves.led_by else frozenset()


def dependent_choices(change: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the choices to leave open under a ``change`` of others; ``before`` are the degrees before it."""
    names = dict.fromkeys(name for key in change for name in choices_following(key))
    for choice in CHOICES:
        if choice.idle_at_one and 1 in (change.get(choice.name), before.get(choice.name)) and choice.name in change:
            names[choice.idle_at_one] = None
    return tuple(name for name in names if name not in change)


def choices_following(key: str) -> tuple[str, ...]:
    """Names of the choices that follow from a key of a plan or of its cluster."""
    return BY_NAME[key].reopens if key in BY_NAME else FOLLOW_CLUSTER.get(key, ())


def reset_dependents(change: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The plan's stated values that a ``change`` leaves open again, each with None ("follows from the rest")."""
    stated = {name: plan.get(name) for name in dependent_choices(change, before={})}
    if stated.get("sequence_parallel") is False:  # it follows as well: no sequence is sharded over one rank
        del stated["sequence_parallel"]
    return {name: None for name, value in stated.items() if value is not None}
