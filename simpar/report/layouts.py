"""What tells one layout from another, whichever parameters predict it."""

from __future__ import annotations

import hashlib
import json

from simpar.plan.plan import Plan
from simpar.report.result import Result

DIGITS = 16


def layout_of(result: Result) -> str:
    """The name of a simulated layout: the same for the same model, devices, training shape and plan."""
    setup = result.setup
    plan = Plan.model_validate(setup.plan).flat_values()
    said = [setup.model["name"], setup.cluster["devices"], setup.training, plan]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:DIGITS]


def shares_of(result: Result) -> dict[str, float]:
    """What part of a step every part of it takes, those that take none left out."""
    parts_s = dict(result.time_breakdown_s)
    whole_s = sum(parts_s.values())
    return {name: part_s / whole_s for name, part_s in parts_s.items() if part_s}
