"""The same layout under another software stack, where nobody said which one runs: the default decides the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks import TARGETS
from simpar.frameworks.framework import StackFramework
from simpar.inputs import as_plan
from simpar.neighbours import target_of, trial_of
from simpar.plan.plan import Plan
from simpar.report.parts import Trial
from simpar.report.result import Result
from simpar.scenario import to_cluster_section
from simpar.simulation import simulate
from simpar.stacks.stack import ADAPTER_STACK, DEFAULT_STACK, load_stack

BESIDE = {DEFAULT_STACK: ("torchtitan",), ADAPTER_STACK: ("torchtune",)}
"""Stacks that are simulated beside a default one. Each is the name of its export target, too, where it has one."""
SHARDS = "its recipes shard everything, --zero 3, or train on one device"
"""What torchtune offers."""


def with_other_stacks(result: Result, inputs: Mapping[str, Any]) -> Result:
    """The result with what the same plan gives under other stacks, in ``why.stacks``, if none was asked for.

    ``inputs`` are the arguments of :func:`simpar.simulate`. A stack whose framework cannot run the plan says why.

    >>> import simpar
    >>> inputs = {"model": "gpt2", "cluster": "dgx-h100", "plan": {"zero": 3},
    ...           "training": {"seq_len": 1024, "global_batch": 64}}
    >>> [trial.change for trial in with_other_stacks(simpar.simulate(**inputs), inputs).why.stacks]
    ['--stack torchtitan']
    """
    asked = as_plan(inputs["plan"])
    if inputs.get("stack") or asked.stack or result.setup.plan["stack"] != asked.usual_stack:
        return result
    stacks = tuple(_under(name, inputs) for name in BESIDE[asked.usual_stack])
    return replace(result, why=result.why.model_copy(update={"stacks": stacks}))


def _under(name: str, inputs: Mapping[str, Any]) -> Trial:
    """The plan as it was asked for, simulated under a stack."""
    change = f"--stack {name}"
    try:
        other = simulate(**{**inputs, "stack": name, "with_timeline": False})
        placed = other.plan.model_copy(update={"cluster": to_cluster_section(other.setup.cluster)})
        reasons = _not_offered(name, placed, inputs)
    except UserError as error:
        return Trial(change=change, refused=str(error))
    return trial_of(change, other, f"{name}: {'; '.join(reasons)}" if reasons else "")


def _not_offered(name: str, plan: Plan, inputs: Mapping[str, Any]) -> list[str]:
    """Why the framework of a stack cannot run a plan."""
    if name in TARGETS:
        return StackFramework.asked(name, plan, target_of(inputs), load_stack(name)).reasons
    shards = plan.mesh.replicas == plan.mesh.world_size and (plan.zero == 3 or plan.mesh.world_size == 1)
    return [] if shards else [SHARDS]
