"""The input of every scheme: replicas with their local steps, the bytes that they exchange, and the cluster."""

from functools import cached_property

import numpy as np

from simpar.cost.optimizers import moment_bytes
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.program.structure.synchronisation import Synchronisation
from simpar.units import DTYPE_BYTES, Indices, Ints, to_ns


@dataclass(frozen=True)
class LocalSteps:
    """Local steps: ``local_ns`` int64[replicas] without jitter, and lognormal factors with ``sigma``, keyed by seed.

    ``of_rank`` int64[world] is the replica of every rank.
    """

    local_ns: Ints
    of_rank: Ints
    sigma: float = 0.0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.local_ns)

    def steps_ns(self, count: int) -> Ints:
        """Durations of the first ``count`` local steps, int64[replicas, count].

        Factors have mean 1 and come from a counter-based generator keyed by (seed, replica), so that a replica's
        steps do not depend on how many others there are.
        """
        steps = np.repeat(self.local_ns[:, None], count, axis=1)
        if self.sigma <= 0:
            return steps
        for replica in range(len(self)):
            draws = np.random.Generator(np.random.Philox(key=[self.seed, replica])).standard_normal(count)
            factor = np.exp(self.sigma * draws - self.sigma**2 / 2)
            steps[replica] = np.maximum(1, np.rint(steps[replica] * factor))
        return steps


@dataclass(frozen=True)
class ReplicaSetting:
    """A job whose replicas step on their own, on its cluster.

    ``last_ops`` int32[num_classes] are the ops that end the local step of the replica of every class of ranks.
    """

    lowered: Lowered
    cluster: Cluster
    replicas: LocalSteps
    last_ops: Indices

    @property
    def layout(self) -> Layout:
        """The resolved plan."""
        return self.lowered.job.layout

    @cached_property
    def sync(self) -> Synchronisation:
        """Data parallelism inside a step."""
        return Synchronisation.of(self.lowered.job)

    @cached_property
    def num_parameters(self) -> float:
        """Parameters of one replica: those of all ranks of one pipeline, times the tensor-parallel degree."""
        held = [builder.parameters_of_rank(stage) for stage, builder in enumerate(self.lowered.maker.builders)]
        return sum(sum(each.values()) for each in held) * self.layout.mesh.tp

    @property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients of one replica as they are sent."""
        return self.num_parameters * self.sync.gradient_bytes

    @property
    def parameter_bytes(self) -> float:
        """Bytes of the parameters of one replica as they are sent."""
        return self.num_parameters * self.sync.parameter_bytes

    @property
    def served_bytes(self) -> float:
        """Bytes that servers keep per parameter: its fp32 value and its optimizer states."""
        return DTYPE_BYTES["fp32"] + moment_bytes(self.layout)


def setting_of(lowered: Lowered, timing: Timing, cluster: Cluster, perturbation: Perturbation) -> ReplicaSetting:
    """Read the replicas' local steps from one simulated step; slow ranks slow their replica, jitter is drawn later."""
    job, program, quotient = lowered.job, lowered.program, lowered.quotient
    classes, ops = program.stream_class[program.streams.owners()], program.streams.item
    of_class = _last(classes, ops, timing, quotient.num_classes)
    of_rank = replica_of_rank(job.layout)
    of_replica = _last(of_rank, of_class[quotient.class_of_rank], timing, int(job.layout.replicas))
    local = timing.finish_ns[of_replica] + int(to_ns(job.stack.launch.step_overhead_s))
    replicas = LocalSteps(local, of_rank, perturbation.jitter_sigma, perturbation.seed)
    return ReplicaSetting(lowered, cluster, replicas, of_replica[of_rank[quotient.representative_rank]])


def _last(owner: Ints, ops: Indices, timing: Timing, count: int) -> Indices:
    """For every owner (numbered below ``count``), its op that finishes last: int32[count]."""
    order = np.argsort(timing.finish_ns[ops], kind="stable")
    result = np.zeros(count, dtype=np.int32)
    result[owner[order]] = ops[order]  # the last one written stays
    return result


def replica_of_rank(layout: Layout) -> Ints:
    """The replica that every rank belongs to, int64[world]."""
    mesh = layout.mesh
    if not layout.zero:
        return np.asarray(mesh.coordinates(np.arange(mesh.world_size))["dp"], dtype=np.int64)
    groups = mesh.groups(("dp", "cp")) if mesh.cp > 1 else mesh.groups("dp")
    size = groups.shape[1] // int(layout.replicas)
    of_rank = np.zeros(mesh.world_size, dtype=np.int64)
    of_rank[groups] = np.broadcast_to(np.arange(groups.shape[1]) // size, groups.shape)
    return of_rank
