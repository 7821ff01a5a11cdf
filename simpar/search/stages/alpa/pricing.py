"""Roles and changes of states on a logical mesh as tables: codes of states, seconds of every change of a tensor.

The states of a tensor on all axes together are one number, its code; tables are indexed [state written, state read].
What depends on the mesh alone is made once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simpar.hardware.cluster import Cluster
from simpar.plan.placement import REPLICATE, Role, States, transfers
from simpar.plan.slices import divisors
from simpar.plan.stages import StagePlan
from simpar.program.blocks.phases import TENSOR
from simpar.program.emission.collective_prices import Added, Prices
from simpar.program.lower_stages import axis_groups
from simpar.units import NS_PER_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mesh = tuple[int, ...]
Axes = tuple[int, ...]
LETTERS = "RBSFPX"
PASSES = ("forward", "backward", "summed", "again")
"""What changes cost: forward; backward; of it, sums of gradients; and gathering the input again for them."""


@lru_cache(maxsize=4)
def state_codes(num_axes: int) -> dict[States, int]:
    """The code of every combination of states."""
    return {states: code for code, states in enumerate(product(LETTERS, repeat=num_axes))}


def codes(states: list[States], num_axes: int) -> Ints:
    """Codes of some combinations of states."""
    known = state_codes(num_axes)
    return np.array([known[each] for each in states], dtype=np.int64)


@dataclass(frozen=True)
class RoleTable:
    """Every combination of some roles on a mesh, as columns.

    ``by`` what each size is divided by; ``reads`` and ``writes`` codes; ``data`` index into ``groups``, the axes over
    which weight gradients are summed; ``idle`` axes that repeat work; ``within[code]`` the combination that reads and
    writes that state, -1 without.
    """

    combinations: tuple[tuple[Role, ...], ...]
    by: dict[str, Ints]
    reads: Ints
    writes: Ints
    data: Ints
    groups: tuple[Axes, ...]
    idle: Ints
    within: Ints

    def divided(self, index: Ints) -> dict[str, Ints]:
        """``by`` of some combinations."""
        return {name: values[index] for name, values in self.by.items()}

    def axes_as(self, name: str, index: Ints) -> NDArray[np.bool_]:
        """Where some combinations have a role of that name: bool[combinations, axes]."""
        return np.array([[role.name == name for role in self.combinations[i]] for i in index.tolist()])


@lru_cache(maxsize=512)
def role_table(roles: tuple[Role, ...], mesh: Mesh) -> RoleTable:
    """The table of some roles on a mesh."""
    every = tuple(product(roles, repeat=len(mesh)))
    reads = codes([tuple(role.reads for role in each) for each in every], len(mesh))
    writes = codes([tuple(role.writes for role in each) for each in every], len(mesh))
    axes = [_data_axes(each, mesh) for each in every]
    groups = tuple(dict.fromkeys(axes))
    within = np.full(len(state_codes(len(mesh))), -1, dtype=np.int64)
    for index in np.flatnonzero(reads == writes).tolist():
        if within[reads[index]] < 0:
            within[reads[index]] = index
    return RoleTable(
        combinations=every,
        by=divisors(every, mesh),
        reads=reads,
        writes=writes,
        data=np.array([groups.index(each) for each in axes], dtype=np.int64),
        groups=groups,
        idle=np.array([sum(role is REPLICATE for role in each) for each in every], dtype=np.int64),
        within=within,
    )


def _data_axes(roles: tuple[Role, ...], mesh: Mesh) -> Axes:
    named = enumerate(zip(roles, mesh, strict=True))
    return tuple(axis for axis, (role, size) in named if role.name in ("batch", "sequence") and size > 1)


@dataclass(frozen=True)
class Incidence:
    """How often each pass of each change of states uses each kind of transfer.

    ``kinds`` are (axis, op, share); ``count[pass]`` has shape [states, states, kinds]; ``legal`` is bool
    [states, states].
    """

    kinds: tuple[tuple[int, str, float], ...]
    count: dict[str, Floats]
    legal: NDArray[np.bool_]

    @cached_property
    def groups(self) -> dict[tuple[int, str], Ints]:
        """Kinds that differ in their share only, by (axis, op)."""
        found: dict[tuple[int, str], list[int]] = {}
        for index, (axis, op, _) in enumerate(self.kinds):
            found.setdefault((axis, op), []).append(index)
        return {key: np.array(members, dtype=np.int64) for key, members in found.items()}

    @cached_property
    def shares(self) -> Floats:
        """Share of the tensor of every kind."""
        return np.array([share for _, _, share in self.kinds])


@lru_cache(maxsize=256)
def incidence(mesh: Mesh) -> Incidence:
    """The incidence of a mesh."""
    states = tuple(state_codes(len(mesh)))
    kinds: dict[tuple[int, str, float], int] = {}
    entries: dict[str, list[tuple[int, int, int]]] = {name: [] for name in PASSES}
    legal = np.zeros((len(states), len(states)), dtype=bool)
    for (i, before), (j, after) in product(enumerate(states), enumerate(states)):
        pair = transfers(before, after, mesh)
        if pair is None:
            continue
        legal[i, j] = True
        sums = "X" in after
        for name, moves in zip(("forward", "summed" if sums else "backward"), pair, strict=True):
            for move in moves:
                kind = kinds.setdefault((move.axis, move.op, move.share), len(kinds))
                entries[name].append((i, j, kind))
                if name == "forward" and sums and move.op == "all_gather":
                    entries["again"].append((i, j, kind))
    count = {}
    for name, rows in entries.items():
        table = np.zeros((len(states), len(states), len(kinds)))
        np.add.at(table, tuple(np.array(rows, dtype=np.int64).reshape(-1, 3).T), 1.0)
        count[name] = table
    return Incidence(tuple(kinds), count, legal)


@dataclass(frozen=True)
class Pricer:
    """Prices collectives of a stage with a mesh; ``cluster`` is in its state of training, ``added`` that of a stack."""

    cluster: Cluster
    mesh: Mesh
    added: Added = field(default_factory=Added)
    _changes: dict[float, dict[str, Floats]] = field(default_factory=dict)

    @cached_property
    def _prices(self) -> Prices:
        return Prices(self.cluster, self.added)

    def collective_s(self, op: str, axes: Axes, sizes: Floats, kind: str = TENSOR) -> Floats:
        """Seconds of a collective along some axes, for sizes in bytes."""
        stage = StagePlan(layers=0, first_device=0, mesh=self.mesh, sharding={})
        return self._prices.of(op, axis_groups(stage, axes)[0], kind).time_ns(sizes) / NS_PER_S

    def changes_s(self, size_bytes: float) -> dict[str, Floats]:
        """Seconds of every pass of every change of a tensor: float64[states, states] each."""
        if size_bytes not in self._changes:
            table = incidence(self.mesh)
            times = np.zeros(len(table.kinds))
            for (axis, op), members in table.groups.items():
                times[members] = self.collective_s(op, (axis,), size_bytes * table.shares[members])
            self._changes[size_bytes] = {name: count @ times for name, count in table.count.items()}
        return self._changes[size_bytes]

    @property
    def legal(self) -> NDArray[np.bool_]:
        """Which changes there are."""
        return incidence(self.mesh).legal
