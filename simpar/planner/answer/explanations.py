"""The answer in words: why the winner wins, what limits it, and why the others are slower."""

from collections.abc import Sequence

from simpar.planner.problem import Problem
from simpar.report.explain import WORDS
from simpar.report.result import Result
from simpar.units import format_bytes, format_seconds

WORTH_SAYING = 0.002  # share of the step below which a difference is not worth a word
CAUSES = {"compute": "compute", **WORDS}


def explain_winner(result: Result, others: Sequence[Result]) -> tuple[str, ...]:
    """Sentences about the best plan: where its step goes, its memory, and its lead over the next plan (or lag)."""
    said = list(result.why.binds)
    if others:
        lost = others[0].step_time_s - result.step_time_s
        said.append(
            f"the runner-up is {'slower' if lost >= 0 else 'faster'} by {format_seconds(abs(lost))}: "
            f"{_differences(others[0], result)}"
        )
    return tuple(said)


def explain_loser(result: Result, best: Result) -> tuple[str, ...]:
    """Sentences about another plan: how many seconds slower (or faster) it is than the best, and why."""
    lost = result.step_time_s - best.step_time_s
    if lost == 0:
        return ("is the best itself" if result.setup.plan == best.setup.plan else "as fast as the best",)
    way, size = "slower" if lost > 0 else "predicted faster", abs(lost)
    return (f"{way} by {format_seconds(size)} ({size / best.step_time_s:.1%}): {_differences(result, best)}",)


def _differences(other: Result, best: Result) -> str:
    """Where another plan spends more and less time than the best, largest difference first."""
    mine, theirs = other.time_breakdown_s.model_dump(), best.time_breakdown_s.model_dump()
    changes = sorted(((mine[name] - theirs[name], words) for name, words in CAUSES.items()), key=lambda c: -abs(c[0]))
    said = [
        f"{format_seconds(abs(change))} {'more' if change > 0 else 'less'} {words}"
        for change, words in changes
        if abs(change) >= WORTH_SAYING * best.step_time_s
    ]
    return ", ".join(said[:3]) if said else "a little of everything"


def describe_need(needed_bytes: float, problem: Problem) -> str:
    """By how much a need exceeds the memory limit, in words."""
    limit = format_bytes(problem.memory_limit_bytes)
    return f"does not fit: needs {format_bytes(needed_bytes)} of {limit}{problem.constraints.sure_words}"
