"""The answer of "how many devices": the cheapest number of nodes by the deadline, the fastest within the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar import formats
from simpar.budget.nodes import Row, Search, halves, rows_of
from simpar.budget.wanted import Wanted
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, UserError
from simpar.hardware.price import price_of
from simpar.planner.problem import Problem
from simpar.report.bill import AMOUNTS, Amount
from simpar.report.run_rows import figure

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HowMany:
    """Rows by number of nodes, the limits, and the best rows.

    ``cheapest`` meets the deadline for the fewest dollars, ``quickest`` keeps to the budget in the fewest days; None if
    no row does. ``is_whole``: all numbers of nodes were searched.
    """

    wanted: Wanted
    rows: tuple[Row, ...]
    is_whole: bool = True

    @property
    def planned(self) -> list[Row]:
        """Rows with a plan."""
        return [row for row in self.rows if row.run is not None]

    @property
    def front(self) -> tuple[Row, ...]:
        """The Pareto front of days and dollars, by days."""
        return tuple(
            row
            for row in sorted(self.planned, key=lambda one: (one.days, one.dollars))
            if not any(_beats(other, row) for other in self.planned)
        )

    @property
    def cheapest(self) -> Row | None:
        """The cheapest row that meets the deadline."""
        fitting = [row for row in self.planned if self.meets_deadline(row)]
        return min(fitting, key=lambda row: (row.dollars, row.days), default=None)

    @property
    def quickest(self) -> Row | None:
        """The fastest row within the budget."""
        fitting = [row for row in self.planned if self.keeps_budget(row)]
        return min(fitting, key=lambda row: (row.days, row.dollars), default=None)

    @property
    def chosen(self) -> Row | None:
        """The best row by the objective among those within both limits; None if there is none."""
        both = [row for row in self.planned if self.meets_deadline(row) and self.keeps_budget(row)]
        days = self.wanted.objective == "days"
        return min(both, key=lambda row: (row.days, row.dollars) if days else (row.dollars, row.days), default=None)

    @property
    def surely(self) -> Row | None:
        """The best row among those within both limits at the high end of their intervals, i.e. with 95 % certainty."""
        sure = [row for row in self.planned if self.is_sure(row)]
        return HowMany(self.wanted, tuple(sure)).chosen

    @property
    def is_certified(self) -> bool:
        """Whether no plan on any of the numbers of nodes is better as predicted."""
        return self.is_whole and all(row.is_certified for row in self.planned)

    def meets_deadline(self, row: Row) -> bool:
        """Whether a row meets the deadline as predicted."""
        return self.wanted.deadline_days is None or row.days <= self.wanted.deadline_days

    def keeps_budget(self, row: Row) -> bool:
        """Whether a row keeps to the budget as predicted."""
        return self.wanted.budget_usd is None or row.dollars <= self.wanted.budget_usd

    def is_sure(self, row: Row) -> bool:
        """Whether a row is within both limits at the high end of its intervals."""
        run = row.run
        return (
            run is not None
            and _below(run.days, self.wanted.deadline_days)
            and _below(run.cost_usd, self.wanted.budget_usd)
        )

    @staticmethod
    def load(path: str | Path) -> HowMany:
        """Load what ``simpar search --objective days --json`` wrote. Raises UserError for any other file."""
        from simpar.report.result import read_object

        data = read_object(path)
        formats.HOW_MANY.check(data, str(path))
        try:
            wanted = Wanted(data["objective"], data["deadline_days"], data["budget_usd"])
            return HowMany(wanted, tuple(map(Row.from_dict, data["rows"])), data["is_whole"])
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: not a whole answer ({error})") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        named = {name: getattr(self, name) for name in ("chosen", "cheapest", "quickest", "surely")}
        return {
            formats.HOW_MANY.key: formats.HOW_MANY.version,
            "objective": self.wanted.objective,
            "deadline_days": self.wanted.deadline_days,
            "budget_usd": self.wanted.budget_usd,
            "certified": self.is_certified,
            "is_whole": self.is_whole,
            **{name: None if row is None else row.nodes for name, row in named.items()},
            "front": [row.nodes for row in self.front],
            "rows": [row.to_dict() for row in self.rows],
        }

    def to_frame(self) -> pd.DataFrame:
        """Rows as a pandas DataFrame by number of nodes: days, dollars and MWh with 90 % bounds."""
        import pandas as pd

        return pd.DataFrame(self.table()).set_index("nodes")

    def table(self) -> list[dict[str, Any]]:
        """The same rows as plain data."""
        result = []
        for row in self.planned:
            frame: dict[str, Any] = {"nodes": row.nodes, "devices": row.devices, **(row.figures or {})}
            for name in AMOUNTS:
                amount = getattr(row.run, name)
                for part in Amount.model_fields:
                    column = name if part == "value" else f"{name}_{part}"
                    frame[column] = None if amount is None else getattr(amount, part)
            result.append(frame)
        return result

    def needed(self) -> str:
        """What would be needed if no row is within both limits: the nearest rows by either limit."""
        wanted = self.wanted
        if not self.planned:
            reasons = "; ".join(f"{row.node_words}: {row.reason}" for row in self.rows[-1:])
            return f"no number of nodes has a plan ({reasons})"
        limits = [f"{wanted.deadline_days:g} days"] if wanted.deadline_days is not None else []
        limits += [f"{figure(wanted.budget_usd)} dollars"] if wanted.budget_usd is not None else []
        counts = ", ".join(str(row.nodes) for row in self.rows)
        who = f"none of {counts} nodes keeps" if len(self.rows) > 1 else f"{self.rows[0].node_words} cannot keep"
        return f"{who} to {' and '.join(limits)}; {'; '.join(self._nearest())}"

    def _nearest(self) -> Iterator[str]:
        """The least relaxation of each limit, with the other limit kept if possible."""
        wanted, cheapest, quickest = self.wanted, self.cheapest, self.quickest
        if wanted.deadline_days is not None and (cheapest is None or quickest is not None):
            row = quickest if cheapest is not None and quickest else min(self.planned, key=lambda one: one.days)
            which = "the quickest" if cheapest is None else "the quickest within the budget"
            days = _up(row.days)
            yield f"{which} takes {days} days on {row.node_words}: try --deadline {days}d{self._more_nodes(row)}"
        if wanted.budget_usd is not None and (quickest is None or cheapest is not None):
            row = cheapest if quickest is not None and cheapest else min(self.planned, key=lambda one: one.dollars)
            which = "the cheapest" if quickest is None else "the cheapest by the deadline"
            cost = figure(row.dollars)
            yield f"{which} costs {cost} dollars on {row.node_words}: try --budget {math.ceil(row.dollars)}"

    def _more_nodes(self, quickest: Row) -> str:
        """How many nodes would meet the deadline if days fell in proportion, if no more were searched."""
        wanted = self.wanted
        most = quickest.nodes == max(row.nodes for row in self.rows)
        if not most or wanted.deadline_days is None or not self.keeps_budget(quickest):
            return ""
        doublings = max(math.ceil(math.log2(quickest.days / wanted.deadline_days)), 1)
        return f" or more nodes: --nodes {quickest.nodes << doublings}"


def how_many(
    problem: Problem, wanted: Wanted, *, node_counts: Sequence[int] | None = None, search: Search | None = None
) -> HowMany:
    """Days and dollars of the best plan on every number of nodes, against the limits.

    ``problem`` trains ``training.tokens`` on its cluster. ``node_counts`` are the numbers of nodes, by default that of
    the cluster and its halves. Raises UserError for bad input. If no row is within the limits, the answer says what
    would be needed (``chosen`` is None).
    """
    counts = sorted(set(node_counts or halves(problem.cluster.nodes)))
    if counts[0] < 1:
        raise UserError(f"nodes = {counts[0]}: allowed: at least 1")
    if price_of(problem.cluster) is None and (wanted.objective == "dollars" or wanted.budget_usd is not None):
        raise UserError(
            f"hardware {problem.cluster.profile.name}: no price; allowed: --price-per-gpu-hour USD, "
            "price_per_device_hour in the profile, or --objective days without --budget"
        )
    rows = tuple(rows_of(problem, counts, search or Search()))
    return HowMany(wanted, rows, is_whole=len(rows) == len(counts))


def refuse_without_choice(answer: HowMany) -> None:
    """Raise Infeasible, with what would be needed, if no row is within the limits."""
    if answer.chosen is None:
        raise Infeasible(answer.needed())


def _beats(one: Row, other: Row) -> bool:
    """Whether a row is at least as good in days and dollars, and better in one of them."""
    return (
        one.days <= other.days
        and one.dollars <= other.dollars
        and (one.days, one.dollars) != (other.days, other.dollars)
    )


def _below(amount: Amount | None, limit: float | None) -> bool:
    if limit is None:
        return True
    if amount is None:
        return False
    return (amount.value if amount.high is None else amount.high) <= limit


def _up(days: float) -> str:
    """Days rounded up to three digits."""
    step = 10.0 ** (math.floor(math.log10(days)) - 2)
    return f"{math.ceil(days / step) * step:.6g}"
