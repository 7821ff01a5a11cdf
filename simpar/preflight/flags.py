"""A changed plan as changed options of the text that it was read from, each edit needed, and none missing.

The options of two plans are those that the export of the framework writes; where they differ, the text is edited. The
edited text is read as the given one was: it is shown only where it means the changed plan, and every edit that it does
without is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simpar.cost.stack import resolve
from simpar.errors import UserError
from simpar.export import load_target
from simpar.export.subject import subject
from simpar.export.target import Imported
from simpar.plan.check import Target, check
from simpar.plan.plan import Plan
from simpar.preflight.patch import PATCHERS, SWITCH, Edit
from simpar.search.problem import Problem
from simpar.simulation import balanced

SYNONYMS = {
    "--recompute-granularity": ("--recompute-activations",),
    "--num-virtual-stages-per-pipeline-rank": ("--num-layers-per-virtual-pipeline-stage",),
}
"""Flags that say the same: where one is set or taken out, the others go."""
UNREAD = ("model", "training", "stack", "cluster", "search", "predicted", "version")
"""What of a plan no option of a layout says."""


@dataclass(frozen=True)
class Text:
    """A text of options: its ``syntax`` (of PATCHERS; None where nothing edits it) and how it is read, by text."""

    text: str
    syntax: str | None
    target: str
    read: Callable[[str], Imported]


@dataclass(frozen=True)
class Patched:
    """What changes in a text: edits in the order of the target's options, and the text with them.

    ``text`` is None where the text has no certain place for them: then the edits are all that is known.
    """

    edits: tuple[Edit, ...]
    text: str | None


def patched(given: Text, problem: Problem, before: Plan, after: Plan) -> Patched:
    """The edits that make of a text, which says the plan ``before``, one that says ``after``; both have their dp.

    Raises UserError where a plan cannot be.
    """
    edits = list(_edits(given, problem, before, after))
    wanted = _meaning(after, problem)

    def applied(chosen: Sequence[Edit]) -> str | None:
        """The text with some edits, if it then says what it should."""
        text = _applied(given, chosen)
        if text is None:
            return None
        try:
            return text if _meaning(given.read(text).plan, problem) == wanted else None
        except (UserError, ValueError):
            return None

    text = applied(edits)
    if text is None:
        return Patched(tuple(edits), None)
    for edit in list(edits):
        fewer = [each for each in edits if each is not edit]
        if (shorter := applied(fewer)) is not None:
            edits, text = fewer, shorter
    return Patched(tuple(edits), text)


def _applied(given: Text, edits: Sequence[Edit]) -> str | None:
    text: str | None = given.text
    for edit in edits if given.syntax else ():
        for each in (*(Edit(name, is_gone=True) for name in SYNONYMS.get(edit.name, ())), edit):
            text = None if text is None else PATCHERS[str(given.syntax)](text, each)
    return text if given.syntax else None


def _edits(given: Text, problem: Problem, before: Plan, after: Plan) -> Iterator[Edit]:
    """Where the options of two plans differ."""
    old, new = (_options(given.target, problem, plan) for plan in (before, after))
    for name in (*new, *(name for name in old if name not in new)):
        typed = f"--{name.removeprefix('--')}" if given.syntax == "shell" else name
        if name not in new:
            yield Edit(typed, is_gone=True)
        elif name not in old or old[name] != new[name]:
            yield Edit(typed, _written(new[name], given.syntax))


def _options(target: str, problem: Problem, plan: Plan) -> Mapping[str, Any]:
    found = load_target(target)
    named = plan.model_copy(update={"stack": found.habits(plan)})
    settled = check(named, _place(problem))
    per_node = problem.cluster.profile.devices_per_node
    return found.options(subject(settled, problem.graph, problem.training, found.habits(plan), per_node))


def _place(problem: Problem) -> Target:
    cluster = problem.cluster
    return Target(problem.graph, problem.training, cluster.world_size, cluster.profile.devices_per_node)


def _written(value: Any, syntax: str | None) -> str | None:
    """A value as the text has it."""
    if value is None:
        return SWITCH
    if syntax == "shell" and not isinstance(value, bool):  # booleans are of job configs, as TOML has them
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return value if syntax == "yaml" and isinstance(value, str) else json.dumps(value)


def _meaning(plan: Plan, problem: Problem) -> dict[str, Any]:
    """A plan as its stack runs it, without what is not of its layout."""
    settled = check(balanced(resolve(plan, problem.stack), problem.graph, problem.stack), _place(problem))
    said = settled.model_dump(exclude=set(UNREAD))
    mesh = settled.mesh  # ranks of an expert are said or left out: it is the same
    return said | {"mesh": said["mesh"] | {"etp": mesh.etp or mesh.tp}}
