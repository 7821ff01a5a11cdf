"""Calls from Python: what is wrong with one is said as clearly as what is wrong with a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from simpar.errors import BadCall
from simpar.files import allowed, suggest

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def refuses_unknown_keywords(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, whose refusal of an unknown keyword names the nearest one that it takes."""
    known = signature(function).parameters

    @wraps(function)
    def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Returned:
        for name in keywords:
            if name not in known:
                raise BadCall(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    f"{suggest(name, known) or allowed(known)}"
                )
        return function(*arguments, **keywords)

    return checked
