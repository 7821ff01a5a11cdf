"""Lowering: a checked plan becomes the Program of one training step, one representative per class of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.hardware.cluster import Cluster
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import COMPUTE, CONTEXT, EXPERT, TENSOR
from simpar.program.blocks.rank_view import Job, RankView
from simpar.program.class_maker import ClassMaker
from simpar.program.colours import rank_colours
from simpar.program.emission.collective_prices import Added
from simpar.program.emission.emit import ClassActions, Emitter, Slots
from simpar.program.emission.microbatches import with_middle
from simpar.program.emission.shared_cores import are_shared, share_cores
from simpar.program.emission.traffic import (
    Network,
    group_kinds,
    hop_kind,
    late_per_member_s,
    streams_of,
)  # fmt: skip
from simpar.program.fold.layout import Layout, build_layout
from simpar.program.ir.program import Program
from simpar.program.lower_stages import StagedClassMaker
from simpar.program.perturbation import Perturbation
from simpar.program.structure.stages import StageBuilder
from simpar.program.structure.synchronisation import Synchronisation
from simpar.program.structure.templates import GATHER, REDUCE

if TYPE_CHECKING:
    from simpar.program.structure.stage_builder import StagedBuilder

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lowered:
    """A Program with the way back: classes, templates behind every slot, and which op each slot became."""

    program: Program
    layout: Layout
    network: Network
    builder: StageBuilder | StagedBuilder
    schedule: Schedule
    actions: tuple[ClassActions, ...]
    slots: Slots
    op_of_slot: Ints
    stage_of_class: Ints


def lower(
    job: Job,
    cluster: Cluster,
    schedule: Schedule,
    *,
    perturbation: Perturbation | None = None,
    collapse: bool = True,
    contention: bool = True,
) -> Lowered:
    """Build the Program of one step.

    ``schedule`` is the plan's action table; ``collapse`` merges the serial steps of a block into one op where
    nothing outside can touch them (exact; see :mod:`simpar.program.blocks.segments`). Without ``contention`` every
    collective has its links to itself: a lower bound, and much smaller where tensor-parallel traffic shares links.
    Many microbatches without a pipeline become few ops where that is exact
    (:mod:`simpar.program.emission.microbatches`). Raises UserError for too many ops.
    """
    perturbation = perturbation or Perturbation()
    cluster = cluster.in_training
    if job.plan.pipeline.stages:
        staged = StagedClassMaker.of(job, cluster, schedule, perturbation, contention=contention)
        return emit_classes(replace(staged, collapse=collapse), staged.streams)
    view = RankView.of(job, late_per_member_s=late_per_member_s(cluster, job.plan.mesh))
    sync = Synchronisation.of(job)
    kinds = group_kinds(view, sync, schedule)
    layout = build_layout(cluster, kinds, rank_colours(view, cluster, perturbation))
    streams = streams_of(kinds, schedule, sync)
    network = Network(cluster, layout, streams, contention, Added.of(job.stack, sync.quantise_s_per_byte))
    builder = StageBuilder(job, view, sync, schedule.rank_of_stage)
    maker = ClassMaker(builder, network, schedule, perturbation, collapse)
    return emit_classes(maker, _stream_names(schedule, sync))


def emit_classes(maker: ClassMaker, streams: tuple[str, ...]) -> Lowered:
    """The Program of all classes of ranks."""
    network, layout = maker.network, maker.network.layout
    actions: list[ClassActions] = []
    emitter = Emitter(streams, network)
    short = with_middle(maker)
    for class_id in range(layout.num_classes):
        actions.append(short.actions(class_id))
        emitter.add(class_id, actions[class_id])
    program, slots, op_of_slot = emitter.finish()
    if network.contention and are_shared(network.cluster):
        program = share_cores(program, slots, op_of_slot, layout, network.cluster)
    return Lowered(
        program,
        layout,
        network,
        maker.builder,
        maker.schedule,
        tuple(actions),
        slots,
        op_of_slot,
        maker.stage_of_class,
    )


def _stream_names(schedule: Schedule, sync: Synchronisation) -> tuple[str, ...]:
    sends = [
        f"{letter} {hop_kind(delta)}"
        for delta in range(schedule.num_ranks)
        for letter in ("send_F", "send_B")
    ]
    context = (CONTEXT,) if sync.job.plan.mesh.cp > 1 else ()
    exchange = (EXPERT,) if sync.job.plan.mesh.ep > 1 else ()
    others = (*sync.reduce_streams, *sync.host_streams, *sends)
    return (COMPUTE, TENSOR, *context, *exchange, GATHER, REDUCE, *others)
