"""The nearest plans that a target can express, where it cannot express one: as few fields changed as can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simpar import export
from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.plan.check import Target, check
from simpar.plan.plan import Plan

MOST_CHANGES, MOST_PLANS = 8, 4
LEFT_OPEN = (
    "kind", "bucket_bytes", "first_bucket_bytes", "overlap_grad_reduce", "overlap_param_gather",
    "reshard_after_forward", "grad_dtype", "master_weights", "layers", "capacity_factor", "ulysses",
)  # fmt: skip
"""Fields that a target decides where a plan leaves them open."""
OTHERWISE: dict[str, tuple[dict[str, Any], ...]] = {
    "schedule": ({"schedule": None, "actions": None, "pass_costs": None}, {"schedule": "gpipe"}),
    "recompute": (
        {"recompute": "selective"}, {"recompute": "modules:core_attn+layernorm"}, {"recompute": "full"},
        {"recompute": "none"},
    ),
    "sequence_parallel": ({"sequence_parallel": False}, {"sequence_parallel": True}),
    "overlap": ({"tensor_parallel": {"overlap": False}},),
    "cp_method": ({"cp_method": "ring"}, {"cp_method": "all_gather"}, {"cp_method": "ulysses"}),
    "cp_balance": ({"cp_balance": "zigzag"}, {"cp_balance": "contiguous"}),
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
"""What may stand in the place of a value, the nearest first."""


@dataclass(frozen=True)
class Near:
    """A plan that a target can express, and what was changed for it, in words."""

    plan: Plan
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """What is exported, and to which target."""

    graph: ModelGraph
    training: Training
    target: str
    devices_per_node: int


def nearest(plan: Plan, job: Job) -> list[Near]:
    """Plans that the target can express, changed in as few fields as can be; at most :data:`MOST_PLANS`.

    ``plan`` has its dp. Empty where what cannot be said is the model, or no change of a field helps.
    """
    seen: set[str] = set()
    level = [Near(plan, ())]
    for _ in range(MOST_CHANGES):
        lost = [(near, _losses(near.plan, job)) for near in level]
        if whole := [near for near, losses in lost if losses == ()]:
            return whole[:MOST_PLANS]
        level = []
        for near, losses in lost:
            for other in _changed(near, losses or (), job):
                key = other.plan.model_dump_json()
                if key not in seen:
                    seen.add(key)
                    level.append(other)
        level = level[: 4 * MOST_PLANS]
    return []


def _losses(plan: Plan, job: Job) -> tuple[export.Loss, ...] | None:
    """What the target cannot express; None for what is no plan."""
    try:
        return export.losses(plan, job.graph, job.training, job.target, devices_per_node=job.devices_per_node)
    except UserError:
        return None


def _changed(near: Near, losses: tuple[export.Loss, ...], job: Job) -> Iterator[Near]:
    """The plan with another value in the place of the first that cannot be said and can be changed."""
    world = Target(job.graph, job.training, near.plan.mesh.world_size, job.devices_per_node)
    for loss in losses:
        made = []
        for values in _instead(near.plan, loss.field):
            try:
                plan = check(near.plan.with_values(**values), world)
            except (UserError, ValueError):
                continue
            told = ", ".join(f"{name} = {_told(value)}" for name, value in values.items())
            made.append(Near(plan, (*near.changes, told)))
        if made:
            yield from made
            return


def _instead(plan: Plan, field: str) -> Iterator[dict[str, Any]]:
    """Values that may stand in the place of a field's."""
    mesh = plan.mesh
    if field == "zero":
        here = plan.data_parallel.zero
        yield from (
            {"zero": zero}
            for zero in sorted({0, 1, 2, 3} - {here}, key=lambda zero: (abs(zero - here), -zero))
        )
    elif field in ("tp", "cp", "pp"):  # its ranks become data-parallel ones
        size = getattr(mesh, field)
        alone: dict[str, Any] = {"pp": {"vpp": 1, "schedule": None, "layers": None, "actions": None}}.get(
            field, {}
        )
        yield {field: 1, "dp": int(mesh.dp or 1) * size, **alone}
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
