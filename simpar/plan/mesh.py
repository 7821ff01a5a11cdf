"""The device mesh: ranks to coordinates and process groups."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, field_validator, model_serializer

from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.files import choose
from simpar.units import Count, Counts, Flags, Ints, number

AXES = ("tp", "cp", "dp", "pp")
EXPERT_AXES = ("etp", "ep", "edp")


@dataclass(frozen=True, kw_only=True)
class MeshSizes:
    """Degrees of parallelism, as numbers or columns; ``etp`` None, or 0 in a column, follows from tp and ep."""

    tp: Counts = 1
    cp: Counts = 1
    dp: Counts = 1
    pp: Counts = 1
    ep: Counts = 1
    etp: Counts | None = None

    @property
    def width(self) -> Counts:
        """Ranks that sum gradients of everything but experts: dp x cp."""
        return self.dp * self.cp

    @property
    def expert_tensor_parallel(self) -> Counts:
        """Ranks that share an expert: as given, else 1 with ep > 1, else tp."""
        usual = np.where(np.asarray(self.ep) > 1, 1, self.tp)
        ranks: Counts = number(usual if self.etp is None else np.where(np.asarray(self.etp) > 0, self.etp, usual))
        return ranks

    @property
    def is_pipelined(self) -> bool | Flags:
        """Whether there are several pipeline stages."""
        return self.pp > 1

    @property
    def replica_ranks(self) -> Counts:
        """Ranks that hold one replica of the model together: tp x cp x pp."""
        return self.tp * self.cp * self.pp

    @property
    def expert_copies(self) -> Counts:
        """Ranks that hold the same experts."""
        return self.tp * self.width // (self.ep * self.expert_tensor_parallel)

    @property
    def communicators(self) -> Counts:
        """Number of kinds of groups in which a rank communicates."""
        axes = self.tp, self.dp, self.pp, self.cp, self.ep
        several = sum(np.asarray(np.asarray(size) > 1, dtype=np.int64) for size in axes)
        among_copies = (np.asarray(self.ep) > 1) & (np.asarray(self.expert_copies) > 1)
        result: Counts = number(several + among_copies)
        return result


class Mesh(Strict):
    """Sizes of the mesh axes and their order, fastest varying rank first.

    The world size is tp x cp x dp x pp. Experts fold the same tp x cp x dp ranks of a stage in their own way, as
    etp x ep x edp with etp varying fastest [Liu et al. 2025, arXiv 2504.14960]. In a plan file a mesh is a mapping
    whose key order is the rank order.

    >>> mesh = Mesh(tp=2, dp=2, pp=2)
    >>> mesh.world_size, mesh.rank(tp=1, cp=0, dp=0, pp=1)
    (8, 5)
    >>> mesh.groups("dp").tolist()  # ranks of every group, int64[groups, members]
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """

    tp: Count = Field(default=1, description="tensor-parallel ranks")
    cp: Count = Field(default=1, description="context-parallel ranks")
    dp: Count | None = Field(default=None, description="data-parallel ranks; left out, it follows from the world size")
    pp: Count = Field(default=1, description="pipeline ranks")
    ep: Count = Field(default=1, description="expert-parallel ranks, among those of tp x cp x dp")
    etp: Count | None = Field(
        default=None, description="tensor-parallel ranks of an expert; left out, 1 with ep > 1, else tp"
    )
    order: tuple[str, ...] = Field(default=AXES, description="axes from fastest to slowest varying rank")

    @field_validator("order")
    @classmethod
    def _every_axis_once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(order) != sorted(AXES):
            raise ValueError(f"the rank order names each of {', '.join(AXES)} once, fastest first")
        return order

    @model_serializer
    def _serialise(self) -> dict[str, int | None]:
        return {**{axis: getattr(self, axis) for axis in self.order}, "ep": self.ep, "etp": self.etp}

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in rank order, fastest first."""
        return tuple(int(getattr(self, axis) or 1) for axis in self.order)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.shape))

    @property
    def sizes(self) -> MeshSizes:
        """Its degrees, and what follows from them."""
        return MeshSizes(tp=self.tp, cp=self.cp, dp=self.replicas, pp=self.pp, ep=self.ep, etp=self.etp)

    @property
    def replicas(self) -> int:
        """Data-parallel ranks; 1 where they are left open."""
        return int(self.dp or 1)

    @property
    def gradient_ranks(self) -> int:
        """Ranks that reduce gradients with each other: dp x cp."""
        return int(self.sizes.width)

    def coordinates(self, ranks: Any) -> dict[str, Ints]:
        """Coordinate of every rank along every axis: axis -> int64[n] for ``ranks`` int64[n]."""
        position = np.unravel_index(np.asarray(ranks), self.shape, order="F")
        return {axis: np.asarray(p, dtype=np.int64) for axis, p in zip(self.order, position, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """The rank at the given coordinates (0 where an axis is left out). Raises UserError for an unknown axis."""
        for axis in coordinates:
            choose(axis, self.order, "axis")
        return int(self.at({**dict.fromkeys(self.order, 0), **coordinates}))

    def at(self, coordinates: Mapping[str, Any]) -> Ints:
        """Ranks at coordinates along every axis: ints, or arrays that broadcast."""
        result: Ints = np.ravel_multi_index([coordinates[axis] for axis in self.order], self.shape, order="F")
        return result

    def at_stage(self, ranks: Any, stage: Any) -> Ints:
        """The ranks with the same coordinates in another pipeline stage; ints, or arrays that broadcast."""
        return self.at({**self.coordinates(ranks), "pp": stage})

    def pipeline_rank(self, ranks: Any) -> Ints:
        """The pipeline stage of every rank: int64[n] for ``ranks`` int64[n]."""
        return self.coordinates(ranks)["pp"]

    @property
    def pipelines(self) -> Ints:
        """The ranks of every pipeline, stage by stage: int64[num_pipelines, num_stages]."""
        return self.groups("pp")

    @property
    def grid(self) -> Ints:
        """The rank at every coordinate, int64 of ``shape``."""
        return np.arange(self.world_size, dtype=np.int64).reshape(self.shape, order="F")

    def groups(self, axes: str | tuple[str, ...]) -> Ints:
        """All process groups along one axis, or along the product of several: int64[num_groups, group_size].

        Members are in rank order; groups are sorted by their first rank. "etp", "ep" and "edp" (ranks that hold
        the same experts) are axes of the expert mesh.
        """
        if axes in EXPERT_AXES:
            return self._expert_groups(str(axes))
        wanted = (axes,) if isinstance(axes, str) else axes
        grid = self.grid.T  # slowest axis first
        dims = range(len(self.order))
        inside = [i for i in dims if self.order[::-1][i] in wanted]
        outside = [i for i in dims if i not in inside]
        size = int(np.prod([grid.shape[i] for i in inside]))
        return np.ascontiguousarray(np.transpose(grid, [*outside, *inside]).reshape(-1, size))

    @property
    def expert_tensor_parallel(self) -> int:
        """Tensor-parallel ranks of an expert: as given, else 1 with ep > 1, else tp."""
        return int(self.sizes.expert_tensor_parallel)

    @property
    def expert_data_parallel(self) -> int:
        """Ranks that hold the same experts."""
        return int(self.sizes.expert_copies)

    def expert_coordinate(self, ranks: Any) -> Ints:
        """Coordinate along ep of every rank: int64[n] for ``ranks`` int64[n]."""
        place = np.empty(self.world_size, dtype=np.int64)
        place[self.expert_grid.ravel()] = np.arange(self.world_size)
        return np.asarray(place[np.asarray(ranks)] // self.expert_tensor_parallel % self.ep)

    @property
    def expert_grid(self) -> Ints:
        """Ranks as int64[pp, edp, ep, etp]: a stage's ranks, tp fastest, then cp and dp in rank order, folded."""
        others = [axis for axis in self.order if axis in ("cp", "dp")]
        slowest_first = ["pp", *reversed(others), "tp"]
        plane = np.transpose(self.grid, [self.order.index(axis) for axis in slowest_first])
        return plane.reshape(self.pp, -1, self.ep, self.expert_tensor_parallel)

    def _expert_groups(self, axis: str) -> Ints:
        grid = np.moveaxis(self.expert_grid, {"edp": 1, "ep": 2, "etp": 3}[axis], -1)
        groups = np.sort(grid.reshape(-1, grid.shape[-1]), axis=1)
        return groups[np.argsort(groups[:, 0], kind="stable")].astype(np.int64)
