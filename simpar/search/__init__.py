"""Searches for the best plan: the certified optimum among plans that launchers can express, or operator shardings.

``simpar.search(model, cluster, training)`` works whether or not this package has been imported, because the package
itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from simpar.search.api import search
from simpar.search.problem import Constraints, Problem, make_problem
from simpar.search.result import Candidate, Counts, SearchResult

__all__ = ["Candidate", "Constraints", "Counts", "Problem", "SearchResult", "make_problem", "search"]


class _Callable(ModuleType):
    """A package that can be called like the function it is named after."""

    __call__ = staticmethod(search)


sys.modules[__name__].__class__ = _Callable
