"""The same layout under another software stack, where nobody said which one runs: the default decides the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.framework import StackFramework
from simpar.inputs import as_plan
from simpar.neighbours import target_of, trial_of
from simpar.report.parts import Trial
from simpar.report.result import Result
from simpar.scenario import to_cluster_section
from simpar.simulation import simulate
from simpar.stacks.stack import DEFAULT_STACK, load_stack

BESIDE_DEFAULT = ("torchtitan",)
"""Stacks that are simulated beside the default one. Each is the name of its export target, too."""


def with_other_stacks(result: Result, inputs: Mapping[str, Any]) -> Result:
    """The result with what the same plan gives under other stacks, in ``why.stacks``, if none was asked for.

    ``inputs`` are the arguments of :func:`simpar.simulate`. A stack whose framework cannot run the plan says why.

    >>> import simpar
    >>> inputs = {"model": "gpt2", "cluster": "dgx-h100", "plan": {"zero": 3},
    ...           "training": {"seq_len": 1024, "global_batch": 64}}
    >>> [trial.change for trial in with_other_stacks(simpar.simulate(**inputs), inputs).why.stacks]
    ['--stack torchtitan']
    """
    if inputs.get("stack") or as_plan(inputs["plan"]).stack or result.setup.plan["stack"] != DEFAULT_STACK:
        return result
    stacks = tuple(_under(name, inputs) for name in BESIDE_DEFAULT)
    return replace(result, why=result.why.model_copy(update={"stacks": stacks}))


def _under(name: str, inputs: Mapping[str, Any]) -> Trial:
    """The plan as it was asked for, simulated under a stack."""
    change = f"--stack {name}"
    try:
        other = simulate(**{**inputs, "stack": name, "with_timeline": False})
        placed = other.plan.model_copy(update={"cluster": to_cluster_section(other.setup.cluster)})
        asked = StackFramework.asked(name, placed, target_of(inputs), load_stack(name))
    except UserError as error:
        return Trial(change=change, refused=str(error))
    return trial_of(change, other, f"{name}: {'; '.join(asked.reasons)}" if asked.reasons else "")
