"""Which part of a tensor each device of a stage holds, and which pieces move between two stages. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.placement import SHARDED, States, count_slices
from simpar.plan.stages import StagePlan

Range = tuple[int, int]
Box = tuple[Range, ...]
DIMS: Mapping[str, int] = {"B": 0, "S": 1, "F": 2}
"""The dim of [batch, sequence, features] that a sharded state slices."""


@dataclass(frozen=True)
class StoredParts:
    """A tensor of a whole ``shape`` on a stage: the dim that each axis of its mesh slices, None for copies."""

    stage: StagePlan
    dims: tuple[int | None, ...]
    shape: tuple[int, ...]

    @staticmethod
    def of(stage: StagePlan, states: States, shape: tuple[int, ...]) -> StoredParts:
        """A tensor [batch, sequence, ...] in some states."""
        return StoredParts(stage, tuple(DIMS.get(state) for state in states), shape)

    def box(self, rank: int) -> Box:
        """Begin and end in every dim of the part of a rank; slices are as even as possible, larger ones first."""
        place = np.unravel_index(rank - self.stage.first_device, self.stage.mesh)
        result = [(0, size) for size in self.shape]
        for dim, ranks, here in zip(self.dims, self.stage.mesh, map(int, place), strict=True):
            if dim is not None:
                begin, end = result[dim]
                each = -(-(end - begin) // ranks)
                result[dim] = min(begin + here * each, end), min(begin + (here + 1) * each, end)
        return tuple(result)

    def ranks_by_box(self) -> dict[Box, list[int]]:
        """The ranks that hold each piece."""
        result: dict[Box, list[int]] = {}
        for rank in range(self.stage.first_device, self.stage.first_device + self.stage.num_devices):
            result.setdefault(self.box(rank), []).append(rank)
        return result


@dataclass(frozen=True)
class TensorSlice:
    """A part of a tensor that one rank sends another: a ``box`` of the whole."""

    sender: int
    receiver: int
    box: Box


def pieces(source: StoredParts, target: StoredParts) -> list[TensorSlice]:
    """Every piece that brings a tensor from one stage to another, by receiver.

    If several ranks hold a piece, its receivers take it from these in turn.
    """
    result = []
    for wanted, receivers in target.ranks_by_box().items():
        for number, receiver in enumerate(receivers):
            for held, holders in source.ranks_by_box().items():
                box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, held, strict=True))
                if all(begin < end for begin, end in box):
                    result.append(TensorSlice(holders[number % len(holders)], receiver, box))
    return sorted(result, key=lambda piece: (piece.receiver, piece.sender, piece.box))


def slice_within(box: Box, outer: Box) -> tuple[slice, ...]:
    """The place of a box in the part of a rank."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def joint(
    stages: tuple[StagePlan, StagePlan], states: tuple[States, States], shape: tuple[int, ...]
) -> tuple[States, States]:
    """The states in which a tensor crosses from one stage to another: unchanged if both are alike, otherwise spread.

    Spread, every device sends and receives its own part, if the rows divide; the receivers then gather what they need
    over their own links [Zheng et al. 2022, arXiv 2201.12023, section 6].
    """
    if stages[0].mesh == stages[1].mesh and states[0] == states[1]:
        return states
    before, behind = (_spread(one, stage.mesh, shape) for one, stage in zip(states, stages, strict=True))
    return before, behind


def _spread(states: States, mesh: Sequence[int], shape: tuple[int, ...]) -> States:
    result = list(states)
    for axis, state in enumerate(states):
        sliced = [*result[:axis], "S", *result[axis + 1 :]]
        rows = prod(size for one, size in zip(sliced, mesh, strict=True) if one == "S")
        if state not in SHARDED and shape[DIMS["S"]] % rows == 0:
            result = sliced
    return tuple(result)


def slices(states: States, mesh: Sequence[int]) -> int:
    """The number of slices into which the rows of a tensor are cut."""
    return int(count_slices(["R" if state == "F" else state for state in states], mesh))
