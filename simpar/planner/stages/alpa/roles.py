"""Roles and changes of states on a logical mesh as tables: codes of states, and seconds of every change of a tensor.

The states of a tensor on all axes together are one number, its code; tables are indexed [state written, state read].
Everything that depends on the mesh alone is computed once.
"""

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property, lru_cache, reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.plan.placement import REPLICATE, Role, States, transfers
from simpar.plan.slices import divisors
from simpar.plan.stages import StagePlan
from simpar.program.blocks.phases import TENSOR, CollectiveUse
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.lower_stages import axis_groups
from simpar.units import NS_PER_S, Floats, Ints

Mesh = tuple[int, ...]
Axes = tuple[int, ...]
LETTERS = "RBSFPX"
SERIAL, SUMMED, AGAIN = range(3)
"""Passes of a change: what kernels wait for; sums of gradients; gathering the input again for weight gradients."""


@lru_cache(maxsize=4)
def states_of(num_axes: int) -> tuple[States, ...]:
    """Every combination of states; the code of a combination is its index."""
    return tuple(product(LETTERS, repeat=num_axes))


def codes(states: Sequence[States]) -> Ints:
    """Codes of some combinations of states: int64[n]."""
    digits = [[LETTERS.index(state) for state in each] for each in states]
    return np.array([reduce(lambda code, digit: code * len(LETTERS) + digit, each, 0) for each in digits], np.int64)


@dataclass(frozen=True)
class RoleTable:
    """Every combination of some roles on a mesh, as columns.

    ``by`` holds divisors by size, ``reads`` and ``writes`` codes of states, ``groups`` the axes over which weight
    gradients are summed, ``idle`` the number of axes that repeat work, and ``within[code]`` the combination that reads
    and writes that state (-1: none).
    """

    combinations: tuple[tuple[Role, ...], ...]
    by: dict[str, Ints]
    reads: Ints
    writes: Ints
    groups: tuple[Axes, ...]
    idle: Ints
    within: Ints


@lru_cache(maxsize=512)
def role_table(roles: tuple[Role, ...], mesh: Mesh) -> RoleTable:
    """The table of some roles on a mesh."""
    every = tuple(product(roles, repeat=len(mesh)))
    reads = codes([tuple(role.reads for role in each) for each in every])
    writes = codes([tuple(role.writes for role in each) for each in every])
    within = np.full(len(states_of(len(mesh))), -1, dtype=np.int64)
    for index in np.flatnonzero(reads == writes)[::-1].tolist():
        within[reads[index]] = index
    groups = (
        tuple(a for a, role in enumerate(each) if role.name in ("batch", "sequence") and mesh[a] > 1) for each in every
    )
    idle = [sum(role is REPLICATE for role in each) for each in every]
    return RoleTable(every, divisors(every, mesh), reads, writes, tuple(groups), np.array(idle), within)


@dataclass(frozen=True)
class StateChanges:
    """The collectives of all changes of states on a mesh; ``legal`` bool[states, states] marks possible changes.

    ``at[axis, op]`` are (pass, written, read, share of the tensor) of every collective of that kind; ``summands``
    bool[states] marks codes of summands on some axis.
    """

    at: dict[tuple[int, str], tuple[Ints, Ints, Ints, Floats]]
    legal: NDArray[np.bool_]
    summands: NDArray[np.bool_]


@lru_cache(maxsize=256)
def moves(mesh: Mesh) -> StateChanges:
    """The collectives of a mesh."""
    states = states_of(len(mesh))
    legal = np.zeros((len(states), len(states)), dtype=bool)
    rows: dict[tuple[int, str], list[tuple[int, int, int, float]]] = {}
    for (i, before), (j, after) in product(enumerate(states), enumerate(states)):
        pair = transfers(before, after, mesh)
        if pair is None:
            continue
        legal[i, j] = True
        sums = "X" in after
        moved = [(SERIAL, move) for move in pair[0]]
        moved += [(AGAIN, move) for move in pair[0] if sums and move.op == "all_gather"]
        moved += [(SUMMED if sums else SERIAL, move) for move in pair[1]]
        for which, move in moved:
            rows.setdefault((move.axis, move.op), []).append((which, i, j, float(move.share)))
    at = {}
    for kind, entries in rows.items():
        which, written, read = np.array([entry[:3] for entry in entries]).T
        at[kind] = (which, written, read, np.array([share for *_, share in entries]))
    return StateChanges(at, legal, np.array(["P" in each for each in states]))


@dataclass(frozen=True)
class Pricer:
    """Prices the collectives of a stage with a mesh at the front of the cluster of ``prices``."""

    prices: Prices
    mesh: Mesh
    _prices: dict[tuple[str, Axes, str], Price] = field(default_factory=dict)
    _changes: dict[float, Floats] = field(default_factory=dict)

    @cached_property
    def stage(self) -> StagePlan:
        """The stage, without blocks."""
        return StagePlan(layers=0, first_device=0, mesh=self.mesh)

    def price(self, op: str, axes: Axes, kind: str = TENSOR) -> Price:
        """The price of a collective along some axes."""
        key = op, axes, kind
        if key not in self._prices:
            self._prices[key] = self.prices.of(op, axis_groups(self.stage, axes)[0], kind)
        return self._prices[key]

    def of_use(self, use: CollectiveUse) -> Price:
        """The price of a collective of the stage's blocks, whose group is named after its axes."""
        return self.price(use.op, tuple(map(int, use.group.rpartition("_")[2])), use.group)

    def collective_s(self, op: str, axis: int, sizes: Floats) -> Floats:
        """Seconds of a collective inside blocks along an axis, for sizes in bytes."""
        return self.price(op, (axis,)).time_ns(sizes) / NS_PER_S

    def changes_s(self, size_bytes: float) -> Floats:
        """Seconds of every pass of every change of a tensor: float64[passes, states, states]."""
        if size_bytes not in self._changes:
            known = moves(self.mesh)
            seconds = np.zeros((3, *known.legal.shape))
            for (axis, op), (which, written, read, share) in known.at.items():
                np.add.at(seconds, (which, written, read), self.collective_s(op, axis, size_bytes * share))
            self._changes[size_bytes] = seconds
        return self._changes[size_bytes]
