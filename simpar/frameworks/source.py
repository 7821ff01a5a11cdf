"""The input of an export: a plan file, a result or a scenario, with facts that the plan may lack."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.formats import check_answer, is_simulated
from simpar.frameworks.subject import cluster_of, node_of
from simpar.hardware.catalogue import recorded
from simpar.hardware.cluster import Cluster
from simpar.inputs import as_plan
from simpar.layout.decide import decide
from simpar.layout.deciders import state_choices
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.program.perturbation import Perturbation
from simpar.scenario import Perturbations, Scenario, load_scenario, to_cluster_section
from simpar.stacks.stack import Stack, load_stack
from simpar.tracing.code import is_code

CODE = "is code, which no launcher builds; allowed: a model by name or config.json, or simpar run"


@dataclass(frozen=True)
class SourceFlags:
    """Facts given by flags; None if a flag is not given."""

    model: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    hardware: str | None = None
    stack: str | None = None


@dataclass(frozen=True)
class ExportSource:
    """A checked plan with its model, training shape, devices per node, the stack it was made for, and its cluster.

    ``stack`` and ``cluster`` are None if they are not known; ``perturbation`` is what makes the cluster's ranks differ.
    """

    plan: Plan
    graph: ModelGraph
    training: Training
    devices_per_node: int
    perturbation: Perturbation
    stack: Stack | None = None
    cluster: Cluster | None = None


def load_source(plan: Plan | Mapping[str, Any] | Scenario | str | Path, facts: SourceFlags) -> ExportSource:
    """A plan, a scenario, or the file of a plan, a result or a scenario, checked against its model.

    Of the ``facts``, a scenario takes the devices per node alone. Raises UserError for a file that is none of them, a
    missing fact, or a plan that is not allowed.
    """
    if isinstance(plan, Scenario):
        return _of_scenario(plan, "scenario", facts)
    if isinstance(plan, Plan | Mapping):
        return _complete(as_plan(plan), "plan", Path(), facts)
    name = str(plan)
    path = files.find(name, "scenarios", "scenario")
    document = files.load(path)
    data = document.data
    if not isinstance(data, dict):
        raise UserError(f"{document.source}: a plan is a mapping")
    check_answer(data, document.source)
    if isinstance(data.get("cluster"), dict) and "hardware" in data["cluster"]:
        return _from_scenario(name, facts)
    where = data.get("cluster")
    if isinstance(data.get("candidates"), list):
        best = _best(data["candidates"], document.source)
        return _from_plan(best, document.source, path.parent, facts, where)
    if isinstance(data.get("plan"), dict):  # as it was asked for, with the stack's choices left open
        if not is_simulated(data):
            return _from_scenario(name, facts)
        asked = data.get("asked")
        result = asked if isinstance(asked, dict) else data["plan"]
        return _from_plan(result, document.source, path.parent, facts, where)
    return _complete(files.parse(Plan, document), document.source, path.parent, facts)


def _best(candidates: list[Any], source: str) -> dict[str, Any]:
    plan = candidates[0].get("plan") if candidates and isinstance(candidates[0], dict) else None
    if not isinstance(plan, dict):
        raise UserError(f"{source}: candidates: the first has no plan")
    return plan


def _from_plan(data: Mapping[str, Any], source: str, folder: Path, facts: SourceFlags, where: Any) -> ExportSource:
    """A plan of a result; ``where`` is the cluster that the result names."""
    plan = files.parse(Plan, data, source=source)
    if plan.cluster is None and isinstance(where, dict):
        plan = plan.model_copy(update={"cluster": to_cluster_section(where)})
    return _complete(plan, source, folder, facts)


def _from_scenario(name: str, facts: SourceFlags) -> ExportSource:
    flags = {
        "model": facts.model, "training.seq_len": facts.seq_len, "training.global_batch": facts.global_batch,
        "cluster.nodes": facts.nodes, "cluster.hardware": facts.hardware, "stack": facts.stack,
    }  # fmt: skip
    scenario = load_scenario(name, {key: value for key, value in flags.items() if value is not None})
    return _of_scenario(scenario, name, facts)


def _of_scenario(scenario: Scenario, name: str, facts: SourceFlags) -> ExportSource:
    if isinstance(scenario.model, str) and is_code(scenario.model):
        raise UserError(f"{name}: model = {scenario.model}: {CODE}")
    scenario.require_update()
    cluster = scenario.build_cluster()
    plan = scenario.plan.model_copy(update={"stack": scenario.stack or scenario.plan.stack})
    plan = plan.model_copy(update={"model": scenario.model if isinstance(scenario.model, str) else None})
    devices = facts.devices_per_node or cluster.profile.devices_per_node
    target = Workload(scenario.graph(), scenario.training, cluster.world_size, devices)
    return _checked(plan, target, cluster, scenario.perturb())


def _complete(plan: Plan, source: str, folder: Path, facts: SourceFlags) -> ExportSource:
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
        raise UserError(f"{source}: the plan has no training shape: give --seq-len TOKENS --global-batch SEQUENCES")
    training = Training(seq_len=seq_len, global_batch=batch)
    differing = files.parse(Perturbations, plan.perturbation or {}, source=f"{source}: perturbation")
    cluster = _cluster(plan, facts, differing.degraded_links)
    devices = facts.devices_per_node or node_of(cluster)
    world = facts.nodes * devices if facts.nodes else plan.world_size
    if world is None:
        raise UserError(f"{source}: the plan leaves dp open: give --nodes N (and --gpus-per-node)")
    named_plan = plan.model_copy(update={"model": named, "stack": facts.stack or plan.stack})
    return _checked(named_plan, Workload(graph, training, world, devices), cluster, differing.of_ranks())


def _cluster(plan: Plan, facts: SourceFlags, degraded: Mapping[str, float]) -> Cluster | None:
    """The cluster that the plan was made for, or that a flag names, with its links; None if neither is given."""
    named = dict(plan.cluster or {}) | ({"hardware": facts.hardware} if facts.hardware else {})
    cluster = cluster_of(named)
    if cluster and (facts.nodes or not plan.world_size):
        cluster = replace(cluster, nodes=facts.nodes or cluster.nodes)
    return cluster and cluster.with_degraded(degraded)


def _checked(plan: Plan, target: Workload, cluster: Cluster | None, differing: Perturbation) -> ExportSource:
    """Check the plan as its stack would run it; open fields stay open, except dp and the schedule."""
    try:
        stack = load_stack(plan.usual_stack)
    except UserError as error:
        raise UserError(f"{error}; or give the stack that the plan was made for: --stack FILE") from None
    found_for = stack if plan.stack else None
    layout = decide(plan, target, stack)
    whole = state_choices(plan, {"dp": layout.dp, "schedule": layout.schedule})
    whole = whole.model_copy(update={"training": target.training.model_dump()})
    there = cluster if cluster is not None and cluster.world_size == target.world_size else None
    if there is not None:  # the plan carries its cluster
        whole = whole.model_copy(update={"cluster": to_cluster_section(recorded(there))})
    return ExportSource(whole, target.graph, target.training, target.devices_per_node, differing, found_for, there)
