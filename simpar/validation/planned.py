"""Rows of measured tables that name a plan file: the file gives what ran, the row what was measured."""

from __future__ import annotations

from pathlib import Path

from simpar.errors import UserError
from simpar.hardware.profile import MixedProfile
from simpar.profiles import is_file
from simpar.scenario import Scenario, load_scenario
from simpar.validation.cells import Row, Unmodelled, plain, text
from simpar.validation.columns import PLAN_COLUMNS
from simpar.validation.row_plan import canonical
from simpar.validation.rows import Case

PLAN = "plan"


def has_plan(row: Row) -> bool:
    """Whether a row names a plan file."""
    return bool(text(row, PLAN))


def read_planned_case(row: Row) -> Case:
    """The simulation input of a row that names a plan file.

    Raises Unmodelled if the row contradicts the plan, or for a plan that tables of runs do not support.
    """
    path = text(row, PLAN)
    try:
        scenario = load_scenario(path)
        hardware = _hardware(scenario)
        cluster, graph = scenario.build_cluster(), scenario.graph()
    except UserError as error:
        raise Unmodelled(str(error).splitlines()[0]) from None
    if cluster != scenario.cluster.load():
        raise Unmodelled(f"{path}: the switches of its cluster are not those of {hardware}")
    if scenario.perturbation.slow_ranks or scenario.perturbation.jitter:
        raise Unmodelled(f"{path}: is of a cluster with slow ranks")
    plan, training = scenario.plan, scenario.training
    expected = {name: plan.get(name) for name in dict.fromkeys(PLAN_COLUMNS.values())}
    expected["dp"] = cluster.world_size // (plan.mesh.tp * plan.mesh.cp * plan.mesh.pp)
    expected |= {"n_gpus": cluster.world_size, "seq_len": training.seq_len, "global_batch_seqs": training.global_batch}
    row = canonical(row)
    for name, own in expected.items():
        value = plain(row, name)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and str(value).lower() != str(own).lower():
            raise Unmodelled(f"{name} = {value}, and {path} has {own}")
    return Case(
        graph=graph,
        hardware=hardware,
        num_devices=cluster.world_size,
        devices_per_node=cluster.profile.devices_per_node,
        training=training,
        plan=plan.flat_values(),
        stack=scenario.stack or "simpar",
        stack_changes={},
        fabric={},
    )


def resolve_paths(row: Row, table: str | Path) -> Row:
    """A row with the paths of its files resolved from the folder of its table."""
    folder = Path(table).parent
    files = {name: text(row, name) for name in ("hardware", "stack", "model") if is_file(text(row, name))}
    if named := text(row, PLAN):
        files[PLAN] = named
    return {**row, **{name: str(folder / path) for name, path in files.items()}}


def _hardware(scenario: Scenario) -> str:
    named = scenario.cluster.hardware
    if isinstance(named, MixedProfile):
        raise Unmodelled("a cluster of several kinds of nodes; tables have one kind")
    if not isinstance(named, str):
        raise Unmodelled("hardware that the plan writes out; tables name a profile or its file")
    return named
