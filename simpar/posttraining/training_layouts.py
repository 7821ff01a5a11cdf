"""The best training layouts of a pool, and how many of them are certain to be the best."""

from __future__ import annotations

from typing import Any

from simpar.dataclass import dataclass
from simpar.plan.plan import Plan
from simpar.planner.result import SearchResult


@dataclass(frozen=True)
class TrainingLayouts:
    """Layouts of an update on ``nodes`` nodes, best first, of which the first ``proven`` are certain to be the best.

    ``is_open`` says that another layout may be better than the first, or may fit where none of ``plans`` does; ``why``
    says why, or why there is none.
    """

    nodes: int
    plans: tuple[Plan, ...] = ()
    proven: int = 0
    is_open: bool = False
    why: str = ""

    @staticmethod
    def of(nodes: int, result: SearchResult, most: int) -> TrainingLayouts:
        """At most ``most`` layouts of a search for the shortest update, which may have ended before its proof."""
        plans = tuple(one.plan for one in result.candidates[:most])
        if result.certified_optimal:
            beside = int(result.details.get("runners_up", {}).get("certified", 0))
            return TrainingLayouts(nodes, plans, min(len(plans), 1 + beside))
        stopped = result.details.get("stopped")
        words = [f"stopped ({stopped})"] if stopped else []
        words += [f"an update may take up to {result.gap:.2%} less"] if result.gap < 1.0 else ["no bound of an update"]
        return TrainingLayouts(nodes, plans, is_open=True, why=", ".join(words))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "nodes": self.nodes,
            "layouts": len(self.plans),
            "proven": self.proven,
            "open": self.is_open,
            "why": self.why,
        }
