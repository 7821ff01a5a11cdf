"""The search of the page for a step of reinforcement learning: pools, layouts of both sides and synchrony."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simpar.errors import Infeasible, UserError
from simpar.planner.problem import Constraints
from simpar.posttraining.search import OBJECTIVES, PoolCandidate, search_post_training
from simpar.posttraining.search_terminal import pools_words
from simpar.report.words import layout
from simpar.ui.state import SOURCE, as_state

if TYPE_CHECKING:
    from simpar.scenario import Scenario
    from simpar.ui.state import ResolvedRequest

MOST_ROWS = 10


def search_pools(
    asked: ResolvedRequest, options: dict[str, Any], fixed: dict[str, Any], report: Callable[[str], None]
) -> dict[str, Any]:
    """What the page lists: the best points with their states, and the certificate. Raises UserError.

    ``fixed`` are axes of the training layouts that are held; a KeyboardInterrupt in ``report`` ends the search.
    """
    scenario, section = asked.scenario, asked.scenario.post_training
    assert section is not None, "asked for only with a section"
    objective, staleness = options.get("objective", OBJECTIVES[0]), options.get("staleness", 1)
    if objective not in OBJECTIVES:
        raise UserError(f"{SOURCE}: objective = {objective!r}: allowed with post_training: {', '.join(OBJECTIVES)}")
    if isinstance(staleness, bool) or not isinstance(staleness, int):
        raise UserError(f"{SOURCE}: staleness = {staleness!r}: allowed: a whole number of updates")
    began = time.monotonic()
    is_stopped = False

    def told(words: str) -> None:
        nonlocal is_stopped
        try:
            report(words)
        except KeyboardInterrupt:
            is_stopped = True
            raise

    try:
        result = search_post_training(
            asked.graph,
            asked.cluster,
            asked.plan,
            scenario.training,
            section,
            stack=asked.stack,
            staleness=staleness,
            objective=objective,
            constraints=Constraints(fixed=fixed),
            report=told,
        )
    except Infeasible as reason:
        if not is_stopped:
            raise
        raise UserError("stopped before any layout that fits was found") from reason
    return {
        "candidates": [_row(candidate, scenario) for candidate in result.candidates[:MOST_ROWS]],
        "certified": result.is_certified,
        "gap": result.gap,
        "seconds": time.monotonic() - began,
        "stopped": is_stopped,
        "space_size": result.counts["space"],
        "simulated": result.counts["simulated"],
    }


def _row(candidate: PoolCandidate, scenario: Scenario) -> dict[str, Any]:
    """A point as the page lists it, with its state."""
    asked, figures, choice = scenario.post_training, candidate.result.figures, candidate.choice
    assert asked is not None, "asked for only with a section"
    changed = {
        "plan": candidate.plan,
        "post_training": choice.section(asked),
        "cluster": scenario.cluster.model_copy(update={"nodes": choice.training_nodes}),
    }
    return {
        "layout": f"{pools_words(candidate)}; trains {layout(candidate.plan.model_dump(mode='json'))}",
        "step_time_s": figures.speed.step_time_s,
        "mfu": None,
        "samples_per_s": figures.speed.samples_per_s,
        "peak_reserved_bytes": figures.memory.training.total_bytes,
        "fit_probability": None,
        "tied": False,
        "why": list(figures.limits),
        "state": as_state(scenario.model_copy(update=changed)),
    }
