"""The place of a rank in the plan's mesh: coordinates, device meshes and process groups."""

from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from simpar.dataclass import dataclass
from simpar.plan.mesh import Mesh
from simpar.plan.plan import Plan
from simpar.plan.stages import StagePlan
from simpar.runtime.stage_mesh import StageMesh

EXPERT_MESH = ("pp", "expert_replicate", "expert_shard", "ep", "etp")


@dataclass(frozen=True)
class Ranks:
    """One rank of a mesh and its process groups; ``replicas`` divide the dp x cp ranks (HSDP).

    Every rank of the job creates the same groups in the same order; groups of one rank are never created.
    """

    mesh: Mesh
    rank: int
    device: Any
    replicas: int = 1
    _groups: dict[str, Any] = field(default_factory=dict)

    def make_groups(self, *, experts: bool) -> None:
        """Create the groups that only some ranks may use, such as those whose stage trains something.

        torch numbers groups in the order of creation on each rank: if one rank left one out, all ranks would hang in
        later ones.
        """
        if self.mesh.world_size > 1:
            _ = self.device_mesh, self.data_group, self.embedding_group
        if self.mesh.world_size > 1 and experts:
            _ = self.expert_mesh, self.expert_copies_group

    @cached_property
    def here(self) -> dict[str, int]:
        """The coordinate of this rank along every axis of the plan."""
        return {axis: int(at[0]) for axis, at in self.mesh.coordinates([self.rank]).items()}

    @property
    def world_size(self) -> int:
        """Ranks that train."""
        return self.mesh.world_size

    @property
    def stage_size(self) -> int:
        """Ranks of a pipeline stage."""
        return self.mesh.world_size // self.mesh.pp

    def states_group(self, _parameter: Any, *, expert: bool) -> Any:
        """Ranks that share one set of optimizer states of a parameter under ZeRO-1; None for one rank."""
        return self.expert_shard_group if expert else self.shard_group

    @property
    def width(self) -> int:
        """Ranks that share gradients: dp x cp."""
        return self.mesh.gradient_ranks

    @property
    def data_rank(self) -> int:
        """The index of this rank among the data-parallel ranks."""
        return self.here["dp"]

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """Axes pp, replicate, shard, tp; shard is dp x cp divided by the HSDP replicas."""
        data = self.mesh.groups(("dp", "cp")).reshape(-1, self.replicas, self.width // self.replicas)
        where = self.mesh.coordinates(data[:, 0, 0])
        grid = np.empty((self.mesh.pp, *data.shape[1:], self.mesh.tp), dtype=np.int64)
        for group, pp, tp in zip(data, where["pp"].tolist(), where["tp"].tolist(), strict=True):
            grid[pp, :, :, tp] = group
        names = ("pp", "replicate", "shard", "tp")
        return DeviceMesh(self.device.type, torch.from_numpy(grid), mesh_dim_names=names)

    @cached_property
    def expert_mesh(self) -> DeviceMesh:
        """The same ranks as experts see them: axes pp, expert_replicate, expert_shard, ep, etp."""
        grid = self.mesh.expert_grid
        pp, copies, *experts = grid.shape
        split = grid.reshape(pp, self.replicas, copies // self.replicas, *experts)
        return DeviceMesh(self.device.type, torch.from_numpy(split), mesh_dim_names=EXPERT_MESH)

    def expert_submesh(self, *axes: str) -> DeviceMesh:
        """The part of the experts' mesh along some axes."""
        return self.expert_mesh[axes if len(axes) > 1 else axes[0]]

    def submesh(self, *axes: str) -> DeviceMesh:
        """The part of the device mesh along some axes."""
        return self.device_mesh[axes if len(axes) > 1 else axes[0]]

    @cached_property
    def tensor_group(self) -> Any:
        """Ranks that share one copy of the layers by tensor parallelism; None for one rank."""
        return self.submesh("tp").get_group() if self.mesh.tp > 1 else None

    @cached_property
    def pipeline_group(self) -> Any:
        """Ranks of one pipeline; None for one rank."""
        return self.submesh("pp").get_group() if self.mesh.pp > 1 else None

    @cached_property
    def data_group(self) -> Any:
        """All dp x cp ranks that average gradients; None for one rank."""
        return self._made("data", self.mesh.groups(("dp", "cp")))

    @cached_property
    def shard_group(self) -> Any:
        """Ranks that share one set of optimizer states; None for one rank."""
        if self.width == self.replicas:
            return None
        return self.submesh("shard").get_group()

    @cached_property
    def replica_groups(self) -> list[Any]:
        """Groups, axis by axis, that join the ranks of one replica of the states where replicas step on their own."""
        shards = [self.shard_group] if self.replicas > 1 else []
        return [each for each in (self.tensor_group, self.pipeline_group, *shards) if each is not None]

    @cached_property
    def expert_copies_group(self) -> Any:
        """Ranks that hold the same experts; None for one rank."""
        return self._made("expert copies", self.mesh.groups("edp"))

    @cached_property
    def expert_shard_group(self) -> Any:
        """Ranks of :meth:`expert_copies_group` that share one set of optimizer states; None for one rank."""
        if self.mesh.expert_data_parallel == self.replicas:
            return None
        return self.expert_submesh("expert_shard").get_group()

    def head_group(self, ulysses: int) -> Any:
        """Neighbouring ranks of a sequence that exchange heads; None for one rank."""
        return self._made("heads", self.mesh.groups("cp").reshape(-1, ulysses))

    def ring_group(self, ulysses: int) -> Any:
        """Ranks of a sequence that pass keys and values on: one of every group of neighbours; None for one rank."""
        rings = self.mesh.groups("cp").reshape(-1, self.mesh.cp // ulysses, ulysses).transpose(0, 2, 1)
        return self._made("ring", rings.reshape(-1, self.mesh.cp // ulysses))

    @cached_property
    def embedding_group(self) -> Any:
        """First and last pipeline rank, which both hold tied embeddings; None within one rank."""
        if self.mesh.pp < 3:
            return self.pipeline_group
        return self._made("embedding", self.mesh.groups("pp")[:, [0, -1]])

    def _made(self, name: str, groups: Any) -> Any:
        """The group of this rank among several of equal size, created once; None if groups have one rank."""
        if groups.shape[1] == 1:
            return None
        if name not in self._groups:
            self._groups[name], _ = dist.new_subgroups_by_enumeration(groups.tolist())
        return self._groups[name]


@dataclass(frozen=True)
class StageRanks(Ranks):
    """One device of a stage with a mesh of its own.

    For data and random numbers, a stage is one rank of the plan's mesh: all its devices draw the whole batch, and split
    it by the roles of their operators.
    """

    stages: tuple[StagePlan, ...] = ()
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """The index of this rank's stage."""
        return next(i for i, stage in enumerate(self.stages) if stage.holds(self.rank))

    @cached_property
    def here(self) -> dict[str, int]:
        """The coordinate of this rank's stage along every axis of the plan."""
        return {axis: int(at[0]) for axis, at in self.mesh.coordinates([self.index]).items()}

    @property
    def world_size(self) -> int:
        """Devices of all stages."""
        return sum(stage.num_devices for stage in self.stages)

    @property
    def stage_size(self) -> int:
        """Devices of this rank's stage."""
        return self.stages[self.index].num_devices

    def make_groups(self, *, experts: bool) -> None:
        """Create the groups of all stages, and one each for activations and gradients between stages."""
        assert not experts, "stages of their own are those of dense models"
        for number, stage in enumerate(self.stages):
            ranks = stage.first_device + torch.arange(stage.num_devices)
            names = tuple(f"axis{axis}" for axis in range(len(stage.mesh)))
            mesh = DeviceMesh(self.device.type, ranks.reshape(stage.mesh), mesh_dim_names=names)
            everybody = dist.new_group(ranks.tolist())
            if number == self.index:
                self.made["here"] = StageMesh(stage, self.rank, mesh, everybody)
        self.made["ways"] = (dist.new_group(), dist.new_group())

    @property
    def here_mesh(self) -> StageMesh:
        """The place of this rank on its stage's mesh, after :meth:`make_groups`."""
        result: StageMesh = self.made["here"]
        return result

    @property
    def ways(self) -> tuple[Any, Any]:
        """Groups of all ranks for messages to later stages, and for messages back."""
        result: tuple[Any, Any] = self.made["ways"]
        return result

    def states_group(self, parameter: Any, *, expert: bool) -> Any:
        """Ranks that hold the same part of a parameter."""
        assert not expert, "stages of their own are those of dense models"
        copies = (axis for axis, placement in enumerate(parameter.placements) if placement.is_replicate())
        return self.here_mesh.group(tuple(copies))


def ranks_of(plan: Plan, rank: int, device: Any, replicas: int = 1) -> Ranks:
    """The place of a rank in a checked plan."""
    if plan.pipeline.stages:
        return StageRanks(plan.mesh, rank, device, stages=plan.pipeline.stages)
    return Ranks(plan.mesh, rank, device, replicas)
