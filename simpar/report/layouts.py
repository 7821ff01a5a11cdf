"""Names of layouts, independent of the parameters that predict them."""

import hashlib
import json
from typing import Any

from simpar.report.result import Result
from simpar.uncertainty.joint import Known

DIGITS = 16


def layout_of(result: Result) -> str:
    """The name of a simulated layout: the same for the same model, devices, training shape and plan."""
    setup = result.setup
    return _name(setup.model["name"], setup.cluster["devices"], setup.training, _plan(result))


def kin_of(result: Result) -> str:
    """A name that a layout keeps for any number of nodes and any batch: it ignores the number of replicas."""
    plan = {key: value for key, value in _plan(result).items() if key != "dp"}
    return _name(result.setup.model["name"], result.setup.training["seq_len"], plan)


def _plan(result: Result) -> dict[str, Any]:
    return result.plan.flat_values()


def _name(*said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:DIGITS]


def known_layout(result: Result) -> Known:
    """What is known of a layout before it is measured."""
    return Known(kin_of(result), shares_of(result))


def shares_of(result: Result) -> dict[str, float]:
    """The share of the step that every part takes, without parts that take nothing."""
    parts_s = dict(result.time_breakdown_s)
    whole_s = sum(parts_s.values())
    return {name: part_s / whole_s for name, part_s in parts_s.items() if part_s}
