"""Rows under profiles that the user chose, instead of those that their columns name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.profile import MixedProfile
from simpar.profiles import base_name, is_file, is_learned, parts_of
from simpar.scenario import Scenario, load_scenario
from simpar.validation.cells import Row, Unmodelled, plain, text
from simpar.validation.columns import PLAN_COLUMNS
from simpar.validation.devices import hardware_of
from simpar.validation.rows import Case, canonical, case

# Rows of measured tables that name a plan file: the file gives what ran, the row what was measured.
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
    expected["dp"] = cluster.world_size // int(plan.mesh.sizes.replica_ranks)
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


@dataclass(frozen=True)
class ProfileOverrides:
    """Profiles to predict rows with, by names or files: one for all rows, or by the profile that each replaces.

    ``file`` is named in the reason for a row that none of several profiles fits.
    """

    stack: str | None = None
    hardware: str | None = None
    stacks: Mapping[str, str] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @classmethod
    def learned(cls, path: str) -> ProfileOverrides:
        """The profiles in a file of ``simpar learn``; a single profile of a kind is for all rows. Raises UserError."""
        document = files.load(path)
        if not is_learned(document):
            raise UserError(f"{path}: was not written by simpar learn")
        stacks, clusters = (
            {name: f"{path}#{name}" for name in parts_of(document, kind)} for kind in ("stacks", "clusters")
        )
        return cls(_only(stacks), _only(clusters), stacks, clusters, path)

    def case(self, row: Row) -> Case:
        """The simulation input of a row on the chosen profiles. Raises Unmodelled with the reason."""
        if has_plan(row):
            return self._planned(row)
        if self.stack and not text(row, "stack"):
            row = {**row, "stack": base_name(self.stack, "stacks", "stack") or "simpar"}
        result = case(row, self._hardware(row))
        return replace(result, stack=self.stack or self._part(self.stacks, result.stack, "stack"))

    def _planned(self, row: Row) -> Case:
        """The simulation input of a row with a plan file."""
        result = read_planned_case(row)
        base = base_name(result.stack, "stacks", "stack"), base_name(result.hardware, "clusters", "hardware")
        stack = self.stack or (self._part(self.stacks, base[0], "stack") if self.file else result.stack)
        hardware = self.hardware or (self._part(self.clusters, base[1], "hardware") if self.file else result.hardware)
        own, cluster = load_cluster(result.hardware), load_cluster(hardware)
        if own.device.name != cluster.device.name:
            raise Unmodelled(f"of another device ({own.device.name}, not {cluster.device.name})")
        return replace(result, stack=stack, hardware=hardware)

    def _hardware(self, row: Row) -> tuple[str, int] | None:
        name = self.hardware
        if name is None and self.file:
            name = self._part(self.clusters, hardware_of(row), "hardware")
        if name is None:
            return None
        cluster = load_cluster(name)
        try:
            own = load_cluster(hardware_of(row)).device.name
        except Unmodelled:
            own = cluster.device.name  # the row names no device of simpar: use what was chosen
        if own != cluster.device.name:
            raise Unmodelled(f"of another device ({own}, not {cluster.device.name})")
        return name, cluster.profile.devices_per_node

    def _part(self, parts: Mapping[str, str], name: str, what: str) -> str:
        if not self.file:
            return name
        if name not in parts:
            raise Unmodelled(f"{self.file} has no {what} {name}")
        return parts[name]


def _only(parts: Mapping[str, str]) -> str | None:
    return next(iter(parts.values())) if len(parts) == 1 else None


AS_NAMED = ProfileOverrides()
