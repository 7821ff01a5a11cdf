"""The goal of a run: the fewest days or dollars, by a deadline, within a budget."""

from __future__ import annotations

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import choose
from simpar.units import DAY_S, parse_quantity, parse_tokens

OBJECTIVES = {
    "days": "the fewest days of the whole run, over numbers of nodes",
    "dollars": "the fewest dollars of the whole run, over numbers of nodes",
}


@dataclass(frozen=True)
class Wanted:
    """The objective, and the most days and dollars that a run may take; None without such a limit."""

    objective: str
    deadline_days: float | None = None
    budget_usd: float | None = None

    def __post_init__(self) -> None:
        choose(self.objective, OBJECTIVES, "objective")
        for name, limit in (("deadline", self.deadline_days), ("budget", self.budget_usd)):
            if limit is not None and not 0 < limit < float("inf"):
                raise UserError(f"{name} = {limit}: allowed: above 0")

    @staticmethod
    def of(objective: str, deadline: str | None, budget: str | None) -> Wanted:
        """Parse a goal from text such as "60d" and "2M". Raises UserError."""
        return Wanted(
            objective, None if deadline is None else _days(deadline), None if budget is None else _dollars(budget)
        )


def _days(text: str) -> float:
    try:
        return parse_quantity(text, "seconds") / DAY_S
    except ValueError:
        raise UserError(f"--deadline {text}: needs a number and a unit, such as 60d or 36 h") from None


def _dollars(text: str) -> float:
    try:
        return float(parse_tokens(text.strip().removeprefix("$")))
    except ValueError:
        raise UserError(f"--budget {text}: needs dollars, such as 2M, 250K or 1.4e6") from None
