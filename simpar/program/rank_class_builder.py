"""Rank classes of a plan: which ranks may be alike, their templates, ordered actions, waits, and the step's tail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.routing import sample_loads
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import COMPUTE, CollectiveUse
from simpar.program.blocks.rank_view import ANY
from simpar.program.emission.emit import ClassActions
from simpar.program.emission.microbatches import MIDDLE, middle
from simpar.program.emission.shared_cores import are_shared
from simpar.program.emission.traffic import EMBEDDING_GROUP, Disturbances, QuotientNetwork, embedding_sum
from simpar.program.fold.refinement import rows_by_appearance
from simpar.program.job import TrainingJob
from simpar.program.lower_stages import Boundaries
from simpar.program.messages import Messages
from simpar.program.orders import Order, Orders, orders_of
from simpar.program.perturbation import Perturbation
from simpar.program.resolve.token_slices import slice_ends, slice_view
from simpar.program.structure.emptied_cache import emptied
from simpar.program.structure.flatten import flatten
from simpar.program.structure.one_process import OneProcess
from simpar.program.structure.pairs import HANDOVER
from simpar.program.structure.stages import BOUNDARY, FLAGS, ActionBuilder, Key, SegmentPrices, StageBuilder
from simpar.program.structure.templates import REDUCE, Template, TemplateNode, append_messages, prepend_gathers
from simpar.program.structure.undisturbed import select_undisturbed
from simpar.units import Ints

Form = frozenset[str] | None
"""How passes are written: the kinds of groups whose collectives others may disturb, between which runs of steps are
single ops (without any, blocks are); STEP_BY_STEP: every step is an op."""
NONE, STEP_BY_STEP = frozenset[str](), None


def pipeline_ranks(layout: Layout, ranks: Ints) -> Ints:
    """The pipeline rank that each rank belongs to, int64 like ``ranks``."""
    if not layout.stages:
        return layout.mesh.pipeline_rank(ranks)
    starts = np.array([stage.first_device for stage in layout.stages])
    order = np.argsort(starts)
    return order[np.searchsorted(starts[order], ranks, side="right") - 1].astype(np.int64)


def rank_colours(layout: Layout, cluster: Cluster, perturbation: Perturbation, *, uneven_context: bool) -> Ints:
    """Initial colours int64[world], equal for ranks with the same work at the same speed; unfolded, all differ."""
    mesh, world = layout.mesh, np.arange(cluster.world_size)
    colour = pipeline_ranks(layout, world)
    colours = int(colour.max()) + 1
    if uneven_context:
        colour, colours = colour + colours * mesh.coordinates(world)["cp"], colours * mesh.cp
    if layout.has_sampled_loads:
        colour, colours = colour + colours * mesh.expert_coordinate(world), colours * mesh.ep
    if layout.kind == "single_process":
        colour[0] = world.size  # the device that everything passes through
    if len(cluster.devices) > 1:
        colour, colours = colour + colours * cluster.device_of(world), colours * len(cluster.devices)
    if not perturbation.fold:
        return world
    factors = sorted(set(perturbation.slow_ranks.values()))
    for rank, factor in perturbation.slow_ranks.items():
        colour[rank] += colours * (1 + factors.index(factor))
    return colour


@dataclass
class _Family:
    """Templates shared by classes whose collectives take equally long, priced for the first such class.

    ``made`` has, by pipeline rank, by whether it is the first device of a single process, by keys and by form, the
    templates and which of them each action uses.
    """

    builder: ActionBuilder
    pricing: SegmentPrices
    made: dict[tuple[int, bool, tuple[Key, ...], Form], tuple[list[Template], dict[Key, int]]] = field(
        default_factory=dict
    )
    _passes: dict[Key, Template] = field(default_factory=dict)
    _joined: dict[tuple[Any, ...], Template] = field(default_factory=dict)

    def prepare(self, keys: Iterable[Key]) -> None:
        """Make the templates of some actions, whose virtual stages are each the first of those alike."""
        for key in keys:
            if key not in self._passes:
                self._passes[key] = self.builder.template(key, self.pricing)

    def template(
        self, form: Form, key: Key, gathers: tuple[CollectiveUse, ...], messages: tuple[TemplateNode, ...]
    ) -> Template:
        """The action's template in a form, with gathers in front and messages behind its exit; made once."""
        known = form, key, gathers, messages
        if known not in self._joined:
            template = self._passes[key] if form == NONE else flatten(self._passes[key], form)
            self._joined[known] = append_messages(prepend_gathers(template, gathers), messages)
        return self._joined[known]


@dataclass(frozen=True)
class RankClassBuilder:
    """Templates and ordered actions of each rank class.

    ``builders`` has one for every pipeline rank: the same for all in a uniform plan; else those of stages with meshes
    of their own, which ``boundaries`` join. ``middle_count`` microbatches behind the first are one op
    (:mod:`simpar.program.emission.microbatches`). Unless they are wanted ``apart``, passes that nothing disturbs are
    single ops although others of their class are not. The private fields are caches: families of templates by builder
    and slowdown; builders by shared builder, context and expert coordinate, and device.
    """

    job: TrainingJob
    builders: tuple[ActionBuilder, ...]
    network: QuotientNetwork
    schedule: Schedule
    perturbation: Perturbation
    boundaries: Boundaries | None = None
    collapse: bool = True
    middle_count: int = 0
    apart: bool = True
    _families: dict[tuple[int, float], list[_Family]] = field(init=False, default_factory=dict)
    _builders: dict[tuple[int, int, int, int], ActionBuilder] = field(init=False, default_factory=dict)
    _known: dict[tuple[Any, ...], Any] = field(init=False, default_factory=dict)

    def passes(self, class_id: int) -> Mapping[tuple[str, bool], Template]:
        """Templates of the first stage by letter and whether it is the boundary microbatch, blocks as single ops."""
        names = (("F", True), ("F", False), ("B", False))
        keys = [(letter, 0, BOUNDARY * first) for letter, first in names]
        family = self._family(class_id, keys)
        return {name: family.template(NONE, key, (), ()) for name, key in zip(names, keys, strict=True)}

    def shortened(self, schedule: Schedule, middle_count: int) -> RankClassBuilder:
        """The same with another schedule, whose microbatches in the middle are one op; templates are shared."""
        result = replace(self, schedule=schedule, middle_count=middle_count)
        result._builders.update(self._builders)
        for key, families in self._families.items():
            result._families[key] = [replace(family, made={}) for family in families]
        return result

    def _builder(self, class_id: int) -> ActionBuilder:
        """The builder of a class's templates: shared, or for its own context or expert coordinate or device."""
        shared, layout = self.builders[int(self.stage_of_class[class_id])], self.job.layout
        rank = self.network.quotient.representative_rank[class_id]
        device = int(self.network.cluster.device_of(rank))
        context = expert = ANY
        if isinstance(shared, StageBuilder) and shared.view.uneven_context:
            context = int(layout.mesh.coordinates(rank)["cp"])
        if layout.has_sampled_loads:
            expert = int(layout.mesh.expert_coordinate(rank))
        if context == expert == ANY and not device:
            return shared
        key = (id(shared), context, expert, device)
        if key not in self._builders:
            own = shared.on(device)
            if isinstance(own, StageBuilder) and (context, expert) != (ANY, ANY):
                view = replace(own.view, context_rank=context)
                if expert != ANY:
                    loads = sample_loads(self.job.graph, layout, layout.mesh.ep, self.perturbation.seed)
                    view = view.with_load(float(loads[expert]), float(loads.max()))
                own = replace(own, view=view)
            self._builders[key] = own
        return self._builders[key]

    @cached_property
    def stage_of_class(self) -> Ints:
        """Pipeline rank of every class."""
        return pipeline_ranks(self.job.layout, self.network.quotient.representative_rank)

    @cached_property
    def messages(self) -> Messages:
        """What stages send to each other."""
        return Messages(self.job, self.builders, self.schedule, self.boundaries)

    @cached_property
    def alike(self) -> list[Ints]:
        """Classes grouped by what they run: within an entry (ascending), actions differ only in whom they wait for."""
        network, quotient, mesh = self.network, self.network.quotient, self.job.layout.mesh
        ranks, factors = quotient.representative_rank, self.perturbation.slow_ranks
        columns = [
            self.stage_of_class,
            network.cluster.device_of(ranks),
            np.unique([factors.get(rank, 1.0) for rank in ranks.tolist()], return_inverse=True)[1],
            np.arange(len(ranks)) == quotient.class_of_rank[0],
        ]
        if any(isinstance(each, StageBuilder) and each.view.uneven_context for each in self.builders):
            columns.append(mesh.coordinates(ranks)["cp"])
        if self.job.layout.has_sampled_loads:
            columns.append(mesh.expert_coordinate(ranks))
        for group in quotient.group_class.values():
            columns += [np.where(group >= 0, number[group], -1) for number in (network.alike, network.secluded)]
        disturbed = {each: number for number, each in enumerate(self._disturbances)}
        columns.append(np.array([disturbed[each] for each in self._disturbances]))
        rows = [np.broadcast_to(column, ranks.shape) for column in columns]
        kind = rows_by_appearance(np.stack(rows, axis=1).astype(np.int64)).class_of
        return np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])

    def actions(self, classes: Ints) -> ClassActions:
        """The actions of classes that are alike in schedule order, then the step's tail (gradient sync, optimizer)."""
        class_id = int(classes[0])
        rank = int(self.stage_of_class[class_id])
        order = self._orders[rank].of(rank)
        templates, index = self._ordered(class_id, order)
        microbatch, sources = order.microbatch, self._sources(classes, order)
        if self.middle_count and (merged := middle(self.passes(class_id), self.middle_count)):
            at = np.arange(len(index)) == MIDDLE
            index, microbatch = np.where(at, len(templates), index), np.where(at, -1, microbatch)
            templates = (*templates, merged)
        first_layer = np.append(self.builders[rank].first_layers[order.stage[:-1]], 0)
        pairs = np.flatnonzero(self.schedule.ranks[rank].overlap)
        if len(pairs):
            alone, index = len(templates), index.copy()
            templates += tuple(self._join_pairs(class_id, order, pairs, (alone, index, *sources)))
            first_layer = np.where(index < alone, first_layer, 0)  # pairs name layers of two stages
        return ClassActions(templates, index, microbatch, order.stage, *sources, first_layer)

    @cached_property
    def _orders(self) -> tuple[Orders, ...]:
        """By pipeline rank, the orders of which one is its own."""
        by_stage = self.messages.by_stage
        return tuple(orders_of(self.schedule, by_runs=each.sync.by_runs, by_stage=by_stage) for each in self.builders)

    def _ordered(self, class_id: int, order: Order) -> tuple[tuple[Template, ...], Ints]:
        """Templates, and the index of every action's template (those of slices apart); the tail's is the last."""
        tail = self._tail(class_id)
        makers, which = self._variants(class_id, order, tail)
        mine = [order.keys_at(np.flatnonzero(which == each)) for each in range(len(makers))]
        keys = [[order.keys[at] for at in each] for each in mine]
        result = [maker._templates(class_id, each, form) for (maker, form), each in zip(makers, keys, strict=True)]
        known = (*(id(each) for each in (order, tail, *(templates for templates, _ in result))), which.tobytes())
        if known not in self._known:  # classes that run the same share these objects
            starts = np.cumsum([0, *(len(templates) for templates, _ in result)]).tolist()
            table = np.zeros((len(makers), len(order.keys)), dtype=np.int64)
            for number, (_, index) in enumerate(result):
                table[number, mine[number]] = [starts[number] + index[key] for key in keys[number]]
            every = (*(template for templates, _ in result for template in templates), tail)
            self._known[known] = every, np.append(table[which, order.key], starts[-1])
        found_order: tuple[tuple[Template, ...], Ints] = self._known[known]
        return found_order

    def _variants(
        self, class_id: int, order: Order, tail: Template
    ) -> tuple[Sequence[tuple[RankClassBuilder, Form]], Ints]:
        """Makers of the templates of a class and their form; and which of them makes that of every action.

        Slices of sequences have makers of their own; passes beside which nothing else uses their links are shorter.
        """
        slices, disturbances = self._slice_makers, self._disturbances[class_id]
        form = NONE if self.collapse and self.collapsible(class_id) else STEP_BY_STEP
        if slices:
            return [(each, form) for each in slices], order.microbatch[:-1] % len(slices)
        if disturbances is None:
            return [(self, form)], np.zeros(len(order.key), dtype=np.int64)
        always, beside = disturbances.always, disturbances.beside
        if not beside:
            return [(self, always)], np.zeros(len(order.key), dtype=np.int64)
        templates, index = self._templates(class_id, order.keys, NONE)
        at = np.array([index[key] for key in order.keys], dtype=np.int64)[order.key]
        alone = select_undisturbed((*templates, tail), np.append(at, len(templates)), disturbances.sharers)
        return [(self, always | beside), (self, always)], alone[:-1].astype(np.int64)

    @cached_property
    def _disturbances(self) -> tuple[Disturbances | None, ...]:
        """What others may disturb of every class; None of one that is collapsible, or where it does not matter.

        It does not where passes are wanted step by step, or run together, or ranks share cores or one process. Jitter
        is drawn for long passes step by step.
        """
        count, layout = self.network.quotient.num_classes, self.job.layout
        if self.apart or not self.collapse or self.perturbation.jitter_sigma > 0:
            return (None,) * count
        cores, one_process = are_shared(self.network.cluster), self.builders[0].sync.single_process
        overlaps = any(rank.overlap.any() for rank in self.schedule.ranks)
        if overlaps or cores or one_process or layout.stages or self._slice_makers:
            return (None,) * count
        return tuple(None if self.collapsible(each) else self.network.disturbances(each) for each in range(count))

    @cached_property
    def _slice_makers(self) -> tuple[RankClassBuilder, ...]:
        """Makers of the templates of every slice of a sequence; none where sequences are whole."""
        slices, builder = self.job.layout.slices, self.builders[0]
        if not slices:
            return ()
        assert isinstance(builder, StageBuilder), "stages in roles of their own run whole sequences"
        of_slices = (replace(builder, view=slice_view(builder.view, *ends)) for ends in slice_ends(slices))
        return tuple(replace(self, builders=(each,) * len(self.builders)) for each in of_slices)

    def _join_pairs(
        self, class_id: int, actions: Order, pairs: Ints, columns: tuple[int, Ints, Ints, Ints]
    ) -> list[Template]:
        """Let forwards at ``pairs`` and the backwards behind them run together, where no collective lies between them.

        The forward's entry then holds both passes and waits for the inputs of both; the backward's only hands its
        gradient on. ``columns`` are the number of other templates and three arrays by action that are changed in place:
        template, source class and source action. Returns the pairs' templates, numbered behind the others.
        """
        alone, order, source_class, source_action = columns
        pricing, known, templates = self._pricing(class_id), dict[tuple[Key, Key], int](), list[Template]()
        for at in pairs.tolist():
            key = actions.keys[actions.key[at]], actions.keys[actions.key[at + 1]]
            if key not in known:
                template = self._builder(class_id).pair(*key, pricing)
                known[key] = alone + len(templates) if template else -1
                if template:
                    short = self.collapse and self.collapsible(class_id)
                    both = template if short else flatten(template), HANDOVER
                    templates += [
                        append_messages(t, self.messages.sends(*k[:2])) for k, t in zip(key, both, strict=True)
                    ]
            if known[key] >= 0:
                order[at : at + 2] = known[key] + np.arange(2)
                for column in (source_class, source_action):
                    column[..., at, -1], column[..., at + 1, 0] = column[..., at + 1, 0], -1
        return templates

    def _templates(self, class_id: int, keys: Sequence[Key], form: Form) -> tuple[list[Template], dict[Key, int]]:
        """Templates of the actions, and the index of each key's; shared by classes whose collectives take equally long.

        Under a single process, templates of the first device, through which everything passes, differ from others.
        """
        family, builder = self._family(class_id, keys), self.builders[0]
        one_process, alike = builder.sync.single_process, family.builder.alike
        root = one_process and bool(self.network.quotient.class_of_rank[0] == class_id)
        known = int(self.stage_of_class[class_id]), root, tuple(keys), form
        if known not in family.made:
            kinds = {
                (letter, stage, flags): (
                    (letter, alike[stage], flags % FLAGS),
                    *self.messages.of(letter, stage, flags // FLAGS),
                )
                for letter, stage, flags in keys
            }
            place = {kind: at for at, kind in enumerate(dict.fromkeys(kinds.values()))}
            templates = [family.template(form, *kind) for kind in place]
            if one_process:
                assert isinstance(builder, StageBuilder), "one process has one layout"
                process = OneProcess(builder, root, family.pricing.slowdown)
                templates = [process.wrap(kind[0][0], one) for kind, one in zip(place, templates, strict=True)]
            family.made[known] = templates, {key: place[kind] for key, kind in kinds.items()}
        return family.made[known]

    def _family(self, class_id: int, keys: Sequence[Key]) -> _Family:
        """The family of a class, with the templates of its actions."""
        builder, pricing = self._builder(class_id), self._pricing(class_id)
        needed = dict.fromkeys((letter, builder.alike[stage], flags % FLAGS) for letter, stage, flags in keys)
        families = self._families.setdefault((id(builder), pricing.slowdown), [])
        for family in families:
            family.prepare(needed)
            asked = family.pricing.asked.items()
            if all(self.network.solo_ns(class_id, use) == took for use, took in asked):
                return family
        families.append(_Family(builder, pricing))
        families[-1].prepare(needed)
        return families[-1]

    def _pricing(self, class_id: int) -> SegmentPrices:
        rank = int(self.network.quotient.representative_rank[class_id])
        return SegmentPrices(
            solo=partial(self.network.solo_ns, class_id),
            occupied=partial(self.network.occupied_ns, class_id),
            slowdown=self.perturbation.slow_ranks.get(rank, 1.0),
            comm_slowdown=self.job.stack.overlap.compute_slowdown_while_comm,
        )

    def waits_for_host(self, class_id: int) -> bool:
        """Whether a layer takes the host of a class clearly longer than its device."""
        stage, price = int(self.stage_of_class[class_id]), self._pricing(class_id).price
        return self._builder(class_id).waits_for_host(stage, price)

    def collapsible(self, class_id: int) -> bool:
        """Whether nothing outside touches the collectives of a class's blocks, so that blocks are single ops."""
        kinds, cluster = self.network.block_kinds, self.network.cluster
        if kinds and self.network.contention and are_shared(cluster):
            return False  # a rank that waits for others inside a block leaves its cores to them
        groups = [self.network.group_of(class_id, kind) for kind in kinds]
        return all(self.network.secluded[group] for group in groups if group >= 0)

    def _tail(self, class_id: int) -> Template:
        builder, stage = self._builder(class_id), int(self.stage_of_class[class_id])
        root, kinds = (bool(self.network.quotient.class_of_rank[0] == class_id), self.network.quotient.group_class)
        tied = EMBEDDING_GROUP in kinds and bool(kinds[EMBEDDING_GROUP][class_id] >= 0)
        tied = tied and not builder.job.graph.embedding.has_no_backward
        key = id(builder), stage, root, tied
        if key not in self._known:
            sums: tuple[TemplateNode, ...] = ()
            if tied:
                elements = max(self.builders[at].table_elements for at in (0, -1))
                use = embedding_sum(elements, self.builders[0].sync)
                sums = (TemplateNode(PIPELINE, "all_reduce tied embedding", (COMPUTE, REDUCE), collective=use),)
            held, matrices = builder.parameters_of_rank(stage), builder.matrices(stage)
            sums, last = (*sums, *builder.matrix_moves(stage)), emptied(builder, self.schedule, stage)
            alike = id(builder), tuple(held.items()), root, sums, matrices, last
            if alike not in self._known:  # stages that hold and end alike share it
                nodes = (*builder.sync.tail(held, root=root, sums=sums, matrices=matrices), *last)
                self._known[alike] = Template(nodes, len(nodes) - 1)
            self._known[key] = self._known[alike]
        tail: Template = self._known[key]
        return tail

    def _sources(self, classes: Ints, order: Order) -> tuple[Ints, Ints]:
        """What arrivals wait for: classes int64[classes, n, k] (-1: none) and their actions int64[n, k].

        The last of the k columns stays free for the other pass of a pair.
        """
        nobody = np.full((len(classes), 1), -1)
        quotient, messages = self.network.quotient, self.messages
        senders = [messages.senders(quotient, classes, *way) if way[1] >= 0 else nobody for way in order.ways]
        width = 1 + max(table.shape[1] for table in senders)
        table = np.full((len(classes), len(senders), width), -1)
        for at, result in enumerate(senders):
            table[:, at, : result.shape[1]] = result
        return table[:, order.way], np.repeat(order.awaited[:, None], width, axis=1)
