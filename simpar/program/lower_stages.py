"""Lowering of plans whose stages have devices and meshes of their own.

Between stages of the same mesh and states every device hands its share to the one in its place, as in a uniform plan.
Between others the boundary tensor is cut into equal pieces, as many as the finer of the two has devices (their least
common multiple where neither divides the other): every sender sends its pieces in turn, every receiver waits for all
of its own, then gathers along the axes on which it needs the whole; which device gets which piece inside a stage is a
matter of its fast links and not counted [Zheng et al. 2022, arXiv 2201.12023, section 6: cross-mesh resharding with
local all-gather].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.cost.sharded import local_weights
from simpar.hardware.cluster import Cluster
from simpar.plan.placement import SHARDED, States, sharding
from simpar.plan.schedules.actions import Schedule
from simpar.plan.stages import StagePlan
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, TENSOR, CollectiveUse
from simpar.program.blocks.rank_view import Job
from simpar.program.class_maker import ClassMaker
from simpar.program.colours import with_devices, with_slow_ranks
from simpar.program.emission.collective_prices import Added, is_tensor_parallel
from simpar.program.emission.traffic import EMBEDDING_GROUP, Network
from simpar.program.fold.group_routes import GroupKind
from simpar.program.fold.layout import build_layout
from simpar.program.perturbation import Perturbation
from simpar.program.structure.stage_builder import StagedBuilder, StagePart
from simpar.program.structure.templates import GATHER, REDUCE, Node, Template
from simpar.units import US

Ints = NDArray[np.int64]
SENDS = {"F": ("send_F", "pp_f", "send activations"), "B": ("send_B", "pp_b", "send gradients")}


@dataclass(frozen=True)
class Joint:
    """The whole tensor that one stage hands to another: meshes and states of it on the sender and the receiver."""

    meshes: tuple[tuple[int, ...], tuple[int, ...]]
    states: tuple[States, States]
    whole_bytes: float

    @property
    def is_even(self) -> bool:
        """Whether every device hands its own share to the one in its place, as in a uniform plan."""
        return self.meshes[0] == self.meshes[1] and self.states[0] == self.states[1]

    def message_bytes(self, *, sliced: bool) -> float:
        """Bytes of one message; ``sliced``: what ranks hold in copies is sent in slices (scatter-gather)."""
        pieces = lcm(*(prod(mesh) for mesh in self.meshes))
        if self.is_even and not sliced:
            pieces = sharding(self.states[0], self.meshes[0])
        return self.whole_bytes / pieces


def devices_of(stage: StagePlan) -> Ints:
    """Ranks of a stage as its logical mesh: int64[mesh]."""
    return (stage.first_device + np.arange(stage.num_devices)).reshape(stage.mesh)


def axis_groups(stage: StagePlan, axes: tuple[int, ...]) -> Ints:
    """Process groups along some axes of a stage: int64[num_groups, group_size]."""
    ranks = devices_of(stage)
    others = [axis for axis in range(ranks.ndim) if axis not in axes]
    size = int(np.prod([stage.mesh[axis] for axis in axes]))
    return np.ascontiguousarray(np.transpose(ranks, [*others, *axes]).reshape(-1, size))


def messages(sender: StagePlan, receiver: StagePlan) -> list[Ints]:
    """The messages of one boundary in turn, each as (sender, receiver) of all devices: int64[senders, 2].

    Piece p goes from device p modulo the senders to device p modulo the receivers: wherever whole nodes talk, pieces
    keep to their rail.
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


def stage_kinds(builder: StagedBuilder, schedule: Schedule) -> list[GroupKind]:
    """Every kind of process group of a plan with stages of their own."""
    kinds: list[GroupKind] = []
    stages = builder.stages
    for index, stage in enumerate(stages):
        for name, (axes, ops) in builder.part(index).groups.items():
            kinds.append(GroupKind(name, axis_groups(stage, axes), ops))
    for index in range(schedule.num_stages - 1):
        for kind, ends in (("pp_f", (index, index + 1)), ("pp_b", (index + 1, index))):
            for k, pairs in enumerate(messages(stages[ends[0]], stages[ends[1]])):
                kinds.append(GroupKind(f"{kind}{ends[0]}_{k}", pairs, ("send",), directed=True))
    if builder.job.graph.tied_embeddings and len(stages) > 1:
        kinds.append(GroupKind(EMBEDDING_GROUP, _ends(stages), ("all_reduce",)))
    return kinds


def _ends(stages: Sequence[StagePlan]) -> Ints:
    """Pairs of a device of the first and one of the last stage, as many as the smaller has devices."""
    first, last = stages[0], stages[-1]
    count = np.arange(min(first.num_devices, last.num_devices))
    return np.stack(
        [stage.first_device + count * stage.num_devices // len(count) for stage in (first, last)], axis=1
    )


def _streams_of(kind: str) -> frozenset[str]:
    """Streams that carry a kind of groups; collectives inside blocks follow one another."""
    if kind.startswith("dp"):
        return frozenset([GATHER, REDUCE])
    return frozenset([TENSOR if is_tensor_parallel(kind) else kind])


class StagedClassMaker(ClassMaker):
    """Templates and actions of rank classes where every pipeline rank is a stage of its own shape."""

    builder: StagedBuilder

    @staticmethod
    def of(
        job: Job, cluster: Cluster, schedule: Schedule, perturbation: Perturbation, *, contention: bool
    ) -> StagedClassMaker:
        """A maker for a job on a cluster (already in its state of training)."""
        builder = StagedBuilder(job, cluster.state.get("member_us", 0.0) * US)
        kinds = stage_kinds(builder, schedule)
        colour = np.zeros(cluster.world_size, dtype=np.int64)
        for index, stage in enumerate(builder.stages):
            colour[devices_of(stage)] = index
        colours = with_devices(colour, len(builder.stages), cluster)
        layout = build_layout(cluster, kinds, with_slow_ranks(*colours, perturbation))
        streams = {kind.name: _streams_of(kind.name) for kind in kinds}
        added = Added.of(job.stack, builder.part(0).sync.quantise_s_per_byte)
        network = Network(cluster, layout, streams, contention, added)
        return StagedClassMaker(builder, network, schedule, perturbation)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of every class."""
        return (COMPUTE, TENSOR, GATHER, REDUCE, *(stream for stream, _, _ in SENDS.values()))

    @cached_property
    def stage_of_class(self) -> Ints:
        """Stage of every class."""
        starts = np.array([stage.first_device for stage in self.builder.stages])
        order = np.argsort(starts)
        found = np.searchsorted(starts[order], self.network.layout.representative_rank, side="right") - 1
        return order[found].astype(np.int64)

    def _builder(self, class_id: int) -> StagePart:
        return self.builder.part(int(self.stage_of_class[class_id]), self.device_of_class(class_id))

    def _templates(
        self, class_id: int, keys: Sequence[tuple[str, int, bool]]
    ) -> tuple[list[Template], dict[tuple[str, int, bool], int]]:
        stage = int(self.stage_of_class[class_id])
        made = self._builder(class_id).templates(stage, self._pricing(class_id))
        templates: list[Template] = []
        index: dict[tuple[str, int, bool], int] = {}
        for key in dict.fromkeys(keys):
            letter, stage, boundary = key
            index[key] = len(templates)
            template = self._shaped(class_id, made[letter, boundary])
            template = self._with_arrival(letter, stage, template)
            templates.append(self._with_send(letter, stage, template))
        return templates, index

    def collapsible(self, class_id: int) -> bool:
        """Whether nothing outside touches the collectives of a class's blocks, so that blocks are single ops."""
        names = [name for name in self._builder(class_id).groups if name.startswith(TENSOR)]
        return all(self.network.is_private(class_id, name) for name in names)

    def _joint(self, stage: int, target: int) -> Joint:
        """What crosses between two neighbouring stages, from one to the other."""
        views = [self.builder.part(at).view for at in (stage, target)]
        lower = self.builder.part(min(stage, target))
        block, ends = lower.blocks[-1], ("output", "input") if stage < target else ("input", "output")
        names = [self.builder.blocks[at][-1 if at < max(stage, target) else 0].name for at in (stage, target)]
        states = [
            view.stage.sharding[name].stream(end) for view, name, end in zip(views, names, ends, strict=True)
        ]
        whole = float(block.output_elements(lower.view.dims(block))) * lower.view.compute_bytes
        return Joint((views[0].mesh, views[1].mesh), (states[0], states[1]), whole)

    def _with_arrival(self, letter: str, stage: int, template: Template) -> Template:
        """What a stage that needs whole rows gathers from the pieces that its devices received."""
        source = stage - 1 if letter == "F" else stage + 1
        if letter == "W" or not 0 <= source < self.schedule.num_stages:
            return template
        joint = self._joint(source, stage)
        if joint.is_even:
            return template
        view, states, nodes = self.builder.part(stage).view, joint.states[1], list[Node]()
        for axis, (state, size) in enumerate(zip(states, view.mesh, strict=True)):
            if state in SHARDED or size == 1:
                continue
            share = sharding(states, view.mesh, but=axis)
            missing = [a for a in range(axis + 1, len(states)) if states[a] not in SHARDED]
            piece = joint.whole_bytes / share / float(np.prod([view.mesh[a] for a in missing]))
            use = CollectiveUse(view.group((axis,)), "all_gather", piece)
            after = (len(nodes) - 1,) if nodes else ()
            node = Node("tp", "all_gather boundary", (COMPUTE, TENSOR), collective=use, after=after)
            nodes.append(replace(node, arrival=not nodes))
        if not nodes:
            return template
        offset = len(nodes)
        moved = [
            replace(node, after=tuple(a + offset for a in node.after) or (offset - 1,), arrival=False)
            if node.arrival
            else replace(node, after=tuple(a + offset for a in node.after))
            for node in template.nodes
        ]
        return Template((*nodes, *moved), template.exit + offset)

    def _with_send(self, letter: str, stage: int, template: Template) -> Template:
        """Append the messages to the neighbouring stage; forward sends ahead, B and I send back."""
        target = stage + 1 if letter == "F" else stage - 1
        if letter == "W" or not 0 <= target < self.schedule.num_stages:
            return template
        stages = self.builder.stages
        stream, kind, name = SENDS["F" if letter == "F" else "B"]
        pieces = lcm(stages[stage].num_devices, stages[target].num_devices)
        size = self._joint(stage, target).message_bytes(
            sliced=self.builder.job.stack.overlap.scatter_gather_p2p
        )
        streams = (stream, *BLOCK_STREAMS) if self.builder.job.stack.overlap.p2p_blocks_compute else (stream,)
        nodes = list(template.nodes)
        for k in range(pieces // stages[stage].num_devices):
            use = CollectiveUse(f"{kind}{stage}_{k}", "send", size)
            nodes.append(Node("pp", name, streams, collective=use, after=(template.exit,)))
        return Template(tuple(nodes), len(nodes) - 1)

    def _embedding_sync(self) -> Node:
        """Gradients of a tied table are summed between pairs of devices of the two ends, slice by slice."""
        graph = self.builder.job.graph
        table, first, last = (
            graph.embedding.operators[0],
            self.builder.part(0).view,
            self.builder.part(self.schedule.num_stages - 1).view,
        )
        held = [
            float(local_weights(op, view.dims(block), view.block(block).by(op))[0])
            for view, block, op in (
                (first, graph.embedding, table),
                (last, graph.head, graph.head.operator("lm_head")),
            )
        ]
        size = max(held) * self.builder.part(0).sync.gradient_bytes
        use = CollectiveUse(EMBEDDING_GROUP, "all_reduce", size)
        return Node("pp", "all_reduce tied embedding", (COMPUTE, REDUCE), collective=use)

    def _sources(
        self, class_id: int, letters: Sequence[str], _stages: NDArray[Any], microbatches: NDArray[Any]
    ) -> tuple[Ints, Ints]:
        """The actions each arrival waits for: those of all classes that send to a device of this class."""
        last = self.schedule.num_stages - 1
        stage = int(self.stage_of_class[class_id])
        before, behind = self._senders(class_id, stage, stage - 1), self._senders(class_id, stage, stage + 1)
        width = max(len(before), len(behind), 1)
        classes = np.full((len(letters), width), -1, dtype=np.int64)
        positions = classes.copy()
        for at, (letter, microbatch) in enumerate(zip(letters, microbatches.tolist(), strict=True)):
            if letter == "W" or (letter == "F" and stage == 0):
                continue
            own = letter != "F" and stage == last
            wanted = ("F", stage) if own else ("F", stage - 1) if letter == "F" else ("B", stage + 1)
            found = [class_id] if own else before if letter == "F" else behind
            classes[at, : len(found)] = found
            positions[at, : len(found)] = self._positions[(*wanted, microbatch)]
        return classes, positions

    def _senders(self, class_id: int, stage: int, source: int) -> list[int]:
        """Classes of the devices of a neighbouring stage that send to this class's representative."""
        stages, layout = self.builder.stages, self.network.layout
        if not 0 <= source < len(stages):
            return []
        pairs = np.concatenate(messages(stages[source], stages[stage]))
        ranks = pairs[pairs[:, 1] == layout.representative_rank[class_id], 0]
        return [int(c) for c in np.unique(layout.class_of_rank[ranks])]
