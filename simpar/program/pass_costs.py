"""How long forward, input-gradient and weight-gradient passes take, for schedules that are made for durations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.cost.collectives import fastest, offers
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.phases import CollectiveUse
from simpar.program.rank_view import Job, RankView
from simpar.program.segments import make_segment
from simpar.program.stages import StageBuilder
from simpar.program.synchronisation import Synchronisation
from simpar.program.traffic import block_groups, late_per_member_s
from simpar.units import NS_PER_S

DIGITS = 2


def pass_costs(job: Job, cluster: Cluster) -> tuple[float, float, float]:
    """Durations of F, I and W, in units of F: the mean over virtual stages, collectives alone on their links.

    Rounded, so that a schedule does not hang on the last digit of a kernel.
    """
    cluster = cluster.in_training
    plan: Plan = job.plan
    view = RankView.of(job, late_per_member_s=late_per_member_s(cluster, plan.mesh))
    view = replace(view, context_rank=0) if view.uneven_context else view
    builder = StageBuilder(job, view, Synchronisation.of(job), ())
    groups = {kind.name: kind.groups[0] for kind in block_groups(view)}

    def solo_ns(use: CollectiveUse) -> int:
        line = fastest(offers(use.op, groups[use.group], cluster), use.size_bytes).line
        return round(use.count * line.time_s(use.size_bytes) * NS_PER_S)

    known: dict[tuple[str, str, str], int] = {}
    total = np.zeros(3)
    for pieces in builder.pieces:
        for piece in pieces:
            for column, kind in enumerate(("forward", "input_gradient", "weight_gradient")):
                key = (piece.block.name, piece.recompute, kind)
                if key not in known:
                    phase = getattr(builder.steps(piece), kind)
                    overhead = job.stack.launch.kernel_overhead
                    known[key] = make_segment(phase, solo_ns, slowdown=overhead).duration_ns
                total[column] += known[key]
    forward, gradient, weight = (total / total[0]).tolist()
    least = 10.0**-DIGITS
    return forward, max(round(gradient, DIGITS), least), max(round(weight, DIGITS), least)
