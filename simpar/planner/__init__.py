"""Searches for the best plan: the certified optimum among plans that launchers can express, or operator shardings."""

from simpar.planner.api import search
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.planner.result import Candidate, Counts, SearchResult

OPEN = (
    "answer.candidates", "answer.summary", "answer.terminal", "api", "certify.exact", "nearby", "problem",
    "progress", "result", "space.axes", "space.jobs", "sweep", "tables",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""

__all__ = ["Candidate", "Constraints", "Counts", "Problem", "SearchResult", "make_problem", "search"]
