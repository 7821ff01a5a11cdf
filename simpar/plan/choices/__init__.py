"""The choices of a plan, each declared once: a file a section, and queries over all of them."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from simpar.plan.choices import (
    context_parallel,
    data_parallel,
    execution,
    experts,
    memory,
    mesh,
    micro_batch,
    numerics,
    offload,
    pipeline,
    tensor_parallel,
    tuning,
)
from simpar.plan.choices.choice import AnyAxis, Axis, Choice, OptionalAxis


class _Ordered(Protocol):
    """What names the one that it comes after."""

    @property
    def name(self) -> str:
        """The name of its choice."""

    @property
    def after(self) -> str | None:
        """The name of the one before it."""


_Joined = TypeVar("_Joined", bound=_Ordered)


def _in_order(each: Iterable[_Joined]) -> tuple[_Joined, ...]:
    """Axes as they are joined, or moves as they are tried: each behind the one that it names, the others first."""
    waiting, joined = list(each), list[_Joined]()
    while waiting:
        known = [axis.name for axis in joined]
        ready = [axis for axis in waiting if axis.after is None or axis.after in known]
        if not ready:
            raise ValueError(f"choices behind unknown ones: {', '.join(axis.name for axis in waiting)}")
        for axis in ready:
            waiting.remove(axis)
            place = len(joined) if axis.after is None else [each.name for each in joined].index(axis.after) + 1
            joined.insert(place, axis)
    return tuple(joined)


CHOICES: tuple[Choice, ...] = (
    *mesh.CHOICES,
    *micro_batch.CHOICES,
    *pipeline.CHOICES,
    *data_parallel.CHOICES,
    *tensor_parallel.CHOICES,
    *context_parallel.CHOICES,
    *experts.CHOICES,
    *memory.CHOICES,
    *offload.CHOICES,
    *tuning.CHOICES,
    *numerics.CHOICES,
    *execution.CHOICES,
)
"""Every choice of a plan, by section, in the order of a plan file."""
BY_NAME = {choice.name: choice for choice in CHOICES}
AXES = _in_order(choice.axis for choice in CHOICES if isinstance(choice.axis, Axis))
"""The axes of every search of the uniform space, in the order in which they are joined."""
OPTIONAL_AXES = _in_order(choice.axis for choice in CHOICES if isinstance(choice.axis, OptionalAxis))
"""The axes that are searched on request, in the order in which they are joined."""
MOVES = _in_order(choice.moves for choice in CHOICES if choice.moves is not None)
"""Along which choices plans have neighbours, in the order in which these are tried."""
SYNONYMS = {word: choice.key or choice.name for choice in CHOICES for word in choice.synonyms}
"""Flat keys by other frameworks' words for them."""
SECTIONS: dict[str, tuple[str, ...]] = {
    section: tuple(each.name for each in CHOICES if each.section == section and each.key == each.name == each.field)
    for section in dict.fromkeys(each.section for each in CHOICES if each.section)
}
"""For every section of a plan, its fields that a plan may also have as keys of its own."""
SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}


COLUMNS = tuple(choice.name for choice in CHOICES if choice.is_column)
"""The choices of which tables of plans have columns."""
MEASURED = {choice.name: choice.measured for choice in CHOICES if choice.measured}
"""The choices of which tables of measured runs have columns of their own, and what these hold."""
ANY_DEGREE = tuple(choice.name for choice in CHOICES if choice.any_degree)
"""The choices of which a framework has any number, or 1."""
BY_STACK: dict[str, tuple[str, ...]] = {
    section: tuple(each.field for each in CHOICES if each.by_stack and each.section == section)
    for section in dict.fromkeys(each.section for each in CHOICES if each.by_stack)
}
"""For every section of a plan, the fields that the software stack decides where a plan leaves them open."""


def name_of(key: str) -> str:
    """The choice that a key of a plan, or a synonym of one, stands for; the key itself where it is no choice."""
    key = SYNONYMS.get(key, key)
    return next((choice.name for choice in CHOICES if choice.key == key), key)


def path_of(name: str) -> tuple[str, str]:
    """Section and field of a choice in a plan; the section is empty for keys of the plan itself."""
    return BY_NAME[name].path if name in BY_NAME else ("", name)


def value_of(plan: Any, name: str) -> Any:
    """A plan's value of a choice or key, as searches name it."""
    choice = BY_NAME.get(name)
    return choice.read(plan) if choice and choice.read else plan.get(name)


def to_file_value(name: str, value: Any) -> dict[str, Any]:
    """A value of a choice as a plan file has it."""
    section, field = path_of(name)
    if not section or (name == field and BY_NAME[name].key == name):
        return {name: value}
    return {section: {field: mesh.split_order(value)}}


def left_to_stacks(section: str) -> tuple[str, ...]:
    """The choices of a section that the software stack decides where a plan leaves them open, by name."""
    return tuple(choice.name for choice in CHOICES if choice.by_stack and choice.section == section)


def made_for(what: str) -> tuple[str, ...]:
    """All choices whose values are made for one LAYOUT or JOB, by name."""
    return tuple(choice.name for choice in CHOICES if what in choice.made_for)


def names_that_decide(what: str) -> tuple[str, ...]:
    """All axes that decide MEMORY, BLOCKS, SHAPE or REPLICAS, by name, in the order in which they are joined."""
    axes: tuple[AnyAxis, ...] = (*AXES, *OPTIONAL_AXES)
    return tuple(axis.name for axis in axes if what in axis.decides)
