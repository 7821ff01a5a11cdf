"""Loops over numbers that run compiled where numba is installed and there is much to do, else as plain Python.

They use only what both support: numbers, tuples, flat arrays that are read and written entry by entry, and lists made
inside. numba is imported once a loop has had enough to do, and compiles once per machine.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
HOT_ENTRIES = 2**19
"""Number of array entries that plain loops process in about the time that importing numba takes."""


class Loop(Generic[P, R]):
    """A function of numbers, arrays and tuples of these, together with the functions that it calls.

    Results are the same, compiled or not: sums are taken in the same order. Arrays are written in place.
    """

    def __init__(self, function: Callable[P, R], *helpers: Callable[..., object]) -> None:
        self.function, self.helpers = function, helpers
        self.seen = 0
        self._compiled: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, compiled once its calls have processed many entries."""
        return (self.compile_if_hot() or self.plain)(*args, **kwargs)

    def compile_if_hot(self, entries: int = 0) -> Callable[P, R] | None:
        """The compiled function once HOT_ENTRIES entries were processed, these ``entries`` included; None before.

        For callers whose alternative is faster than the plain Python loop.
        """
        self.seen += entries
        if self._compiled is None and self.seen >= HOT_ENTRIES and find_spec("numba"):
            self._compiled = self.compiled()
        return self._compiled

    def plain(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As :meth:`__call__`, never compiled; on lists, from which Python reads single entries faster."""
        pairs: list[tuple[NDArray[np.generic], list[Any]]] = []
        result = self.function(*(_on_lists(each, pairs) for each in args), **kwargs)  # type: ignore[arg-type]
        for array, entries in pairs:
            array[:] = entries
            self.seen += len(entries)
        return result

    def compiled(self) -> Callable[P, R]:
        """The function as numba compiles it. Raises ImportError without numba."""
        numba, extending = import_module("numba"), import_module("numba.extending")
        for helper in self.helpers:
            extending.register_jitable(helper)
        made: Callable[P, R] = numba.njit(cache=True)(self.function)
        return made


def _on_lists(value: object, pairs: list[tuple[NDArray[np.generic], list[Any]]]) -> object:
    """A value with lists in place of its arrays, which are added to the pairs."""
    if isinstance(value, np.ndarray):
        pairs.append((value, value.tolist()))
        return pairs[-1][1]
    if isinstance(value, tuple):
        make = getattr(type(value), "_make", tuple)
        return make([_on_lists(each, pairs) for each in value])
    return value
