"""Rows of measured tables that name a plan file: the file gives what ran, the row what was measured."""

from __future__ import annotations

from pathlib import Path

from simpar.errors import UserError
from simpar.hardware.profile import MixedProfile
from simpar.scenario import Scenario, load_scenario
from simpar.validate.cells import Row, Unmodelled, number, text
from simpar.validate.rows import Case

PLAN = "plan"
AGREE = ("tp", "pp", "cp", "ep", "vpp", "micro_batch")
"""Columns that may accompany a plan if they agree with it."""


def has_plan(row: Row) -> bool:
    """Whether a row names a plan file."""
    return bool(text(row, PLAN))


def planned(row: Row) -> Case:
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
    plan, training = scenario.plan.flat_values(), scenario.training
    said = {**plan, "n_gpus": cluster.world_size, "seq_len": training.seq_len}
    said["global_batch_seqs"] = training.global_batch
    for name in (*AGREE, "n_gpus", "seq_len", "global_batch_seqs"):
        value = number(row, name)
        if value is not None and value != said.get(name, 1):
            raise Unmodelled(f"{name} = {value:g}, and {path} has {said.get(name, 1)}")
    return Case(
        graph=graph,
        hardware=hardware,
        num_devices=cluster.world_size,
        devices_per_node=cluster.profile.devices_per_node,
        training=training,
        plan=plan,
        stack=scenario.stack or "simpar",
        stack_changes={},
        fabric={},
    )


def beside(row: Row, table: str | Path) -> Row:
    """A row with the path of its plan file resolved from the folder of its table."""
    named = text(row, PLAN)
    return {**row, PLAN: str(Path(table).parent / named)} if named else row


def _hardware(scenario: Scenario) -> str:
    named = scenario.cluster.hardware
    if isinstance(named, MixedProfile):
        raise Unmodelled("a cluster of several kinds of nodes; tables have one kind")
    if not isinstance(named, str):
        raise Unmodelled("hardware that the plan writes out; tables name a profile or its file")
    return named
