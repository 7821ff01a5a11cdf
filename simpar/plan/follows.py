"""Fields of a plan that follow from others: when those change, they are left open again and decided anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simpar.plan.plan import Plan

FOLLOWS: dict[str, tuple[str, ...]] = {
    "nodes": ("dp",),
    "hardware": ("dp",),
    "tp": ("dp", "offload_gradients"),
    "cp": ("dp", "offload_gradients"),
    "pp": ("dp", "layers", "offload_gradients"),
    "vpp": ("layers",),
    "schedule": ("layers",),
    "zero": ("kind", "reshard_after_forward", "offload_gradients"),
    "offload_optimizer": ("offload_gradients",),
}
"""For fields of the plan or its cluster, the fields of the plan that follow from them."""
IDLE_ALONE = {"tp": "sequence_parallel", "pp": "schedule"}
"""For degrees, the field that means nothing where the degree is 1."""


def followers(change: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, ...]:
    """Flat names of the fields to leave open under a ``change`` of others; ``before`` are the degrees before it."""
    names = dict.fromkeys(name for key in change for name in FOLLOWS.get(key, ()))
    for axis, name in IDLE_ALONE.items():
        if axis in change and 1 in (change[axis], before.get(axis)):
            names[name] = None
    return tuple(name for name in names if name not in change)


def following(change: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The plan's stated fields that a ``change`` leaves open again, each with None ("follows from the rest")."""
    said = {name: plan.said(name) for name in followers(change, before={})}
    if said.get("sequence_parallel") is False:  # it follows as well: no sequence is sharded over one rank
        del said["sequence_parallel"]
    return {name: None for name, value in said.items() if value is not None}
