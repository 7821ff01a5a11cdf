"""Rank classes of a plan: templates and ordered actions of each, what they wait for, and the step's tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.models.graph import Block
from simpar.plan.mirrored import MirroredMesh
from simpar.plan.routing import has_sampled_loads, sampled_loads
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, CollectiveUse
from simpar.program.blocks.rank_view import ANY
from simpar.program.emission.emit import ClassActions
from simpar.program.emission.microbatches import MIDDLE, middle
from simpar.program.emission.shared_cores import are_shared
from simpar.program.emission.traffic import (
    EMBEDDING_GROUP,
    Network,
    embedding_sum,
    hop_kind,
    send_bytes,
)  # fmt: skip
from simpar.program.perturbation import Perturbation
from simpar.program.resolve.token_slices import slice_ends, slice_view
from simpar.program.structure.flatten import flatten
from simpar.program.structure.one_process import OneProcess
from simpar.program.structure.pairs import handover
from simpar.program.structure.stages import ActionBuilder, Pricing, StageBuilder, rests
from simpar.program.structure.template_cache import Family, followed
from simpar.program.structure.templates import REDUCE, Node, Template

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClassMaker:
    """Templates and ordered actions of each rank class.

    ``middle_count`` microbatches are one op behind the first (:mod:`simpar.program.emission.microbatches`).
    """

    builder: Any
    network: Network
    schedule: Schedule
    perturbation: Perturbation
    collapse: bool = True
    middle_count: int = 0

    def passes(self, class_id: int) -> Mapping[tuple[str, bool], Template]:
        """Templates of the first stage by letter and whether it is the boundary microbatch, blocks as single ops."""
        found: Mapping[tuple[str, bool], Template] = self._builder(class_id).templates(
            0, self._pricing(class_id)
        )
        return found

    @cached_property
    def _families(self) -> dict[tuple[int, float, bool], list[Family]]:
        """Families by builder, slowdown and whether templates go step by step."""
        return {}

    @cached_property
    def _builders(self) -> dict[tuple[int, int, int], StageBuilder]:
        """Builders by context and expert coordinates and devices that ranks differ in, made when first asked for."""
        return {}

    def _builder(self, class_id: int) -> ActionBuilder:
        """What builds the templates of a class."""
        view, plan = self.builder.view, self.builder.job.plan
        rank = self.network.layout.representative_rank[class_id]
        context = int(plan.mesh.coordinates(rank)["cp"]) if view.uneven_context else ANY
        expert = int(plan.mesh.expert_coordinate(rank)) if has_sampled_loads(plan) else ANY
        device = self.device_of_class(class_id)
        if context == expert == ANY and not device:
            shared: ActionBuilder = self.builder
            return shared
        if (context, expert, device) not in self._builders:
            job = self.builder.job.on(device)
            if expert != ANY:
                loads = sampled_loads(self.builder.job.graph, plan, self.perturbation.seed)
                view = view.with_load(float(loads[expert]), float(loads.max()))
            own = replace(view, job=job, context_rank=context)
            sync = replace(self.builder.sync, job=job)
            self._builders[context, expert, device] = StageBuilder(
                job, own, sync, self.schedule.rank_of_stage
            )
        return self._builders[context, expert, device]

    def device_of_class(self, class_id: int) -> int:
        """Index of the device of a class among those of the cluster."""
        return int(self.network.cluster.device_of(self.network.layout.representative_rank[class_id]))

    @cached_property
    def stage_of_class(self) -> Ints:
        """Pipeline rank of every class."""
        ranks = self.network.layout.representative_rank
        stages: Ints = self.builder.job.plan.mesh.coordinates(ranks)["pp"].astype(np.int64)
        return stages

    def actions(self, class_id: int) -> ClassActions:
        """The class's actions in schedule order, then the step's tail (gradient sync, optimizer)."""
        pipeline_rank = int(self.stage_of_class[class_id])
        letters, stages, microbatches = self.schedule.letters(pipeline_rank)
        keys = list(zip(letters, stages.tolist(), self._boundaries(letters, stages), strict=True))
        templates, order = self._ordered(class_id, keys, microbatches)
        if self.middle_count and (merged := middle(self.passes(class_id), self.middle_count)):
            order[MIDDLE] = len(templates)
            templates.append(merged)
            microbatches = np.where(np.arange(len(microbatches)) == MIDDLE, -1, microbatches)
        templates.append(self._tail(class_id))
        order = np.append(order, len(templates) - 1)
        sources = self._sources(class_id, letters, stages, microbatches)
        first_layer = np.append([self._first_layer(stage) for stage in stages.tolist()], 0).astype(np.int64)
        pairs, alone = np.flatnonzero(self.schedule.ranks[pipeline_rank].overlap), len(templates)
        if len(pairs):
            self._join_pairs(class_id, keys, pairs, (templates, order, *sources))
        source_class, source_action = sources
        return ClassActions(
            templates=tuple(templates),
            template=order,
            microbatch=np.append(microbatches, -1),
            stage=np.append(stages, -1),
            source_class=_with_tail(source_class),
            source_action=_with_tail(source_action),
            first_layer=np.where(order < alone, first_layer, 0),  # pairs name layers of two stages
        )

    def _first_layer(self, stage: int) -> int:
        """Where the layers are counted from that templates of a stage name."""
        first: int = self.builder.first_layer(stage)
        return first

    def _ordered(
        self, class_id: int, keys: Sequence[tuple[str, int, bool]], microbatches: NDArray[Any]
    ) -> tuple[list[Template], Ints]:
        """Templates, and the index of every action's: of whole sequences, or slice by slice."""
        every: list[Template] = []
        order = np.zeros(len(keys), dtype=np.int64)
        makers = self._slice_makers or (self,)
        for number, maker in enumerate(makers):
            mine = np.flatnonzero(microbatches % len(makers) == number)
            templates, index = maker._templates(class_id, [keys[at] for at in mine.tolist()])
            order[mine] = [len(every) + index[keys[at]] for at in mine.tolist()]
            every += templates
        return every, order

    @cached_property
    def _slice_makers(self) -> tuple[ClassMaker, ...]:
        """Makers of the templates of every slice of a sequence; none where sequences are whole."""
        slices = self.builder.job.plan.pipeline.slices
        if not slices:
            return ()
        builders = (
            replace(self.builder, view=slice_view(self.builder.view, *ends)) for ends in slice_ends(slices)
        )
        return tuple(replace(self, builder=builder) for builder in builders)

    def _join_pairs(
        self,
        class_id: int,
        keys: Sequence[tuple[str, int, bool]],
        pairs: Ints,
        columns: tuple[list[Template], Ints, Ints, Ints],
    ) -> None:
        """Let forwards at ``pairs`` and the backwards behind them run together, where nothing lies between them.

        The forward's place holds both passes and waits for the inputs of both, the backward's hands its gradient
        on. Changes ``columns``: templates, and by action template and sources (two columns each).
        """
        templates, order, source_class, source_action = columns
        pricing, known = self._pricing(class_id), dict[tuple[Any, ...], int]()
        for at in pairs.tolist():
            key = (keys[at], keys[at + 1])
            if key not in known:
                template = self._builder(class_id).pair(*key, pricing)
                known[key] = len(templates) if template else -1
                if template:
                    templates.append(self._with_send(key[0][0], key[0][1], self._shaped(class_id, template)))
                    templates.append(self._with_send(key[1][0], key[1][1], handover()))
            if known[key] >= 0:
                order[at : at + 2] = known[key] + np.arange(2)
                for column in (source_class, source_action):
                    column[at, 1], column[at + 1, 0] = column[at + 1, 0], -1

    def _boundaries(self, letters: Sequence[str], stages: NDArray[Any]) -> list[bool]:
        """First forward and last backward-type action of every virtual stage."""
        first: dict[int, int] = {}
        last: dict[tuple[int, str], int] = {}
        for position, (letter, stage) in enumerate(zip(letters, stages.tolist(), strict=True)):
            if letter == "F":
                first.setdefault(stage, position)
            else:
                last[stage, letter] = position
        marked = {*first.values(), *last.values()}
        return [position in marked for position in range(len(letters))]

    def _templates(
        self, class_id: int, keys: Sequence[tuple[str, int, bool]]
    ) -> tuple[list[Template], dict[tuple[str, int, bool], int]]:
        """Templates of the actions; classes whose collectives take the same share them."""
        family = self._family(class_id, {key[1] for key in keys})
        root = self.builder.sync.single_process and self.network.layout.class_of_rank[0] == class_id
        known = int(self.stage_of_class[class_id]), bool(root)
        if known not in family.made:
            family.made[known] = self._make_templates(family, keys, root=bool(root))
        return family.made[known]  # type: ignore[no-any-return]

    def _family(self, class_id: int, stages: set[int]) -> Family:
        """The family of a class, with the templates of its virtual stages."""
        builder, pricing = self._builder(class_id), self._pricing(class_id)
        needed = {builder.alike[stage] for stage in stages}
        long = not (self.collapse and self.collapsible(class_id))
        families = self._families.setdefault((id(builder), pricing.slowdown, long), [])
        for family in families:
            family.prepare(needed)
            if family.suits(partial(self.network.solo_ns, class_id)):
                return family
        families.append(Family.of(builder, pricing, long=long))
        families[-1].prepare(needed)
        return families[-1]

    def _make_templates(
        self, family: Family, keys: Sequence[tuple[str, int, bool]], *, root: bool
    ) -> tuple[list[Template], dict[tuple[str, int, bool], int]]:
        """Templates of one pipeline rank; ``root`` has the device that a single process works through."""
        templates: list[Template] = []
        index: dict[tuple[str, int, bool], int] = {}
        made: dict[tuple[str, int, bool, Node | None], int] = {}
        for key in dict.fromkeys(keys):
            letter, stage, boundary = key
            send = self._send(letter, stage)
            kind = letter, family.builder.alike[stage], boundary, send
            if kind not in made:
                made[kind] = len(templates)
                if self.builder.sync.single_process:
                    wrapper = OneProcess(self.builder, root, family.pricing.slowdown)
                    alone = family.template(kind[:3], None)
                    templates.append(followed(wrapper.wrap(letter, alone), send))
                else:
                    templates.append(family.template(kind[:3], send))
            index[key] = made[kind]
        return templates, index

    def _shaped(self, class_id: int, template: Template) -> Template:
        """The template as it is, or step by step where collectives inside may be disturbed."""
        return template if self.collapse and self.collapsible(class_id) else flatten(template)

    def _pricing(self, class_id: int) -> Pricing:
        rank = int(self.network.layout.representative_rank[class_id])
        job = self.builder.job
        return Pricing(
            price=lambda use: self.network.solo_ns(class_id, use),
            occupied=lambda use: self.network.occupied_ns(class_id, use),
            slowdown=self.perturbation.slow_ranks.get(rank, 1.0),
            comm_slowdown=job.stack.overlap.compute_slowdown_while_comm,
        )

    def collapsible(self, class_id: int) -> bool:
        """Whether nothing outside touches the collectives of a class's blocks, so that blocks are single ops."""
        kinds, cluster = self.network.block_kinds, self.network.cluster
        if kinds and self.network.contention and are_shared(cluster):
            return False  # a rank that waits for others inside a block leaves its cores to them
        return all(self.network.is_private(class_id, kind) for kind in kinds)

    def _with_send(self, letter: str, stage: int, template: Template) -> Template:
        """Append the message to the neighbouring stage, if there is one."""
        return followed(template, self._send(letter, stage))

    def _send(self, letter: str, stage: int) -> Node | None:
        """The message to the neighbouring stage; forward sends ahead, B and I send back."""
        target = stage + 1 if letter == "F" else stage - 1
        if letter == "W" or not 0 <= target < self.schedule.num_stages:
            return None
        if letter != "F" and rests(self.builder.pieces[target]):
            return None
        ranks = self.schedule.rank_of_stage
        delta = (ranks[target] - ranks[stage]) % self.schedule.num_ranks
        if delta == 0 and not self._turns(stage, target):
            return None
        view = self.builder.view
        stream = f"{'send_F' if letter == 'F' else 'send_B'} {hop_kind(delta)}"
        blocks = view.job.stack.overlap.p2p_blocks_compute
        return Node(
            kind="pp",
            name="send activations" if letter == "F" else "send gradients",
            streams=(stream, *BLOCK_STREAMS) if blocks else (stream,),
            collective=CollectiveUse(hop_kind(delta), "send", send_bytes(view, self._sent(stage, target))),
        )

    def _turns(self, stage: int, target: int) -> bool:
        """Whether a message between two stages goes to the mirror image of its rank."""
        ranks = self.schedule.rank_of_stage
        here = stage != target and ranks[stage] == ranks[target]
        return here and isinstance(self.builder.job.plan.mesh, MirroredMesh)

    def _sent(self, stage: int, target: int) -> Block:
        """The block whose output, or its gradient, crosses between two stages."""
        last: Block = self.builder.pieces[min(stage, target)][-1].block
        return last

    def _tail(self, class_id: int) -> Template:
        builder = self._builder(class_id)
        held = builder.held_parameters(int(self.stage_of_class[class_id]))
        kinds = self.network.layout.group_class
        tied = EMBEDDING_GROUP in kinds and kinds[EMBEDDING_GROUP][class_id] >= 0
        tied = tied and not builder.job.graph.embedding.still
        nodes = builder.sync.tail(
            held,
            root=self.network.layout.class_of_rank[0] == class_id,
            sums=(self._embedding_sync(),) if tied else (),
            matrices=builder.matrices(int(self.stage_of_class[class_id])),
        )
        return Template(nodes, len(nodes) - 1)

    def _embedding_sync(self) -> Node:
        use = embedding_sum(self.builder.view, self.builder.sync)
        return Node(kind="pp", name="all_reduce tied embedding", streams=(COMPUTE, REDUCE), collective=use)

    def _sources(
        self, class_id: int, letters: Sequence[str], stages: NDArray[Any], microbatches: NDArray[Any]
    ) -> tuple[Ints, Ints]:
        """The action each arrival waits for: forward of the stage before, backward of the stage behind.

        The backward of the last stage follows its own forward. The second column is free for a pair's other pass.
        """
        num = self.schedule.num_stages
        source_class = np.full((len(letters), 2), -1, dtype=np.int64)
        source_action = np.full((len(letters), 2), -1, dtype=np.int64)
        for position, (letter, stage, microbatch) in enumerate(
            zip(letters, stages.tolist(), microbatches.tolist(), strict=True)
        ):
            if letter == "W" or (letter == "F" and stage == 0):
                continue
            wanted = (
                ("F", stage - 1) if letter == "F" else ("B", stage + 1) if stage + 1 < num else ("F", stage)
            )
            rank = self.schedule.rank_of_stage[wanted[1]]
            source_class[position, 0] = self._class_by_stage[class_id, rank]
            if self._turns(stage, wanted[1]):
                source_class[position, 0] = self._opposite[class_id]
            source_action[position, 0] = self._positions[wanted[0], wanted[1], microbatch]
        return source_class, source_action

    @cached_property
    def _positions(self) -> dict[tuple[str, int, int], int]:
        """Position of every action on its rank; I counts as B, because both hand a gradient over."""
        table: dict[tuple[str, int, int], int] = {}
        for rank in range(self.schedule.num_ranks):
            letters, stages, microbatches = self.schedule.letters(rank)
            for position, key in enumerate(zip(letters, stages.tolist(), microbatches.tolist(), strict=True)):
                letter = "B" if key[0] == "I" else key[0]
                table[letter, key[1], key[2]] = position
        return table

    @cached_property
    def _class_by_stage(self) -> Ints:
        """int64[num_classes, pp]: the class at every pipeline rank that shares a class's other coordinates."""
        layout, mesh = self.network.layout, self.builder.job.plan.mesh
        ranks: Ints = mesh.at_stage(layout.representative_rank[:, None], np.arange(mesh.pp))
        return layout.class_of_rank[ranks]

    @cached_property
    def _opposite(self) -> Ints:
        """The class of the mirror image of every class's representative."""
        layout, mesh = self.network.layout, self.builder.job.plan.mesh
        assert isinstance(mesh, MirroredMesh), "asked for only where microbatches enter at both ends"
        return layout.class_of_rank[mesh.opposite(layout.representative_rank)]


def _with_tail(sources: Ints) -> Ints:
    """Nothing to wait for, for the tail behind the actions."""
    return np.concatenate([sources, np.full_like(sources[:1], -1)])
