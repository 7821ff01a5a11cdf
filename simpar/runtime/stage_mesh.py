"""A stage's devices as a mesh, and the changes of states of local tensors on it."""

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from simpar.dataclass import dataclass
from simpar.plan.placement import Role, States
from simpar.plan.stages import StagePlan
from simpar.runtime.resharding import DIMS

Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class StageMesh:
    """A stage's devices, and this rank among them; ``everybody`` is the group of all of them, None for one."""

    stage: StagePlan
    rank: int
    mesh: DeviceMesh
    everybody: Any = None
    _parts: dict[tuple[int, ...], DeviceMesh] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, ...]:
        """Coordinates of this rank."""
        result: Any = self.mesh.get_coordinate()
        return tuple(result)

    def axes(self, roles: Sequence[Role], *names: str) -> tuple[int, ...]:
        """Axes with several ranks on which an operator has one of the named roles."""
        named = enumerate(zip(roles, self.stage.mesh, strict=True))
        return tuple(axis for axis, (role, size) in named if size > 1 and role.name in names)

    def group(self, axes: tuple[int, ...]) -> Any:
        """The process group of this rank along some axes; None for one rank."""
        axes = tuple(axis for axis in axes if self.stage.mesh[axis] > 1)
        if not axes:
            return None
        return self.mesh.get_group(axes[0]) if len(axes) == 1 else self.everybody

    def part(self, axes: tuple[int, ...]) -> DeviceMesh:
        """The submesh along some axes."""
        if len(axes) == len(self.stage.mesh):
            return self.mesh
        if axes not in self._parts:
            names = self.mesh.mesh_dim_names or ()
            self._parts[axes] = self.mesh[tuple(names[axis] for axis in axes)]
        return self._parts[axes]

    def change(self, x: Tensor, before: States, after: States, *, features: int = 0) -> Tensor:
        """A local tensor [batch, sequence, features] in other states; ``features`` counts all if slices are uneven.

        An axis on which both sides leave gradients as summands takes no part. A value that becomes summands stays on
        the first rank; its gradient is whole on all.
        """
        pairs = list(enumerate(zip(before, after, strict=True)))
        moving = [axis for axis, pair in pairs if self.stage.mesh[axis] > 1 and pair != ("X", "X")]
        if any(self.place[axis] for axis in moving if (before[axis], after[axis]) == ("R", "P")):
            x = x - x.detach()
        axes = tuple(axis for axis in moving if (before[axis], after[axis]) != ("R", "P"))
        if all(before[axis] == after[axis] for axis in axes):
            return x
        shape = list(x.shape)
        for axis in axes:
            if (dim := DIMS.get(before[axis])) is not None:
                shape[dim] = features if dim == DIMS["F"] and features else shape[dim] * self.stage.mesh[axis]
        stride = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        held = DTensor.from_local(
            x, self.part(axes), _placements(before, axes), run_check=False,
            shape=torch.Size(shape), stride=tuple(stride),
        )  # fmt: skip
        wanted = _placements(after, axes)
        left = [Partial() if after[axis] == "X" else one for axis, one in zip(axes, wanted, strict=True)]
        left = [Replicate() if after[axis] == "P" else one for axis, one in zip(axes, left, strict=True)]
        return held.redistribute(placements=wanted).to_local(grad_placements=left)


def _placements(states: States, axes: Sequence[int]) -> Placements:
    """DTensor placements of a tensor in some states."""
    names = (states[axis] for axis in axes)
    return tuple(Shard(DIMS[s]) if s in DIMS else Partial() if s == "P" else Replicate() for s in names)
