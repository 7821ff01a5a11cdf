"""What stands beside the winner: runners-up, kinds of layouts, choices made without a search, points of less memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from simpar.dataclass import dataclass
from simpar.planner.answer.baselines import AlternativesSearch, front, naive_choices
from simpar.planner.answer.beats import is_beat
from simpar.planner.answer.kinds import cost_kinds
from simpar.planner.answer.margin import Margin
from simpar.planner.answer.ranking import LayoutRanking
from simpar.planner.answer.ties import RankedResults, num_compared, rank_results, tied_below_s
from simpar.planner.certify.branch_and_bound import BranchAndBound, Field
from simpar.planner.certify.exact import SimulatedPlan, reports
from simpar.planner.certify.frontier import Frontier
from simpar.planner.certify.held_steps import MAX_KEPT_OPS
from simpar.planner.problem import BY_REGRET
from simpar.planner.progress import TOP
from simpar.planner.result import GAINS_BY_MEETING
from simpar.report.result import Result

MOST_COMPARED = 500
"""Layouts beside those shown over which probabilities are counted."""


@dataclass
class Beside:
    """What stands beside the best plan of a search, as far as the time allows.

    ``field`` and ``row`` are where the winner was found, None if it is a usual layout that no bounds were made for.
    """

    search: BranchAndBound
    winner: SimulatedPlan
    field: Field | None
    row: int
    ranking: LayoutRanking | None
    more: dict[str, object] = dataclasses.field(default_factory=dict)
    tie: dict[str, object] = dataclasses.field(default_factory=dict)
    simulated_elsewhere: int = 0
    simulated_before: int = dataclasses.field(init=False)
    _taken: list[int] = dataclasses.field(default_factory=list)
    _unseen_s: list[float] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.simulated_before = self._in_frontiers

    @staticmethod
    def of(search: BranchAndBound) -> Beside:
        """Beside the best plan of a search that has one."""
        winner = search.ranked()[0]
        for one in search.fields:
            if (frontier := one.frontier) is None:
                continue
            for row, simulated in frontier.simulated.items():
                if simulated is winner:
                    return Beside(search, winner, one, row, LayoutRanking.of(frontier, row, search.ahead))
        return Beside(search, winner, None, 0, None)

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes that simulate ahead."""
        if self.ranking is not None:
            self.ranking.search.ahead.__exit__(*error)

    @property
    def frontier(self) -> Frontier:
        """The frontier that the winner was found in."""
        frontier = self.field.frontier if self.field else None
        assert frontier is not None, "a plan was simulated in its frontier"
        return frontier

    @property
    def wanted(self) -> int:
        """How many layouts are compared with the winner."""
        return num_compared(self.winner.problem, self.search.progress.top) - 1

    def runners_up(self) -> list[Result]:
        """The next best layouts, best first; those at hand if the search was stopped.

        Where probabilities are told, these are those that are always compared: :meth:`choose` adds the others that are
        shown.
        """
        return self._next(min(self.wanted, TOP - 1) if self.winner.problem.objective == BY_REGRET else self.wanted)

    def _next(self, count: int) -> list[Result]:
        """The best ``count`` layouts beside those that were taken before."""
        progress, taken = self.search.progress, len(self._taken)
        if self.ranking is None or count <= taken:
            return []
        if not progress.interrupted:
            progress.report("comparing the best with others", self.search.counts(), self.search.best)
            with progress.stoppable():
                self.ranking.find(count)
        self.ranking.take_all()
        rows = [row for row in self.ranking.rows if row not in self._taken][: count - taken]
        if progress.interrupted:  # a step that has been let go has to be run again
            rows = [row for row in rows if _is_soon_told(self.frontier.simulated[row])]
        self._taken += rows
        return reports([self.frontier.simulated[row] for row in rows], progress.workers)

    def choose(self, results: Sequence[Result]) -> RankedResults:
        """The choice among results, with the others that are shown behind them.

        Probabilities and choice are the same however many are shown, unless own measurements tell layouts apart. Those
        behind that no probability is over have none. A result that gains by meetings alone says so (:func:`is_beat`).
        """
        results, choice = self._choice(results)
        counted = set(self.ranking.rows if self.ranking else ())
        more = self._next(self.wanted)
        if more and choice.limit_s is None:
            choice = rank_results(self.winner.problem, [*results, *more])
        elif more:
            rows = self._taken[len(results) - 1 :]
            among = [*results, *(one for one, row in zip(more, rows, strict=True) if row in counted)]
            others_s = self._others_s(counted.difference(self._taken))
            told = rank_results(self.winner.problem, among, others_s, longest_s=choice.limit_s)
            figures = [told.figures_of(one) if row in counted else {} for one, row in zip(more, rows, strict=True)]
            choice = choice.followed_by(more, figures)
        if self.ranking is None or self.search.progress.interrupted:
            return choice
        beats, shown = list[Result](), [self.frontier.simulated[row] for row in (self.row, *self._taken)]
        with self.search.progress.stoppable():
            for row, one in zip((self.row, *self._taken), shown, strict=True):
                beats += [one.report()] if is_beat(self.frontier, row) else []
        marks = [{GAINS_BY_MEETING: True} if any(one is each for each in beats) else {} for one in choice.results]
        return replace(choice, figures=tuple({**own, **mark} for own, mark in zip(choice.figures, marks, strict=True)))

    def _choice(self, results: Sequence[Result]) -> tuple[Sequence[Result], RankedResults]:
        """The results and the choice among them, with probabilities over all layouts that may be as good.

        Such layouts are simulated as far as the effort reaches; where the results were not certain to be the best, one
        of these may take the place of one of them. Others count at their bounds, times the median ratio of
        steps to bounds of the rows simulated here.
        """
        problem, progress = self.winner.problem, self.search.progress
        if (limit_s := tied_below_s(problem, results)) is None:
            return results, rank_results(problem, results)
        if self.ranking is None or progress.interrupted:
            self.tie = {"layouts": len(results), "not_simulated": self.search.count_unseen(limit_s)}
            return results, rank_results(problem, results, longest_s=limit_s)
        with progress.stoppable():
            self.ranking.settle(limit_s)
        results = self._taken_again(results)
        unseen_s, plans = self.ranking.unseen(limit_s)
        self._unseen_s = (unseen_s * self.ranking.usual_ratio).tolist()
        others_s = self._others_s({*self.ranking.rows}.difference(self._taken))
        self.tie = {"layouts": len(results) + len(others_s), "not_simulated": plans}
        return results, rank_results(problem, results, others_s, longest_s=limit_s)

    def _taken_again(self, results: Sequence[Result]) -> Sequence[Result]:
        """The winner and as many runners-up, of which some may have been simulated after ``results`` were taken."""
        count, before = len(self._taken), self._taken
        assert self.ranking is not None, "runners-up were taken from it"
        if self.ranking.rows[:count] == before or self.search.progress.interrupted:
            return results
        self._taken = []
        return [results[0], *self._next(count)]

    def _others_s(self, rows: Iterable[int]) -> list[float]:
        """Steps in seconds of some simulated layouts, and of those that were not simulated and may be as good."""
        simulated = (self.frontier.simulated[row].step_time_s for row in rows)
        return sorted([*simulated, *self._unseen_s])[:MOST_COMPARED]

    @property
    def _in_frontiers(self) -> int:
        """Plans of the space that were simulated so far."""
        return sum(len(one.simulated) for one in self.search.frontiers)

    @property
    def simulated(self) -> int:
        """Plans simulated for what stands beside the winner."""
        return self._in_frontiers - self.simulated_before + self.simulated_elsewhere

    def add_others(self, best: Result) -> None:
        """What others cost: choices made without a search, the margin, and in the whole answer kinds and less memory.

        What the short answer shows comes first, so that it is the same in both.
        """
        progress = self.search.progress
        if self.field is None or progress.interrupted:
            return
        with progress.stoppable():
            near = self.frontier.rows.subset([self.row])
            if not progress.brief:
                self.more["naive"] = naive_choices(AlternativesSearch(self.field, near), best)
            price = Margin.of(self.field, self.row)
            self.more["margin"], self.simulated_elsewhere = price.told, price.simulated
            if progress.whole and not progress.brief:
                self.more["kinds"] = kinds = list[dict[str, object]]()
                cost_kinds(self.field, self.row, kinds)
                self.more["pareto"] = front(AlternativesSearch(self.field, near), self.row)

    def certified(self, results: Sequence[Result]) -> dict[str, object]:
        """How far the list of layouts is certain: see ``runners_up`` in docs/files.md."""
        progress, wanted, count = self.search.progress, self.wanted, len(results) - 1
        if wanted < 1:
            return {}
        stopped = f"stopped ({progress.stopped})"
        if self.ranking is None:
            return {"runners_up": {"found": count, "certified": 0, "why": stopped}}
        lowest, certified = self.ranking.lowest(wanted), self.ranking.certified(wanted)
        ranked = zip(self._taken, self.ranking.rows, strict=False)  # one that was stopped may lack some of them
        certified = min(certified, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ranked)))
        told: dict[str, object] = {"found": count, "certified": certified}
        if certified:
            told["certified_step_time_s"] = self.ranking.ranked()[certified - 1].step_time_s
        if lowest is not None:
            told["at_least_s"] = float(self.frontier.bound_s[self.ranking.open(wanted)].min())
        if progress.interrupted and certified < wanted:
            told["why"] = stopped
        elif count < wanted:
            told["why"] = "no other layout fits" if lowest is None else "no other layout that was simulated fits"
        return {"runners_up": told}


def _is_soon_told(one: SimulatedPlan) -> bool:
    """Whether the full result of a plan can be had without another run, or with a short one."""
    return one.is_at_hand or one.num_ops <= MAX_KEPT_OPS
