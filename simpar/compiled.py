"""Loops over numbers that run compiled where numba is installed and there is much to do, else as plain Python.

They use only what both support: numbers, tuples, flat arrays that are read and written entry by entry, and lists made
inside. numba is imported once a loop has had enough to do, and compiles once per machine; before it has, more must be
there to do.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
HOT_ENTRIES = 2**19
"""Number of array entries that plain loops process in about the time that importing numba takes."""
TO_COMPILE = 5
"""How many times longer numba takes to compile a loop than to be imported and to load what it compiled."""


def is_kept(source: str | Path, name: str) -> bool:
    """Whether numba keeps what it compiled of a function of a source file, as the file is now.

    It is not asked, which would import it: what it keeps lies in its cache, under the names of file and function.
    """
    file = Path(source).absolute()
    near, asked = f"{file.parent.name}_{hashlib.sha1(str(file.parent).encode()).hexdigest()}", os.environ
    usual = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache").expanduser()
    own = [file.parent / "__pycache__", Path(asked.get("XDG_CACHE_HOME") or usual) / "numba" / near]
    folders = [Path(asked["NUMBA_CACHE_DIR"]) / near] if asked.get("NUMBA_CACHE_DIR") else own
    python = f"py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags if os.name == 'posix' else ''}"
    kept = (each for folder in folders for each in folder.glob(f"{file.stem}.{name}-*.{python}.nbi"))
    return any(each.stat().st_mtime >= file.stat().st_mtime for each in kept)


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

        Where it was never compiled, TO_COMPILE times as many. For callers whose alternative is faster than the plain
        Python loop.
        """
        self.seen += entries
        if self._compiled is None and self.seen >= HOT_ENTRIES and find_spec("numba"):
            code = self.function.__code__
            if self.seen >= TO_COMPILE * HOT_ENTRIES or is_kept(code.co_filename, code.co_qualname):
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
