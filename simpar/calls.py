"""Calls from Python: what is wrong with one is said as clearly as what is wrong with a file."""

import gc
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from simpar.errors import BadCall
from simpar.files import allowed, refused, short, suggest

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Taken = TypeVar("Taken")
WORDS: dict[type, str] = {Mapping: "a dict", str: "a name or path", Path: ""}


class Strict(BaseModel):
    """The base of simpar's pydantic models: frozen, no key but its own, defined when first used.

    A wrong call raises BadCall in simpar's words; ``model_validate`` raises pydantic's ValidationError, as it does for
    parts of a model, so that the whole of a file can name the place of every problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __init__(self, *unnamed: Any, **data: Any) -> None:
        name = type(self).__name__
        if unnamed:
            raise BadCall(f"{name}: takes its values by name, as in {name}({next(iter(type(self).model_fields))}=...)")
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise refused(type(self), error) from None

    # without this mark pydantic would call __init__ for every part of a model, and lose its place in a file
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    __init__.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("self", Parameter.POSITIONAL_ONLY), Parameter("data", Parameter.VAR_KEYWORD)]
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.__signature__ = _SignatureLater()  # type: ignore[assignment]


class _SignatureLater:
    """Stands for the signature of a model that is not defined yet, and defines it: editors ask before any call does."""

    def __get__(self, instance: object, owner: type[BaseModel]) -> Signature:
        owner.model_rebuild()
        return owner.__signature__


def refuses_unknown_keywords(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, whose refusal of an unknown keyword names the nearest one that it takes."""
    known = [name for name in signature(function).parameters if name not in ("self", "cls")]
    called = function.__qualname__.removesuffix(".__new__").removesuffix(".__init__")

    @wraps(function)
    def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Returned:
        for name in keywords:
            if name not in known:
                raise BadCall(
                    f"{called}() got an unexpected keyword argument {name!r}{suggest(name, known) or allowed(known)}"
                )
        return function(*arguments, **keywords)

    return checked


def collects_later(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, during which nothing is collected; what it leaves is looked through when the next objects come.

    Lowering a layout makes some 60,000 objects that all stay until it is simulated. At Python's default thresholds the
    collector goes through them again and again, which is a tenth of the time of one layout.
    """

    @wraps(function)
    def collecting_later(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Returned:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments, **keywords)
        finally:
            if was_on:
                gc.enable()

    return collecting_later


def coerce(value: Any, kind: type[Taken], argument: str, ways: Mapping[type, Callable[[Any], Taken]]) -> Taken:
    """The ``argument`` of a call as a ``kind``: one already, or made in the way of its type. Raises BadCall."""
    if isinstance(value, kind):
        return value
    for way, make in ways.items():
        if isinstance(value, way):
            return make(value)
    kinds = ", ".join(filter(None, (WORDS.get(each, each.__name__) for each in (kind, *ways))))
    raise BadCall(f"{argument} = {short(value)}: is of type {type(value).__name__}; allowed: {kinds}")
