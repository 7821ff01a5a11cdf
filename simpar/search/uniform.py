"""The uniform space, searched exhaustively: every plan that fits is simulated."""

from __future__ import annotations

import time

from simpar.errors import Infeasible
from simpar.report.result import Result
from simpar.search.exact import candidate, exact, fits, worth
from simpar.search.problem import Problem
from simpar.search.result import Counts, SearchResult
from simpar.search.space import enumerate_space, plan_of
from simpar.search.watch import Watch


def search_uniform(problem: Problem, watch: Watch) -> SearchResult:
    """The best plans of the uniform space. Raises Infeasible where nothing fits."""
    started = time.perf_counter()
    rows = enumerate_space(problem)
    found: list[tuple[float, Result]] = []
    simulated = 0
    with watch.stoppable():
        for index in range(rows.count):
            result = exact(problem, plan_of(rows, index))
            simulated += 1
            if fits(problem, result):
                found.append((worth(problem, result), result))
            watch.report("simulating", Counts(rows.count, len(found), 0, 0, simulated), None)
    if not found:
        raise Infeasible("nothing fits")
    found.sort(key=lambda entry: entry[0])
    candidates = tuple(candidate(n + 1, result) for n, (_, result) in enumerate(found[: watch.top]))
    counts = Counts(rows.count, len(found), 0, 0, simulated)
    seconds = time.perf_counter() - started
    done = not watch.interrupted
    return SearchResult(candidates, counts, problem.objective, done, 0.0 if done else 1.0, seconds)
