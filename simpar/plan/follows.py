"""Fields of a plan that follow from others: when those change, they are left open again and decided anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simpar.plan.choices import BY_NAME, CHOICES
from simpar.plan.plan import Plan

FOLLOW_CLUSTER = {"nodes": ("dp",), "hardware": ("dp",)}
"""Fields of the plan that follow from the number of nodes and their profile."""


def followers(change: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, ...]:
    """Flat names of the fields to leave open under a ``change`` of others; ``before`` are the degrees before it."""
    names = dict.fromkeys(name for key in change for name in _reopened(key))
    for choice in CHOICES:
        if (
            choice.idle_at_one
            and 1 in (change.get(choice.name), before.get(choice.name))
            and choice.name in change
        ):
            names[choice.idle_at_one] = None
    return tuple(name for name in names if name not in change)


def _reopened(key: str) -> tuple[str, ...]:
    return BY_NAME[key].reopens if key in BY_NAME else FOLLOW_CLUSTER.get(key, ())


def following(change: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The plan's stated fields that a ``change`` leaves open again, each with None ("follows from the rest")."""
    said = {name: plan.get(name) for name in followers(change, before={})}
    if said.get("sequence_parallel") is False:  # it follows as well: no sequence is sharded over one rank
        del said["sequence_parallel"]
    return {name: None for name, value in said.items() if value is not None}
