"""The device mesh: ranks to coordinates and process groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer

from simpar.units import Count

Ints = NDArray[np.int64]
AXES = ("tp", "cp", "dp", "pp")


class Mesh(BaseModel):
    """Sizes of the mesh axes and their order, fastest varying rank first.

    The world size is tp x cp x dp x pp; expert parallelism re-uses the ranks of dp x cp. In a plan file a
    mesh is a mapping whose key order is the rank order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp: Count = Field(1, description="tensor-parallel ranks")
    cp: Count = Field(1, description="context-parallel ranks")
    dp: Count | None = Field(
        None, description="data-parallel ranks; left out, it follows from the world size"
    )
    pp: Count = Field(1, description="pipeline ranks")
    ep: Count = Field(1, description="expert-parallel ranks, among those of dp x cp")
    order: tuple[str, ...] = Field(AXES, description="axes from fastest to slowest varying rank")

    @field_validator("order")
    @classmethod
    def _every_axis_once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(order) != sorted(AXES):
            raise ValueError(f"the rank order names each of {', '.join(AXES)} once, fastest first")
        return order

    @model_serializer
    def _serialise(self) -> dict[str, int | None]:
        return {**{axis: getattr(self, axis) for axis in self.order}, "ep": self.ep}

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in rank order, fastest first."""
        return tuple(int(getattr(self, axis) or 1) for axis in self.order)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.shape))

    def coordinates(self, ranks: Any) -> dict[str, Ints]:
        """Coordinate of every rank along every axis: axis -> int64[n] for ``ranks`` int64[n]."""
        position = np.unravel_index(np.asarray(ranks), self.shape, order="F")
        return {axis: np.asarray(p, dtype=np.int64) for axis, p in zip(self.order, position, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """The rank at the given coordinates (0 where an axis is left out)."""
        index = tuple(coordinates.get(axis, 0) for axis in self.order)
        return int(np.ravel_multi_index(index, self.shape, order="F"))

    def groups(self, axes: str | tuple[str, ...]) -> Ints:
        """All process groups along one axis, or along the product of several: int64[num_groups, group_size].

        Members are in rank order; groups are sorted by their first rank. Groups of "ep" are neighbours within
        a dp x cp group.
        """
        if axes == "ep":
            return self.groups(("dp", "cp")).reshape(-1, self.ep)
        wanted = (axes,) if isinstance(axes, str) else axes
        grid = np.arange(self.world_size, dtype=np.int64).reshape(self.shape[::-1])  # slowest axis first
        dims = range(len(self.order))
        inside = [i for i in dims if self.order[::-1][i] in wanted]
        outside = [i for i in dims if i not in inside]
        size = int(np.prod([grid.shape[i] for i in inside]))
        return np.ascontiguousarray(np.transpose(grid, [*outside, *inside]).reshape(-1, size))
