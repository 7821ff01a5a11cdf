"""The nearest plans that a target can express, if it cannot express a plan: with as few changed fields as possible."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from simpar import frameworks
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.subject import Loss
from simpar.layout.decide import complete_plan
from simpar.layout.moves import choice_of, choices_following, forgone_savings, replacements, savings
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan

MOST_CHANGES, MOST_PLANS = 8, 4


@dataclass(frozen=True)
class Near:
    """A plan that a target can express, the changes in words, and the fields that now save less memory."""

    plan: Plan
    changes: tuple[str, ...]
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportJob:
    """The exported model and training, and the target."""

    graph: ModelGraph
    training: Training
    target: str
    devices_per_node: int


def find_nearest(plan: Plan, job: ExportJob) -> list[Near]:
    """Plans that the target can express with as few changed fields as possible; at most :data:`MOST_PLANS`.

    Plans that save as much memory as before come first. ``plan`` has its dp. The result is empty if the model cannot be
    expressed, or if no change of a field helps.
    """
    seen: set[str] = set()
    level = [Near(plan, ())]
    for _ in range(MOST_CHANGES):
        lost = [(near, _losses(near.plan, job)) for near in level]
        if whole := [near for near, losses in lost if losses == ()]:
            told = [replace(near, given_up=forgone_savings(plan, near.plan)) for near in whole]
            return sorted(told, key=lambda near: len(near.given_up))[:MOST_PLANS]
        level = []
        for near, losses in lost:
            for other in _changed(near, losses or (), job):
                key = other.plan.model_dump_json()
                if key not in seen:
                    seen.add(key)
                    level.append(other)
        level = level[: 4 * MOST_PLANS]
    return []


def find_saving(plans: list[Near], job: ExportJob) -> list[list[Near]]:
    """The same plans with additional memory savings, grouped by the number of additional changes.

    More is sharded over data-parallel ranks, all layers are recomputed, or both; variants that the target cannot
    express are left out.
    """
    one = _distinct(near for each in plans for near in _saving(each, job))
    return [one, _distinct(near for each in one for near in _saving(each, job))]


def _distinct(result: Iterable[Near]) -> list[Near]:
    plans = {near.plan.model_dump_json(): near for near in result}
    return list(plans.values())[: 2 * MOST_PLANS]


def _saving(near: Near, job: ExportJob) -> Iterator[Near]:
    """A plan with one choice that it has not changed yet at a value that saves more memory."""
    changed = "; ".join(near.changes)
    for change in savings(near.plan):
        other = None if any(f"{name} = " in changed for name in change) else _with(near, change, job)
        if other is not None and _losses(other.plan, job) == ():
            yield replace(other, given_up=near.given_up)


def _losses(plan: Plan, job: ExportJob) -> tuple[Loss, ...] | None:
    """What the target cannot express; None if it is not a valid plan."""
    try:
        return frameworks.losses(plan, job.graph, job.training, job.target, devices_per_node=job.devices_per_node)
    except UserError:
        return None


def _changed(near: Near, losses: tuple[Loss, ...], job: ExportJob) -> Iterator[Near]:
    """The plan with another value for the first choice that cannot be expressed and can be changed."""
    names = [choice_of(loss.field) for loss in losses]
    for name in sorted(names, key=lambda name: "dp" not in choices_following(name)):  # axes decide others
        tried = (_with(near, change, job) for change in replacements(near.plan, name))
        if made := [other for other in tried if other is not None]:
            yield from made
            return


def _with(near: Near, values: dict[str, Any], job: ExportJob) -> Near | None:
    """The plan with other values; None if that is not a valid plan."""
    target = Workload(job.graph, job.training, near.plan.mesh.world_size, job.devices_per_node)
    try:
        plan = complete_plan(near.plan.with_values(**values), target)
    except (UserError, ValueError):
        return None
    now = near.plan.flat_values()
    changed = {name: each for name, each in values.items() if now.get(name) != each}
    named = {name: each for name, each in changed.items() if each is not None} or changed  # open fields follow
    told = ", ".join(f"{name} = {_told(each)}" for name, each in named.items())
    return Near(plan, (*near.changes, told))


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(each)}" for name, each in value.items())
    return "left open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
