"""What the ranks of a node keep in their host's memory and on its drives at the worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simpar.cost.offload import HostMemory, host_memory
from simpar.hardware.cluster import Cluster

if TYPE_CHECKING:
    from simpar.program.lower import Lowered

PARTS = ("optimizer_bytes", "gradients_bytes", "parameters_bytes", "activations_bytes", "nvme_bytes")


@dataclass(frozen=True)
class HostUse:
    """The fullest node: bytes of all its ranks together, and what it has."""

    node: HostMemory
    capacity_bytes: float
    nvme_capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether memory and drives of a node hold what its ranks keep there."""
        full = self.node.memory_bytes > self.capacity_bytes
        return not full and self.node.nvme_bytes <= self.nvme_capacity_bytes


def host_use(lowered: Lowered, cluster: Cluster) -> HostUse | None:
    """The fullest host of a job; None where nothing is offloaded."""
    job = lowered.job
    if not job.plan.offload.is_used:
        return None
    stages = {stage: _of_stage(lowered, stage) for stage in set(lowered.stage_of_class.tolist())}
    by_class = np.array(
        [[getattr(stages[stage], part) for part in PARTS] for stage in lowered.stage_of_class.tolist()]
    )
    by_rank = by_class[lowered.layout.class_of_rank]
    nodes = by_rank.reshape(cluster.nodes, -1, len(PARTS)).sum(axis=1)
    fullest = int(np.argmax(nodes[:, :-1].sum(axis=1)))
    host = cluster.profile.host
    drives = host.nvme_bytes if host.nvme_bytes is not None else np.inf
    optimizer, gradients, parameters, activations = nodes[fullest, :-1].tolist()
    node = HostMemory(optimizer, gradients, parameters, activations, float(nodes[:, -1].max()))
    return HostUse(node, host.memory_bytes, float(drives))


def _of_stage(lowered: Lowered, stage: int) -> HostMemory:
    builder = lowered.builders[stage]
    held, job = builder.held_parameters(stage), builder.job
    share = sum(held.get(each.kind, 0.0) / each.shards for each in builder.sync.replicas)
    return host_memory(job.plan, job.stack, share, _activations(lowered, stage))


def _activations(lowered: Lowered, stage: int) -> float:
    """Highest sum of offloaded activations along the passes of a pipeline rank; the last block keeps its own."""
    builder, share = lowered.builders[stage], lowered.job.plan.offload.offload_activations
    if not share:
        return 0.0
    letters, stages, _ = lowered.schedule.letters(stage)
    units = {s: [builder.unit(piece) for piece in builder.pieces[s][:-1]] for s in set(stages.tolist())}
    each = {s: share * sum(unit.saved_bytes for unit in known) for s, known in units.items()}
    sign = {"F": 1.0, "B": -1.0, "I": 0.0, "W": -1.0}
    changes = [sign[letter] * each[s] for letter, s in zip(letters, stages.tolist(), strict=True)]
    return float(np.cumsum(changes).max(initial=0.0))
