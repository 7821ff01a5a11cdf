"""Slow work: the timeline and changes to try, searches, the result page."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from simpar.dataclass import dataclass
from simpar.errors import Infeasible, UserError
from simpar.layout.deciders import resolve
from simpar.layout.moves import IN_MENUS
from simpar.neighbours import advise
from simpar.operate.whole_run import add_operation
from simpar.plan.choices import AXES, value_of
from simpar.plan.plan import Plan
from simpar.planner.api import find_space
from simpar.planner.problem import BY_REGRET, OBJECTIVES, Constraints, make_problem
from simpar.planner.progress import SearchProgress, in_words
from simpar.planner.result import Candidate, Counts
from simpar.planner.space.jobs import without_axes
from simpar.posttraining import page as rl_page
from simpar.report.html import render
from simpar.report.words import layout
from simpar.ui.answers import add_failures, draw_sections, simulate_request, simulate_rl, try_neighbours
from simpar.ui.pool_search import search_pools
from simpar.ui.state import SOURCE, as_state, ask
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.units import DAY_S
from simpar.workers import Workers

if TYPE_CHECKING:
    from simpar.scenario import Scenario

EVERY_S = 0.1
"""Seconds between progress messages of a search; a new phase is reported at once."""


class Stopped(Exception):
    """The job is not wanted any more."""


@dataclass(frozen=True)
class JobSlot:
    """The context of a job: a scenario, options of the page, a listener, and whether it is still wanted."""

    scenario: Scenario
    options: dict[str, Any]
    say: Callable[[dict[str, Any] | None], None]
    is_stopped: Callable[[], bool]

    def raise_if_stopped(self) -> None:
        """Raise Stopped if the job is not wanted any more."""
        if self.is_stopped():
            raise Stopped

    def report_trial(self, change: str) -> None:
        """Report which neighbour is simulated next."""
        self.raise_if_stopped()
        self.say({"trying": change})


def draw_timeline(room: JobSlot) -> None:
    """The timeline of a state and memory over time; a whole run with its failures; then its neighbours."""
    room.raise_if_stopped()
    asked = ask(room.scenario)
    result = simulate_request(asked, with_timeline=True)
    room.say({"drawn": draw_sections(result)})
    room.raise_if_stopped()
    if counted := add_failures(result, asked):
        room.say({"operated": counted})
    room.say({"tried": try_neighbours(result, asked, room.report_trial)})


def write_page(room: JobSlot) -> None:
    """The result page of a state, as ``simpar simulate --html`` writes it."""
    asked = ask(room.scenario)
    if asked.scenario.post_training is not None:
        room.say({"file": {"name": "report.html", "text": rl_page.render(simulate_rl(asked))}})
        return
    result = simulate_request(asked, with_timeline=True)
    result = add_operation(result, asked.inputs(), None)
    advised = advise(result, asked.inputs(), room.report_trial)
    room.say({"file": {"name": "report.html", "text": render(advised)}})


def search_plans(room: JobSlot) -> None:
    """The best layouts of a job; if stopped, the best so far with its gap."""
    asked = ask(room.scenario)
    last, last_s = "", 0.0

    def tell(phase: str, words: Callable[[], str]) -> None:
        nonlocal last, last_s
        if room.is_stopped():
            raise KeyboardInterrupt  # makes a search return the best so far
        if phase != last or time.monotonic() - last_s > EVERY_S:
            last, last_s = phase, time.monotonic()
            room.say({"progress": words()})

    fixed = _fixed(resolve(asked.plan, asked.stack), room.options.get("hold", []))
    if asked.scenario.post_training is not None:
        with _ended_when(room.is_stopped):
            room.say({"found": search_pools(asked, room.options, fixed, lambda words: tell("", lambda: words))})
        return
    problem = make_problem(
        asked.graph,
        asked.cluster,
        asked.scenario.training,
        stack=asked.stack,
        base=without_axes(asked.plan),
        perturbation=asked.scenario.perturb(),
        objective=_objective(room.options),
        constraints=Constraints(fit_probability=_probability(room.options), fixed=fixed),
    )

    def report(phase: str, counts: Counts, best: float | None) -> None:
        tell(phase, lambda: in_words(phase, counts, best))

    progress = SearchProgress(report=report, workers=Workers.usual(), time_limit_s=DAY_S)
    try:
        with _ended_when(room.is_stopped):
            result = find_space(None, asked.cluster)(problem, progress)
    except Infeasible as reason:
        if not progress.interrupted:
            raise
        raise UserError("stopped before any layout that fits was found") from reason
    room.say({
        "found": {
            "candidates": [_row(candidate, room.scenario) for candidate in result.candidates],
            "certified": result.certified_optimal,
            "gap": result.gap,
            "seconds": result.search_seconds,
            "stopped": progress.interrupted,
            **vars(result.counts),
        }
    })  # fmt: skip


@contextmanager
def _ended_when(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Trigger the alarm of a search's time limit once it is not wanted any more, so that it returns the best so far.

    On systems without alarms it ends at its next progress report.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    over = Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            if is_stopped():
                signal.setitimer(signal.ITIMER_REAL, EVERY_S)

    before = signal.signal(signal.SIGALRM, lambda *_: None)  # ignore alarms outside of the search
    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _row(candidate: Candidate, scenario: Scenario) -> dict[str, Any]:
    """A candidate as the page lists it, with its state."""
    nodes = candidate.figures.get("nodes", scenario.cluster.nodes)
    cluster = scenario.cluster.model_copy(update={"nodes": nodes})
    return {
        "layout": layout(candidate.plan.model_dump(mode="json")),
        "step_time_s": candidate.step_time_s,
        "mfu": candidate.mfu,
        "peak_reserved_bytes": candidate.figures["peak_reserved_bytes"],
        "fit_probability": candidate.figures.get("fit_probability"),
        "tied": bool(candidate.figures.get("tied")),
        "why": list(candidate.why),
        "state": as_state(scenario.model_copy(update={"plan": candidate.plan, "cluster": cluster})),
    }


def _objective(options: dict[str, Any]) -> str:
    wanted = options.get("objective", BY_REGRET)
    if wanted not in OBJECTIVES:
        raise UserError(f"{SOURCE}: objective = {wanted!r}: allowed: {', '.join(OBJECTIVES)}")
    return str(wanted)


def _probability(options: dict[str, Any]) -> float:
    wanted = options.get("fit_probability", DEFAULT_FIT_PROBABILITY)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        raise UserError(f"{SOURCE}: fit_probability = {wanted!r}: allowed: a number from 0.5 to below 1")
    return float(wanted)


def _fixed(plan: Plan, held: Any) -> dict[str, Any]:
    """Axes that are held at the values of a resolved plan."""
    if not isinstance(held, list) or not all(name in HOLDABLE for name in held):
        raise UserError(f"{SOURCE}: hold = {held!r}: allowed: a list of {', '.join(HOLDABLE)}")
    return {name: value_of(plan, name) for name in held}


HOLDABLE = tuple(axis.name for axis in AXES if axis.name in IN_MENUS)
"""Axes that a search may be told to leave unchanged: those with a menu."""
JOBS: dict[str, Callable[[JobSlot], None]] = {"look": draw_timeline, "page": write_page, "search": search_plans}
