"""The uniform space: what Megatron-like launchers can express, searched to a certified optimum.

Memory is decided first, for all rows at once. Then the row with the lowest bound is examined again and again: each time
its bound is sharpened, and in the end it is simulated. When the lowest bound passes the best simulated step, no row can
beat that step.
"""

from simpar.errors import Infeasible
from simpar.planner.answer.beside import Beside
from simpar.planner.answer.candidates import answer_with
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.exact import objective_rates
from simpar.planner.certify.infeasible import explain_no_answer
from simpar.planner.certify.scope import scope
from simpar.planner.certify.seeds import first_plan
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import SearchResult
from simpar.planner.space.portable import of_its_framework


def search_runnable(problem: Problem, progress: SearchProgress) -> SearchResult:
    """The best plans of the uniform space that the stack's framework supports, unless something else was asked for.

    Raises Infeasible as :func:`search_uniform` does.
    """
    return search_uniform(of_its_framework(problem), progress)


def search_uniform(problem: Problem, progress: SearchProgress) -> SearchResult:
    """The best plans of the uniform space. Raises Infeasible if nothing fits or meets the deadline."""
    objective_rates(problem)
    search = _searched(problem, progress)
    if not search.ranked():
        raise explain_no_answer(search, problem)
    gap, counts, whole = search.gap(), search.counts(), not progress.interrupted
    with Beside.of(search) as beside:
        results = [search.ranked()[0].report(), *beside.runners_up()]
        choice = beside.choose(results)
    beside.add_others(results[0])
    details = beside.more | beside.certified(choice.results)
    if search.fields:
        details["node_counts"] = [one.problem.cluster.nodes for one in search.fields]
    details |= {"scope": scope(problem, search.left_out()), "not_built": search.unbuilt()}
    details["simulated_beside"] = beside.simulated
    answer = answer_with(problem, progress, choice, counts, (gap, whole))
    tie = answer.details.get("tie")
    return answer.with_details(details | ({"tie": tie | beside.tie} if tie else {}))


def _searched(problem: Problem, progress: SearchProgress) -> BranchAndBound:
    """The finished search over all numbers of nodes among which the objective may choose."""
    search = BranchAndBound([], progress)
    with progress.stoppable():
        _search(search, problem)
    if progress.interrupted and not search.ranked():
        first_plan(search, problem)
    return search


def _search(search: BranchAndBound, problem: Problem) -> None:
    counts = node_counts(problem)
    if problem.objective != "devices":
        search.fields = fields_of(problem, counts, search.hear)
        search.run()
        return
    for nodes in counts:
        try:
            search.fields = [*search.fields, *fields_of(problem, [nodes], search.hear)]
        except Infeasible:
            continue
        search.run()
        if search.ranked():
            break


def node_counts(problem: Problem) -> list[int]:
    """Numbers of nodes to search: all of them for time, otherwise also halves down to one, fewest first."""
    counts = [problem.cluster.nodes]
    while not problem.is_of_time and counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return counts[::-1]
