"""How long forward, input-gradient and weight-gradient passes take, for schedules that are made for durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.encoder_in_bubbles import EncoderCosts
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import make_segment
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.emission.traffic import block_groups, late_per_member_s
from simpar.program.job import TrainingJob
from simpar.program.structure.pieces import StageBlock
from simpar.program.structure.stages import StageBuilder
from simpar.units import Floats, Ints

DIGITS = 2


@dataclass(frozen=True)
class PassesAlone:
    """Durations of passes over single blocks on a rank, with every collective alone on its links.

    Kernels take ``slowdown`` times as long as on the rank's kind of device; ``known`` is a cache.
    """

    builder: StageBuilder
    groups: Mapping[str, Ints]
    prices: Prices
    slowdown: float = 1.0
    known: dict[tuple[str, str, str], int] = field(default_factory=dict)

    @staticmethod
    def of(job: TrainingJob, cluster: Cluster, *, rank: int = 0, slowdown: float = 1.0) -> PassesAlone:
        """Passes of a job's blocks on a rank; the job must have the kernel model of that rank's device."""
        cluster = cluster.in_training
        view = RankView.of(job, late_per_member_s=late_per_member_s(cluster, job.layout.mesh)).first
        groups = {kind.name: kind.groups[(kind.groups == rank).any(axis=1)][0] for kind in block_groups(view)}
        return PassesAlone(StageBuilder(view, ()), groups, Prices.of_job(job, cluster), slowdown)

    def price_of(self, use: CollectiveUse) -> Price:
        """The price of a collective on its group."""
        return self.prices.of(use.op, self.groups[use.group], use.group)

    def price(self, use: CollectiveUse) -> int:
        """Nanoseconds of a collective."""
        return self.price_of(use).use_ns(use)

    def duration_ns(self, piece: StageBlock, kind: str) -> int:
        """Nanoseconds of a pass ("forward", "backward", ...) over one block."""
        key = (piece.block.name, piece.recompute, kind)
        if key not in self.known:
            phase = getattr(self.builder.steps(piece), kind)
            slowdown = self.builder.job.stack.launch.kernel_overhead * self.slowdown
            self.known[key] = make_segment(phase, self.price, slowdown=slowdown).duration_ns
        return self.known[key]


def encoder_costs(job: TrainingJob, cluster: Cluster) -> EncoderCosts:
    """Nanoseconds of an encoder's passes and of those of the stages behind it, on the first rank of the cluster."""
    alone = PassesAlone.of(job, cluster)
    kinds = ("forward", "backward", "input_gradient", "weight_gradient")
    encoder, *behind = (
        tuple(sum(alone.duration_ns(piece, kind) for piece in some) for kind in kinds) for some in alone.builder.pieces
    )
    return encoder[0], encoder[1], tuple((stage[0], stage[1], stage[2], stage[3]) for stage in behind)


def pass_costs(job: TrainingJob, cluster: Cluster) -> tuple[float, float, float]:
    """Durations of F, I and W, in units of F: the mean over virtual stages, collectives alone on their links."""
    alone = PassesAlone.of(job, cluster)
    behind = alone.builder.pieces[1 if job.layout.encoder_layers else 0 :]  # an encoder in the bubbles is no stage
    pieces = [piece for some in behind for piece in some]
    kinds = ("forward", "input_gradient", "weight_gradient")
    each = [sum(alone.duration_ns(piece, kind) for piece in pieces) for kind in kinds]
    return relative_costs(np.array(each, dtype=np.float64))


def relative_costs(total_ns: Floats) -> tuple[float, float, float]:
    """Durations of F, I and W in units of F, from their nanoseconds over all blocks, float64[3].

    They are rounded, so that a schedule does not depend on the last digit of a kernel.
    """
    forward, gradient, weight = (total_ns / total_ns[0]).tolist()
    least = 10.0**-DIGITS
    return forward, max(round(gradient, DIGITS), least), max(round(weight, DIGITS), least)
