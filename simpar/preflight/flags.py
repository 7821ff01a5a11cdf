"""A changed plan as changed options of the text that it was read from, each edit needed, and none missing.

The options of two plans are those that the export of the framework writes; where they differ, the text is edited. The
edited text is read as the given one was: it is shown only where it means the changed plan, and every edit that it does
without is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simpar.cost.stack import resolve
from simpar.errors import UserError
from simpar.export import load_target
from simpar.export.subject import STACK_FIELDS, idle_overlaps, subject
from simpar.export.target import Imported
from simpar.plan.check import Target, check
from simpar.plan.plan import Plan
from simpar.preflight.patch import PATCHERS, SWITCH, Edit
from simpar.simulation import balanced

if TYPE_CHECKING:
    from simpar.search.problem import Problem

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

    ``text`` is None where the text has no certain place for them: then the edits are all that is known. ``unsaid`` are
    choices of the plan (``memory.recompute = full``) that the text does not say with them: the framework has them in
    its code, or not at all.
    """

    edits: tuple[Edit, ...]
    text: str | None
    unsaid: tuple[str, ...] = ()


def patched(given: Text, problem: Problem, before: Plan, after: Plan) -> Patched:
    """The edits that make of a text, which says the plan ``before``, one that says ``after``; both have their dp.

    Raises UserError where a plan cannot be.
    """
    options = [_options(given.target, problem, plan) for plan in (before, after)]
    edits = list(_edits(given, *options))
    wanted, world_size = _meaning(after, problem), problem.cluster.world_size
    said = given.read(given.text).global_batch(world_size)
    batch = said and problem.training.global_batch  # of a text that says none, flags say it again

    def applied(chosen: Sequence[Edit]) -> str | None:
        """The text with some edits, if it then says what it should, the batch included."""
        text = _applied(given, chosen)
        if text is None:
            return None
        try:
            found = given.read(text)
            same = (
                found.global_batch(world_size) == batch
                and _meaning(found.placed(world_size), problem) == wanted
            )
            return text if same else None
        except (UserError, ValueError):
            return None

    text = applied(edits)
    if text is None:
        whole = [*edits, *_batch_edits(given, problem, after, options[1])]
        text = applied(whole)
        edits = edits if text is None else whole
    if text is None:
        return Patched(tuple(edits), None, tuple(_unsaid(given, edits, wanted, problem)))
    for edit in list(edits):
        fewer = [each for each in edits if each is not edit]
        if (shorter := applied(fewer)) is not None:
            edits, text = fewer, shorter
    return Patched(tuple(edits), text)


def _unsaid(given: Text, edits: Sequence[Edit], wanted: Mapping[str, Any], problem: Problem) -> Iterator[str]:
    """Choices that an edited text does not say as they are wanted."""
    try:
        text = _applied(given, edits)
        said = {} if text is None else _meaning(given.read(text).plan, problem)
    except (UserError, ValueError):
        return
    for section, value in said.items():
        parts = [(section, value, wanted[section])]
        if isinstance(value, dict):
            parts = [(f"{section}.{key}", now, wanted[section][key]) for key, now in value.items()]
        yield from (f"{name} = {json.dumps(should)}" for name, now, should in parts if now != should)


def _applied(given: Text, edits: Sequence[Edit]) -> str | None:
    text: str | None = given.text
    for edit in edits if given.syntax else ():
        for each in (*(Edit(name, is_gone=True) for name in SYNONYMS.get(edit.name, ())), edit):
            text = None if text is None else PATCHERS[str(given.syntax)](text, each)
    return text if given.syntax else None


def _edits(given: Text, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Edit]:
    """Where the options of two plans differ."""
    for name in (*new, *(name for name in old if name not in new)):
        typed = f"--{name.removeprefix('--')}" if given.syntax == "shell" else name
        if name not in new:
            yield Edit(typed, is_gone=True)
        elif name not in old or old[name] != new[name]:
            yield Edit(typed, _written(new[name], given.syntax))


def _batch_edits(given: Text, problem: Problem, after: Plan, options: Mapping[str, Any]) -> Iterator[Edit]:
    """The options of a plan that say the batch of a step, which the text leaves to others: another changes them."""
    training = problem.training
    twice = replace(problem, training=training.model_copy(update={"global_batch": 2 * training.global_batch}))
    return _edits(given, _options(given.target, twice, after), options)


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
    """A plan as its stack runs it, without what is not of its layout, and without what changes nothing in it."""
    settled = check(balanced(resolve(plan, problem.stack), problem.graph, problem.stack), _place(problem))
    said = settled.model_dump(exclude=set(UNREAD))
    idle = idle_overlaps(settled)
    for section, names in STACK_FIELDS.items():
        said[section] |= dict.fromkeys(idle & set(names))
    mesh = settled.mesh  # ranks of an expert are said or left out: it is the same
    return said | {"mesh": said["mesh"] | {"etp": mesh.etp or mesh.tp}}
