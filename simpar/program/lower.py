"""Lowering: a checked plan becomes the Program of one training step, one representative per class of ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import COMPUTE, CONTEXT, EXPERT, TENSOR
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import Added
from simpar.program.emission.emit import ClassActions, Emitter, Slots
from simpar.program.emission.microbatches import with_middle
from simpar.program.emission.shared_cores import are_shared, share_cores
from simpar.program.emission.traffic import (
    QuotientNetwork,
    encoded_bytes,
    group_kinds,
    hop_kind,
    late_per_member_s,
    streams_of,
)
from simpar.program.fold.quotient import Quotient, build_quotient
from simpar.program.ir.program import Program
from simpar.program.job import TrainingJob
from simpar.program.lower_stages import Boundaries, stage_builders, stage_kinds
from simpar.program.perturbation import Perturbation
from simpar.program.rank_class_builder import RankClassBuilder, rank_colours
from simpar.program.structure.stages import ActionBuilder, StageBuilder
from simpar.program.structure.templates import GATHER, REDUCE
from simpar.units import Indices, Ints


@dataclass(frozen=True)
class Lowered:
    """A Program and its origin: rank classes, the template of every slot, and the op that each slot became."""

    program: Program
    job: TrainingJob
    maker: RankClassBuilder
    quotient: Quotient
    actions: tuple[ClassActions, ...]
    slots: Slots
    op_of_slot: Indices
    stage_of_class: Ints

    def of_slots(self, of_ops: NDArray[Any]) -> NDArray[Any]:
        """A column over ops for every slot; the same one where every slot became an op of its own."""
        return of_ops if len(of_ops) == len(self.op_of_slot) else of_ops[self.op_of_slot]

    def of_ops(self, of_slots: NDArray[Any]) -> NDArray[Any]:
        """A column over slots for every op, of the first one of its slots; ops are numbered by their first slots."""
        return of_slots if len(of_slots) == len(self.program) else np.delete(of_slots, self._later_slots)

    @cached_property
    def _later_slots(self) -> Ints:
        """The slots whose ops have an earlier one."""
        return 1 + np.flatnonzero(self.op_of_slot[1:] <= np.maximum.accumulate(self.op_of_slot)[:-1])

    def with_colours(self, colours: Ints) -> Lowered:
        """The step lowered again, where only ranks of one colour, int64[world], may be alike; any number of ops."""
        maker = replace(self.maker, network=self.maker.network.with_colours(colours))
        return Outline.of(maker, most_ops=inf).lowered()


@dataclass(frozen=True)
class Outline:
    """A step that is decided completely, before its ops are written out; ``actions`` are those of every class."""

    maker: RankClassBuilder
    emitter: Emitter
    actions: tuple[ClassActions, ...]

    @staticmethod
    def of(maker: RankClassBuilder, *, apart: bool = True, **limit: float) -> Outline:
        """The outline of all classes of ranks, with microbatches ``apart`` where they are few.

        Raises UserError for too many ops.
        """
        actions: dict[int, ClassActions] = {}
        emitter = Emitter(_stream_names(maker), maker.network, **limit)
        short = with_middle(replace(maker, apart=apart), apart=apart)
        for classes in short.alike:
            made = short.actions(classes)
            emitter.add(classes, made)
            actions |= dict.fromkeys(classes.tolist(), made)
        return Outline(maker, emitter, tuple(actions[each] for each in range(maker.network.quotient.num_classes)))

    def __len__(self) -> int:
        """Slots of all classes: at least as many as ops."""
        return len(self.emitter)

    def digest(self) -> bytes | None:
        """Steps with equal digests agree in time and memory, op by op; None for ranks that share cores."""
        network = self.maker.network
        if network.contention and are_shared(network.cluster):
            return None
        devices = network.cluster.device_of(network.quotient.representative_rank)
        return self.emitter.digest() + self.maker.stage_of_class.tobytes() + devices.tobytes()

    def lowered(self) -> Lowered:
        """The Program."""
        maker, network = self.maker, self.maker.network
        program, slots, op_of_slot = self.emitter.finish()
        if network.contention and are_shared(network.cluster):
            program = share_cores(program, slots, op_of_slot, network.quotient, network.cluster)
        return Lowered(
            program, maker.job, maker, network.quotient, self.actions, slots, op_of_slot, maker.stage_of_class
        )


def lower(
    job: TrainingJob,
    cluster: Cluster,
    schedule: Schedule,
    *,
    perturbation: Perturbation | None = None,
    collapse: bool = True,
    contention: bool = True,
) -> Lowered:
    """Build the Program of one step, as :func:`outline` decides it."""
    return outline(
        job, cluster, schedule, perturbation=perturbation, collapse=collapse, contention=contention
    ).lowered()


def outline(
    job: TrainingJob,
    cluster: Cluster,
    schedule: Schedule,
    *,
    perturbation: Perturbation | None = None,
    collapse: bool = True,
    contention: bool = True,
    apart: bool = True,
) -> Outline:
    """Decide everything about one step except its ops.

    ``schedule`` is the plan's action table; ``collapse`` (the default) merges the serial steps of a block into one op
    where nothing outside can delay them (exact; see :mod:`simpar.program.blocks.segments`). Without ``contention``
    every collective has its links to itself: a lower bound, with far fewer ops where tensor-parallel traffic shares
    links. Many microbatches without a pipeline become few ops where that is exact
    (:mod:`simpar.program.emission.microbatches`), and any number unless they are wanted ``apart``, as pictures show
    them. Raises UserError for too many ops.
    """
    perturbation, cluster, layout = perturbation or Perturbation(), cluster.in_training, job.layout
    builders: tuple[ActionBuilder, ...]
    if layout.stages:
        builders, uneven = stage_builders(job, cluster, schedule), False
        kinds, boundaries = stage_kinds(builders, layout.stages), Boundaries(job, builders)
    else:
        view = RankView.of(job, late_per_member_s=late_per_member_s(cluster, layout.mesh))
        waiting = tuple(count * encoded_bytes(view) for count in schedule.waiting)
        builders = (StageBuilder(view, schedule.rank_of_stage, waiting),) * schedule.num_ranks
        kinds, uneven, boundaries = group_kinds(view, builders[0].sync, schedule), view.uneven_context, None
    colours = rank_colours(layout, cluster, perturbation, uneven_context=uneven)
    syncs = list({id(each): each.sync for each in builders}.values())
    network = QuotientNetwork(
        cluster,
        kinds,
        build_quotient(cluster, kinds, colours),
        streams_of(kinds, schedule, syncs),
        contention,
        Added.of(job.stack, syncs[0].quantise_s_per_byte),
    )
    maker = RankClassBuilder(job, builders, network, schedule, perturbation, boundaries, collapse)
    return Outline.of(maker, apart=apart)


def _stream_names(maker: RankClassBuilder) -> tuple[str, ...]:
    schedule, syncs = maker.schedule, [each.sync for each in maker.builders]
    layouts = [sync.job.layout for sync in syncs]
    sends = [f"{letter} {hop_kind(delta)}" for delta in range(schedule.num_ranks) for letter in ("send_F", "send_B")]
    context = (CONTEXT,) if any(layout.mesh.cp > 1 for layout in layouts) else ()
    exchange = (EXPERT,) if any(layout.mesh.ep > 1 for layout in layouts) else ()
    others = dict.fromkeys(name for sync in syncs for name in (*sync.reduce_streams, *sync.host_streams))
    return (COMPUTE, TENSOR, *context, *exchange, GATHER, REDUCE, *others, *sends)
