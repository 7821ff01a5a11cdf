"""What the user hands to an export: a plan file, a result or a scenario, with the facts a plan may lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simpar import files
from simpar.cost.stack import DEFAULT_STACK, load_stack, resolve
from simpar.errors import UserError
from simpar.models.catalogue import load_model
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.plan.check import Target as Checked
from simpar.plan.check import check
from simpar.plan.plan import Plan
from simpar.scenario import load_scenario
from simpar.tracing.code import is_code

DEVICES_PER_NODE = 8
CODE = "is code, which no launcher builds; allowed: a model by name or config.json, or simpar run"


@dataclass(frozen=True)
class Facts:
    """What flags say beside the file; None where they are silent."""

    model: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    nodes: int | None = None
    devices_per_node: int | None = None


@dataclass(frozen=True)
class Source:
    """A checked plan with its model, its shape and the devices of a node."""

    plan: Plan
    graph: ModelGraph
    training: Training
    devices_per_node: int


def load_source(name: str, facts: Facts) -> Source:
    """Read a plan, a result or a scenario and check it against its model.

    Raises UserError for a file that is none of them, a fact that is missing, or a plan that cannot be.
    """
    path = files.find(name, "scenarios", "scenario")
    document = files.load(path)
    data = document.data
    if not isinstance(data, dict):
        raise UserError(f"{document.source}: a plan is a mapping")
    if isinstance(data.get("cluster"), dict) and "hardware" in data["cluster"]:
        return _from_scenario(name, facts)
    if isinstance(data.get("candidates"), list):
        return _from_plan(_best(data["candidates"], document.source), document.source, path.parent, facts)
    if isinstance(data.get("plan"), dict):
        return _from_plan(data["plan"], document.source, path.parent, facts)
    plan = files.parse(Plan, document)
    return _complete(plan, document.source, path.parent, facts)


def _best(candidates: list[Any], source: str) -> dict[str, Any]:
    plan = candidates[0].get("plan") if candidates and isinstance(candidates[0], dict) else None
    if not isinstance(plan, dict):
        raise UserError(f"{source}: candidates: the first has no plan")
    return plan


def _from_plan(data: Mapping[str, Any], source: str, folder: Path, facts: Facts) -> Source:
    return _complete(files.parse(Plan, data, source=source), source, folder, facts)


def _from_scenario(name: str, facts: Facts) -> Source:
    flags = {
        "model": facts.model, "training.seq_len": facts.seq_len, "training.global_batch": facts.global_batch,
        "cluster.nodes": facts.nodes,
    }  # fmt: skip
    scenario = load_scenario(name, {key: value for key, value in flags.items() if value is not None})
    if isinstance(scenario.model, str) and is_code(scenario.model):
        raise UserError(f"{name}: model = {scenario.model}: {CODE}")
    cluster = scenario.build_cluster()
    plan = scenario.plan.model_copy(update={"stack": scenario.stack or scenario.plan.stack})
    plan = plan.model_copy(update={"model": scenario.model if isinstance(scenario.model, str) else None})
    devices = facts.devices_per_node or cluster.profile.devices_per_node
    return _checked(plan, scenario.graph(), scenario.training, cluster.world_size, devices)


def _complete(plan: Plan, source: str, folder: Path, facts: Facts) -> Source:
    named = facts.model or plan.model
    if not named:
        raise UserError(f"{source}: the plan names no model: give --model NAME")
    if is_code(named):
        raise UserError(f"{source}: model = {named}: {CODE}")
    beside = folder / named
    graph = load_model(str(beside) if facts.model is None and named.endswith(".json") else named)
    given = plan.training or {}
    seq_len = facts.seq_len or given.get("seq_len")
    batch = facts.global_batch or given.get("global_batch")
    if not seq_len or not batch:
        raise UserError(
            f"{source}: the plan has no training shape: give --seq-len TOKENS --global-batch SEQUENCES"
        )
    training = Training(seq_len=seq_len, global_batch=batch)
    devices = facts.devices_per_node or DEVICES_PER_NODE
    world = facts.nodes * devices if facts.nodes else plan.world_size
    if world is None:
        raise UserError(f"{source}: the plan leaves dp open: give --nodes N (and --gpus-per-node)")
    return _checked(plan.model_copy(update={"model": named}), graph, training, world, devices)


def _checked(plan: Plan, graph: ModelGraph, training: Training, world_size: int, devices: int) -> Source:
    """Check the plan as its stack would run it; what it leaves open stays open, but for dp and the schedule."""
    settled = resolve(plan, load_stack(plan.stack or DEFAULT_STACK))
    checked = check(settled, Checked(graph, training, world_size, devices))
    mesh = plan.mesh.model_copy(update={"dp": checked.mesh.dp})
    pipeline = plan.pipeline.model_copy(
        update={"schedule": checked.pipeline.schedule, "stages": checked.pipeline.stages}
    )
    whole = plan.model_copy(update={"mesh": mesh, "pipeline": pipeline, "training": training.model_dump()})
    return Source(whole, graph, training, devices)
