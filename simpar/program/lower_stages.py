"""Plans whose stages have devices and meshes of their own: builders, process groups, and messages between stages.

Between stages with equal meshes and states, every device sends its share to the device in the same place, as in a
uniform plan. Otherwise the boundary tensor is cut into equal pieces, as many as the larger stage has devices (the least
common multiple of both numbers where neither divides the other). Every sender sends its pieces in turn; every receiver
waits for all of its own, then gathers along the axes on which it needs the whole tensor. Which device of a stage gets
which piece is left to the stage's fast links and not counted [Zheng et al. 2022, arXiv 2201.12023, section 6:
cross-mesh resharding with local all-gather].
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import lcm, prod

import numpy as np

from simpar.architectures.flops import shape_dims
from simpar.architectures.graph import Block
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout, stack_for_layout
from simpar.layout.staged import stage_layout
from simpar.plan.placement import SHARDED, States, count_slices
from simpar.plan.schedules import default_schedule, make_schedule
from simpar.plan.schedules.actions import Schedule
from simpar.plan.stages import StagePlan, stage_blocks
from simpar.program.blocks.phases import TENSOR, CollectiveUse
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.traffic import EMBEDDING_GROUP, group_kinds, hop_kind, late_per_member_s
from simpar.program.fold.group_routes import GroupKind
from simpar.program.job import TrainingJob
from simpar.program.structure.stage_builder import RolesBuilder, axes_group
from simpar.program.structure.stages import ActionBuilder, StageBuilder
from simpar.program.structure.synchronisation import Synchronisation
from simpar.units import US, Ints


def stage_builders(job: TrainingJob, cluster: Cluster, schedule: Schedule) -> tuple[ActionBuilder, ...]:
    """The builder of every stage: that of the uniform plan that repeats it, or one for operators in given roles."""
    result: list[ActionBuilder] = []
    for index, stage in enumerate(job.layout.stages or ()):
        if stage.sharding:
            late_s = cluster.state.get("member_us", 0.0) * US
            result.append(RolesBuilder.of(job, index, schedule.rank_of_stage, late_s))
            continue
        layout = stage_layout(job.layout, index)
        own = replace(job, layout=layout, stack=stack_for_layout(job.stack, layout))
        view = RankView.of(own, late_per_member_s=late_per_member_s(cluster, _alone(layout).mesh))
        result.append(StageBuilder(view, schedule.rank_of_stage))
    return tuple(result)


def _alone(layout: Layout) -> Layout:
    """The layout on one pipeline rank."""
    return replace(layout, pp=1)


def axis_groups(stage: StagePlan, axes: tuple[int, ...]) -> Ints:
    """Process groups along some axes of a stage: int64[num_groups, group_size]."""
    ranks = (stage.first_device + np.arange(stage.num_devices)).reshape(stage.mesh)
    others = [axis for axis in range(ranks.ndim) if axis not in axes]
    size = int(np.prod([stage.mesh[axis] for axis in axes]))
    return np.ascontiguousarray(np.transpose(ranks, [*others, *axes]).reshape(-1, size))


def messages(sender: StagePlan, receiver: StagePlan) -> list[Ints]:
    """The messages of one boundary, one after the other, each as (sender, receiver) pairs int64[senders, 2].

    Piece p goes from device p modulo the senders to device p modulo the receivers, so that pieces stay on their rail
    where whole nodes communicate.
    """
    pieces = lcm(sender.num_devices, receiver.num_devices)
    source = np.arange(sender.num_devices)
    return [
        np.stack(
            [
                sender.first_device + source,
                receiver.first_device + (source + k * sender.num_devices) % receiver.num_devices,
            ],
            axis=1,
        )
        for k in range(pieces // sender.num_devices)
    ]


def stage_kinds(builders: Sequence[ActionBuilder], stages: Sequence[StagePlan]) -> list[GroupKind]:
    """Every kind of process group of a plan with stages of their own; kinds of different stages may share a name."""
    kinds: list[GroupKind] = []
    for builder, stage in zip(builders, stages, strict=True):
        if isinstance(builder, RolesBuilder):
            kinds += [GroupKind(name, axis_groups(stage, axes), ops) for name, (axes, ops) in builder.groups.items()]
            continue
        view = RankView.of(replace(builder.job, layout=_alone(builder.job.layout)))
        own = group_kinds(view, Synchronisation.of(view.job), make_schedule(default_schedule(), 1, 1))
        kinds += [replace(kind, groups=kind.groups + stage.first_device) for kind in own]
    hops: dict[str, list[Ints]] = {}
    for index in range(len(stages) - 1):
        for ends in ((index, index + 1), (index + 1, index)):
            for k, pairs in enumerate(messages(stages[ends[0]], stages[ends[1]])):
                hops.setdefault(message_kind((ends[1] - ends[0]) % len(stages), k), []).append(pairs)
    kinds += [GroupKind(name, np.concatenate(pairs), ("send",), directed=True) for name, pairs in hops.items()]
    if builders[0].job.graph.tied_embeddings and len(stages) > 1:
        # pairs of a device of the first stage and one of the last, as many as the smaller stage has devices
        both = stages[0], stages[-1]
        count = np.arange(min(stage.num_devices for stage in both))
        there = [stage.first_device + count * stage.num_devices // len(count) for stage in both]
        kinds.append(GroupKind(EMBEDDING_GROUP, np.stack(there, axis=1), ("all_reduce",)))
    return kinds


def message_kind(delta: int, number: int) -> str:
    """Name of the point-to-point groups of the ``number``-th messages that go ``delta`` pipeline ranks ahead."""
    return hop_kind(delta) + (f".{number}" if number else "")


@dataclass(frozen=True)
class Boundaries:
    """Messages between neighbouring stages with meshes of their own, and the gathers behind them."""

    job: TrainingJob
    builders: tuple[ActionBuilder, ...]

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stages of the plan."""
        return self.job.layout.stages or ()

    @cached_property
    def _blocks(self) -> tuple[tuple[Block, ...], ...]:
        return stage_blocks(self.stages, self.job.graph)

    def _states(self, stage: int, target: int) -> tuple[States, States]:
        """States of the tensor that one stage hands to another: on the sender, and on the receiver."""
        lower, upper = sorted((stage, target))
        states = (
            self._stream(lower, self._blocks[lower][-1], "output"),
            self._stream(upper, self._blocks[upper][0], "input"),
        )
        return states if stage < target else states[::-1]

    def _stream(self, stage: int, block: Block, end: str) -> States:
        own, layout = self.stages[stage], self.builders[stage].job.layout
        if own.sharding:
            return own.sharding[block.name].stream(end)
        return ("B", "S" if layout.sequence_parallel else "R")[: len(own.mesh)]

    def _is_even(self, stage: int, target: int) -> bool:
        """Whether every device sends its own share to the device in the same place, as in a uniform plan."""
        states = self._states(stage, target)
        return self.stages[stage].mesh == self.stages[target].mesh and states[0] == states[1]

    def _whole_bytes(self, lower: int) -> float:
        """Bytes of the whole tensor behind a stage, of one microbatch."""
        job, block = self.job, self._blocks[lower][-1]
        shape = shape_dims(job.graph, job.training.seq_len, batch=int(job.layout.micro_batch))
        width = job.layout.products.handed_bytes
        return float(block.output_elements(block.view(shape))) * width

    def message(self, stage: int, target: int) -> tuple[float, int]:
        """(Bytes of one message from one stage to another, number of messages that a device sends).

        Ranks with equal copies send them whole, or in slices where the stack does so (scatter-gather).
        """
        devices = self.stages[stage].num_devices
        pieces = lcm(devices, self.stages[target].num_devices)
        count = pieces // devices
        if self._is_even(stage, target) and not self.job.stack.overlap.scatter_gather_p2p:
            pieces = int(count_slices(self._states(stage, target)[0], self.stages[stage].mesh))
        return self._whole_bytes(min(stage, target)) / pieces, count

    def gathers(self, source: int, stage: int) -> tuple[CollectiveUse, ...]:
        """The all-gathers, one after the other, that put received pieces together where a stage needs whole rows."""
        if self._is_even(source, stage):
            return ()
        mesh, states, result = self.stages[stage].mesh, self._states(source, stage)[1], list[CollectiveUse]()
        for axis, (state, size) in enumerate(zip(states, mesh, strict=True)):
            if state in SHARDED or size == 1:
                continue
            missing = prod(mesh[a] for a in range(axis + 1, len(mesh)) if states[a] not in SHARDED)
            piece = self._whole_bytes(min(source, stage)) / count_slices(states, mesh, but=axis) / missing
            group = axes_group((axis,)) if self.stages[stage].sharding else TENSOR
            result.append(CollectiveUse(group, "all_gather", piece))
        return tuple(result)

    def senders(self, rank: int, stage: int, source: int) -> Ints:
        """Ranks of a neighbouring stage that send to a rank of a stage."""
        pairs = np.concatenate(messages(self.stages[source], self.stages[stage]))
        result: Ints = pairs[pairs[:, 1] == rank, 0]
        return result
