"""Searches for the best plan: the certified optimum among plans that launchers can express, or operator shardings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simpar.planner.api import search
    from simpar.planner.problem import Constraints, Problem, make_problem
    from simpar.planner.result import Candidate, Counts, SearchResult

OPEN = (
    "answer.candidates", "answer.found", "answer.summary", "answer.terminal", "api", "certify.exact", "nearby",
    "problem", "progress", "result", "space.axes", "space.jobs", "sweep", "tables",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""

__all__ = ["Candidate", "Constraints", "Counts", "Problem", "SearchResult", "make_problem", "search"]

_HOME = {"search": "api", "Constraints": "problem", "Problem": "problem", "make_problem": "problem"}


def __getattr__(name: str) -> Any:
    """The room's names, imported when first used: a check needs no search."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'result')}"), name)
