"""The device mesh: ranks to coordinates and process groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from simpar.units import Count

Ints = NDArray[np.int64]
AXES = ("tp", "cp", "dp", "pp")
DEFAULT_ORDER = AXES


class Mesh(BaseModel):
    """Sizes of the mesh axes and their order, fastest varying rank first.

    The world size is tp x cp x dp x pp; expert parallelism (``ep``) re-uses ranks of dp x cp. In files a mesh is
    a mapping whose key order is the rank order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp: Count = 1
    cp: Count = 1
    dp: Count | None = None
    pp: Count = 1
    ep: Count = 1
    order: tuple[str, ...] = DEFAULT_ORDER

    @model_validator(mode="before")
    @classmethod
    def _order_from_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "order" in data:
            return data
        named = [key for key in data if key in AXES]
        if set(named) == set(AXES):
            return {**data, "order": tuple(named)}
        return data

    @model_validator(mode="after")
    def _complete_order(self) -> Mesh:
        if sorted(self.order) != sorted(AXES):
            raise ValueError(f"order must name each of {', '.join(AXES)} once")
        return self

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

    def coordinates(self, ranks: Ints) -> dict[str, Ints]:
        """Coordinate of every rank along every axis; ``ranks`` int64[n]."""
        position = np.unravel_index(np.asarray(ranks), self.shape, order="F")
        return {axis: np.asarray(p, dtype=np.int64) for axis, p in zip(self.order, position, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """The rank at the given coordinates (0 where an axis is left out)."""
        index = tuple(coordinates.get(axis, 0) for axis in self.order)
        return int(np.ravel_multi_index(index, self.shape, order="F"))

    def groups(self, axes: str | tuple[str, ...]) -> Ints:
        """All process groups along one axis, or along the product of several: int64[num_groups, group_size].

        Members are in rank order; groups are sorted by their first rank.
        """
        wanted = (axes,) if isinstance(axes, str) else axes
        grid = np.arange(self.world_size).reshape(self.shape, order="F")
        inside = [self.order.index(axis) for axis in wanted]
        outside = [i for i in range(len(self.order)) if i not in inside]
        size = int(np.prod([self.shape[i] for i in inside]))
        groups = np.sort(np.transpose(grid, [*outside, *inside]).reshape(-1, size), axis=1)
        return groups[np.argsort(groups[:, 0], kind="stable")].astype(np.int64)
