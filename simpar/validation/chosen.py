"""Rows under profiles that the user chose, instead of those that their columns name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simpar import files
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.profiles import base_name, is_learned, parts_of
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.devices import hardware_of
from simpar.validation.planned import has_plan, read_planned_case
from simpar.validation.rows import Case, case


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
