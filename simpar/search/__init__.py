"""Which plan is best? The certified optimum of the plans that launchers can express, or of operator shardings.

``simpar.search(model, cluster, training)`` is the front door and works whether or not this package was imported
before: the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from simpar.search.api import search
from simpar.search.problem import Constraints, Problem, make_problem
from simpar.search.result import Candidate, Counts, SearchResult

__all__ = ["Candidate", "Constraints", "Counts", "Problem", "SearchResult", "make_problem", "search"]


class _Callable(ModuleType):
    """A package named like the verb that it is for."""

    __call__ = staticmethod(search)


sys.modules[__name__].__class__ = _Callable
