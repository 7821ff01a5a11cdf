"""What a decider is: one step of deciding a plan."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from simpar.dataclass import dataclass

Known = TypeVar("Known", contravariant=True)


@dataclass(frozen=True)
class Decider(Generic[Known]):
    """One step of deciding a plan.

    ``values`` are those of the choices that it ``decides``, by name, from the values of those that it ``needs``
    (keywords) and from what else is known. What a plan states itself stays; a choice is left open where its value is
    ``open_value``.
    """

    decides: tuple[str, ...]
    needs: tuple[str, ...]
    values: Callable[..., Mapping[str, Any]]
    open_value: object = None


def fill_open_choices(choices: Mapping[str, Any], deciders: Iterable[Decider[Known]], known: Known) -> dict[str, Any]:
    """Values of choices by name, in which some deciders have decided what is left open. Raises UserError."""
    result = dict(choices)
    for decider in deciders:
        values = decider.values(known, **{name: result[name] for name in decider.needs})
        for name, value in values.items():
            if result[name] == decider.open_value and value is not None:
                result[name] = value
    return result
