"""The uniform space: what Megatron-like launchers can express, searched to a certified optimum.

Memory is decided first, for all rows at once. Then the row with the lowest bound is examined again and again: each time
its bound is sharpened, and in the end it is simulated. When the lowest bound passes the best simulated step, no row can
beat that step.
"""

from simpar.errors import Infeasible
from simpar.planner.answer.baselines import AlternativesSearch, front, margin, naive_choices, simulate_runners_up
from simpar.planner.answer.candidates import answer_of
from simpar.planner.answer.ties import num_compared
from simpar.planner.certify.branch_and_bound import BranchAndBound, fields_of
from simpar.planner.certify.exact import objective_rates, reports
from simpar.planner.certify.infeasible import explain_no_answer
from simpar.planner.certify.scope import scope
from simpar.planner.certify.seeds import first_plan
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import SearchResult
from simpar.planner.space.portable import of_its_framework
from simpar.report.result import Result


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
    results, more = [search.ranked()[0].report()], dict[str, object]()
    if whole:
        with progress.stoppable():
            _add_alternatives(search, results, more)
    if search.fields:
        more["node_counts"] = [one.problem.cluster.nodes for one in search.fields]
    more |= {"scope": scope(problem, search.left_out()), "not_built": search.unbuilt()}
    answer = answer_of(problem, progress, results, counts, gap, whole).with_details(more)
    tie = answer.details.get("tie")
    if tie is None or tie["limit_s"] is None:
        return answer
    return answer.with_details({"tie": tie | {"not_simulated": search.count_unseen(tie["limit_s"])}})


def _add_alternatives(search: BranchAndBound, results: list[Result], more: dict[str, object]) -> None:
    """Append runners-up to the results, and other alternatives to ``more``, as far as the time allows."""
    winner, progress = search.ranked()[0], search.progress
    progress.report("comparing the best with others", search.counts(), search.best)
    field = next(one for one in search.fields if one.problem is winner.problem)
    assert field.frontier is not None, "a plan was simulated in its frontier"
    taken = [row for row, simulated in field.frontier.simulated.items() if simulated.plan == winner.plan]
    row, near = taken[0], field.frontier.rows.subset(taken[:1])
    if (count := num_compared(winner.problem, progress.top)) > 1:
        results += reports(simulate_runners_up(AlternativesSearch(field, near), taken, count - 1), progress.workers)
    if not progress.brief:
        more["naive"] = naive_choices(AlternativesSearch(field, near), results[0])
        more["pareto"] = front(AlternativesSearch(field, near), row)
    more["margin"] = margin(field, row)


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
