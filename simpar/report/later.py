"""Fields of a result that are made when they are first read: what only pictures and some files need."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from simpar.dataclass import dataclass


@dataclass(frozen=True)
class Later:
    """What makes a value that only some who read a result need."""

    make: Callable[[], Any]


class WhenAsked:
    """A field that may be given as a :class:`Later`, which is made when the field is first read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        value = None if instance is None else instance.__dict__[self.name]
        if isinstance(value, Later):
            value = instance.__dict__[self.name] = value.make()
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


def values_of(instance: Any) -> dict[str, Any]:
    """All fields of a dataclass, made where they were not asked for yet: what other processes get."""
    return {each.name: getattr(instance, each.name) for each in fields(instance)}
