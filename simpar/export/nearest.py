"""The nearest plans that a target can express, if it cannot express a plan: with as few changed fields as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from simpar import export
from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.recompute import of_modules
from simpar.models.training import Training
from simpar.plan.check import check
from simpar.plan.choices.target import Target
from simpar.plan.plan import Plan

RECOMPUTE = {"none": 0, "full": 2}
"""Policies ranked by the memory they save; all others rank between these two."""
MOST_CHANGES, MOST_PLANS = 8, 4
AXES = ("tp", "cp", "pp")
ALONE: dict[str, dict[str, Any]] = {
    "tp": {"sequence_parallel": None}, "pp": {"vpp": 1, "schedule": None, "layers": None, "actions": None},
}  # fmt: skip
"""Values of fields that are forced on an axis of one rank."""
LEFT_OPEN = (
    "kind", "bucket_bytes", "first_bucket_bytes", "overlap_grad_reduce", "overlap_param_gather",
    "reshard_after_forward", "grad_dtype", "layers", "capacity_factor", "ulysses",
)  # fmt: skip
"""Fields that a target decides if a plan leaves them open."""
OTHERWISE: dict[str, tuple[dict[str, Any], ...]] = {
    "schedule": ({"schedule": None, "actions": None, "pass_costs": None}, {"schedule": "gpipe"}),
    "recompute": (
        {"recompute": "selective"}, {"recompute": of_modules(["core_attn", "layernorm"])}, {"recompute": "full"},
        {"recompute": "none"},
    ),
    "sequence_parallel": ({"sequence_parallel": False}, {"sequence_parallel": True}),
    "overlap": ({"tensor_parallel": {"overlap": False}},),
    "ep_overlap": ({"ep_overlap": False},),
    "token_dispatch": ({"token_dispatch": "per_expert"},),
    "cp_method": ({"cp_method": "ring"}, {"cp_method": "all_gather"}, {"cp_method": "ulysses"}),
    "cp_balance": ({"cp_balance": "zigzag"}, {"cp_balance": "contiguous"}),
    "master_weights": ({"master_weights": None}, {"master_weights": False}),
    "precision": ({"precision": "fp8"}, {"precision": "bf16"}),
    "optimizer": ({"optimizer": "adamw"},),
    "rank_order": ({"rank_order": "tp-cp-dp-pp"},),
    "hsdp": ({"hsdp": 1},),
    "offload_ratio": ({"offload_ratio": 1.0},),
    "offload_optimizer": ({"offload_optimizer": "none", "offload_parameters": "none"},),
    "offload_parameters": ({"offload_parameters": "none", "offload_optimizer": "none"},),
    "offload_activations": ({"offload_activations": 0.0},),
    "offload_delayed": ({"offload_delayed": False},),
}  # fmt: skip
"""Replacements for the value of a field, the nearest first."""


@dataclass(frozen=True)
class Near:
    """A plan that a target can express, the changes in words, and the fields that now save less memory."""

    plan: Plan
    changes: tuple[str, ...]
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The exported model and training, and the target."""

    graph: ModelGraph
    training: Training
    target: str
    devices_per_node: int


def nearest(plan: Plan, job: Job) -> list[Near]:
    """Plans that the target can express with as few changed fields as possible; at most :data:`MOST_PLANS`.

    Plans that save as much memory as before come first. ``plan`` has its dp. The result is empty if the model cannot be
    expressed, or if no change of a field helps.
    """
    seen: set[str] = set()
    level = [Near(plan, ())]
    for _ in range(MOST_CHANGES):
        lost = [(near, _losses(near.plan, job)) for near in level]
        if whole := [near for near, losses in lost if losses == ()]:
            told = [replace(near, given_up=_given_up(plan, near.plan)) for near in whole]
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


def saving(found: list[Near], job: Job) -> list[list[Near]]:
    """The same plans with additional memory savings, grouped by the number of additional changes.

    More is sharded over data-parallel ranks, all layers are recomputed, or both; variants that the target cannot
    express are left out.
    """
    one = _distinct(near for each in found for near in _saving(each, job))
    return [one, _distinct(near for each in one for near in _saving(each, job))]


def _distinct(found: Iterable[Near]) -> list[Near]:
    plans = {near.plan.model_dump_json(): near for near in found}
    return list(plans.values())[: 2 * MOST_PLANS]


def _saving(near: Near, job: Job) -> Iterator[Near]:
    data, changed = near.plan.data_parallel, "; ".join(near.changes)
    more: list[dict[str, Any]] = [
        {"zero": zero} for zero in range(data.zero + 1, 4) if "zero = " not in changed
    ]
    if "recompute = " not in changed and near.plan.memory.recompute != "full":
        more.append({"recompute": "full"})
    for values in more:
        other = _with(near, values, job)
        if other is not None and _losses(other.plan, job) == ():
            yield replace(other, given_up=near.given_up)


def _given_up(plan: Plan, near: Plan) -> tuple[str, ...]:
    """Fields that save more memory in ``plan`` than in ``near``."""
    found = ["zero"] if near.data_parallel.zero < plan.data_parallel.zero else []
    if RECOMPUTE.get(near.memory.recompute, 1) < RECOMPUTE.get(plan.memory.recompute, 1):
        found.append("recompute")
    for name in ("offload_optimizer", "offload_parameters", "offload_activations"):
        home, other = getattr(plan.offload, name), getattr(near.offload, name)
        if home not in ("none", 0.0) and other in ("none", 0.0):
            found.append(name)
    return tuple(found)


def _losses(plan: Plan, job: Job) -> tuple[export.Loss, ...] | None:
    """What the target cannot express; None if it is not a valid plan."""
    try:
        return export.losses(plan, job.graph, job.training, job.target, devices_per_node=job.devices_per_node)
    except UserError:
        return None


def _changed(near: Near, losses: tuple[export.Loss, ...], job: Job) -> Iterator[Near]:
    """The plan with another value for the first field that cannot be expressed and can be changed."""
    for loss in sorted(losses, key=lambda each: each.field not in AXES):  # axes decide others
        tried = (_with(near, values, job) for values in _instead(near.plan, loss.field))
        if made := [other for other in tried if other is not None]:
            yield from made
            return


def _with(near: Near, values: dict[str, Any], job: Job) -> Near | None:
    """The plan with other values; None if that is not a valid plan."""
    world = Target(job.graph, job.training, near.plan.mesh.world_size, job.devices_per_node)
    try:
        plan = check(near.plan.with_values(**values), world)
    except UserError:
        return None
    now = near.plan.flat_values()
    changed = {name: each for name, each in values.items() if now.get(name) != each}
    named = {
        name: each for name, each in changed.items() if each is not None
    } or changed  # open fields follow
    told = ", ".join(f"{name} = {_told(each)}" for name, each in named.items())
    return Near(plan, (*near.changes, told))


def _instead(plan: Plan, field: str) -> Iterator[dict[str, Any]]:
    """Replacements for the value of a field."""
    mesh = plan.mesh
    if field == "zero":
        here = plan.data_parallel.zero
        yield from (
            {"zero": zero}
            for zero in sorted({0, 1, 2, 3} - {here}, key=lambda zero: (abs(zero - here), -zero))
        )
    elif field in AXES:  # its ranks become data parallel
        size = getattr(mesh, field)
        yield {field: 1, "dp": mesh.replicas * size, **ALONE.get(field, {})}
    elif field == "ep":
        yield {"ep": 1}
    elif field in LEFT_OPEN:
        yield {field: None}
    else:
        now = plan.flat_values()
        for values in OTHERWISE.get(field, ()):
            if any(now.get(name) != value for name, value in values.items()):
                yield values


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(each)}" for name, each in value.items())
    return "left open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
