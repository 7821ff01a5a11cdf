"""Neighbours of a launch that are faster only by how messages meet on shared links: named, and not offered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.neighbours import BY_MEETING, gains_by_meeting
from simpar.planner.problem import Problem
from simpar.report.result import Result

if TYPE_CHECKING:
    from simpar.planner.nearby import Nearby


def without_beats(problem: Problem, result: Result, near: Nearby) -> tuple[Nearby, tuple[str, ...]]:
    """Layouts near one that was simulated without those that gain by a beat alone, and a note about these."""
    inputs = {"model": problem.graph, "cluster": problem.cluster, "training": problem.training, "stack": problem.stack}
    beats = [one for one in near.simulated if gains_by_meeting(inputs, result, one[1])]
    if not beats:
        return near, ()
    kept = tuple(one for one in near.simulated if one not in beats)
    said = " and ".join(dict.fromkeys(str(plan.memory.recompute) for plan, _ in beats))
    return replace(near, simulated=kept), (f"with recompute {said}, a neighbour {BY_MEETING}: not listed",)
