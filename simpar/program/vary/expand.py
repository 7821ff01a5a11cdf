"""Expansion: a folded Program becomes that of all units, in bulk columns, without lowering anything again.

Folding simulates one rank for all that behave alike; independent jitter makes none behave alike. But what they run
is still the same: an op of a class is repeated for its units (:mod:`simpar.program.vary.lockstep`), a collective for
the sets of units that its groups join, a flow for the links that its own groups load. Expanded and unfolded Programs
give the same integers, op by op.

Links that the same flows load equally much, such as the NICs of a tensor-parallel group, stand for each other (by
colour refinement, as in :mod:`simpar.program.fold.refinement`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import is_port
from simpar.plan.mesh import Mesh
from simpar.program.emission.traffic import BLOCK_KINDS, RouteSource, group_kinds
from simpar.program.fold.group_routes import GroupKind, kind_loads
from simpar.program.fold.layout import Layout
from simpar.program.fold.refinement import Incidence, refine
from simpar.program.ir.flow import COEFFICIENT_ONE, fixed_point
from simpar.program.ir.program import Csr, MemoryTable, OpTable, Program, Routes
from simpar.program.lower import Lowered
from simpar.program.vary.lockstep import Units, connected

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Expanded:
    """The Program of all units. Op i of the folded one became ``count[i]`` ops, in turn.

    ``unit`` int64[num_ops] is the unit of an op of one unit, and the first that it joins of a collective.
    """

    program: Program
    units: Units
    count: Ints
    unit: Ints


@dataclass(frozen=True)
class Domains:
    """Who repeats an op: the units of a class (domain = class), or sets of units (one domain a group class).

    ``instance`` int64[domains, units] is the number of a unit's copy of the op, -1 where it has none; ``classes``
    are those of the units of every domain, ``count`` int64[domains] says how many copies there are. Messages are
    repeated for their senders, so their groups are no domains.
    """

    instance: Ints
    classes: tuple[tuple[int, ...], ...]
    count: Ints

    @staticmethod
    def of(layout: Layout, units: Units, kinds: Mapping[str, GroupKind]) -> Domains:
        """The domains of a layout: its classes, then its classes of groups."""
        parts = {
            name: connected(len(units), [units.of_rank[kind.groups]])
            for name, kind in kinds.items()
            if not kind.directed
        }
        every: list[tuple[tuple[int, ...], Ints]] = [
            ((class_id,), np.arange(len(units))) for class_id in range(layout.num_classes)
        ]
        every += [(() if g.directed else g.members, parts.get(g.kind, units.class_of)) for g in layout.groups]
        instance = np.full((len(every), len(units)), -1, dtype=np.int64)
        for domain, (classes, part) in enumerate(every):
            here = np.flatnonzero(np.isin(units.class_of, classes))
            instance[domain, here] = np.unique(part[here], return_inverse=True)[1]
        return Domains(instance, tuple(classes for classes, _ in every), instance.max(axis=1) + 1)

    def first_unit(self, domain: int) -> Ints:
        """The first unit of every copy."""
        units = np.flatnonzero(self.instance[domain] >= 0)
        return units[np.unique(self.instance[domain, units], return_index=True)[1]]


class Expansion:
    """A folded Program whose pipeline ranks share one mesh, and how often its ops are repeated for all units."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.program, self.layout = lowered.program, lowered.layout
        builder = lowered.builder
        self.kinds = {kind.name: kind for kind in group_kinds(builder.view, builder.sync, lowered.schedule)}
        self.mesh: Mesh = builder.job.plan.mesh
        self.units = Units.of(self.layout, [k for name, k in self.kinds.items() if name in BLOCK_KINDS])
        self.domains = Domains.of(self.layout, self.units, self.kinds)
        self.domain = self._domain_of_ops()
        self.count = self.domains.count[self.domain]
        self.first = np.cumsum(self.count) - self.count
        self.num_ops = int(self.count.sum())

    def expanded(self) -> Expanded:
        """The Program of all units."""
        ops, units = self.program.ops, self.units
        copy = np.arange(self.num_ops) - np.repeat(self.first, self.count)
        firsts = [self.domains.first_unit(domain) for domain in range(len(self.domains.count))]
        begin = np.cumsum(self.domains.count) - self.domains.count
        unit = np.concatenate(firsts)[np.repeat(begin[self.domain], self.count) + copy]
        begin, routes = self._routes()
        route = np.repeat(begin, self.count)
        repeated = {
            name: np.repeat(getattr(ops, name), self.count)
            for name in ("fixed_ns", "work_bytes", "rate_cap_bytes_per_s", "label", "microbatch", "stage")
        }
        streams, stream_names, stream_class = self._streams()
        program = Program(
            ops=OpTable(class_id=unit, route=np.where(route >= 0, route + copy, -1), **repeated),
            dependencies=self._dependencies(),
            streams=streams,
            stream_names=stream_names,
            stream_class=stream_class,
            routes=routes,
            memory=MemoryTable(*(np.zeros(0, dtype=kind) for kind in (int, bool, int, int, int))),
            labels=self.program.labels,
            class_names=tuple(f"unit {index}" for index in range(len(units))),
            multiplicity=units.size,
        )
        return Expanded(program, units, self.count, unit)

    def _domain_of_ops(self) -> Ints:
        """The class of an op, or what its group joins; a message is its sender's."""
        domain = self.program.ops.class_id.copy()
        slots, directed = self.lowered.slots, np.array([g.directed for g in self.layout.groups] + [True])
        joint = np.flatnonzero(~directed[slots.group])
        domain[self.lowered.op_of_slot[joint]] = self.layout.num_classes + slots.group[joint]
        return domain

    def _dependencies(self) -> Csr:
        table, num = self.program.dependencies, len(self.domains.count)
        waiting, waited_for = table.owners(), table.item
        key = self.domain[waiting] * num + self.domain[waited_for]
        rows = [np.zeros((2, 0), dtype=np.int64)]
        for pair in np.unique(key).tolist():
            mine = np.flatnonzero(key == pair)
            after, before = self._copies_linked(pair // num, pair % num)
            ends = ((waiting, after), (waited_for, before))
            rows.append(np.stack([(self.first[op[mine]][:, None] + copy).ravel() for op, copy in ends]))
        owner, item = np.concatenate(rows, axis=1)
        return Csr.of(owner, item, self.num_ops)

    def _copies_linked(self, after: int, before: int) -> tuple[Ints, Ints]:
        """Which copy in one domain waits for which in the other: of the same unit, or of its pipeline neighbour."""
        units, instance = self.units, self.domains.instance
        common = set(self.domains.classes[after]) & set(self.domains.classes[before])
        if common:
            here = there = np.flatnonzero(np.isin(units.class_of, list(common)))
        else:
            ranks = np.flatnonzero(instance[after, units.of_rank] >= 0)
            stages = self.lowered.stage_of_class[list(self.domains.classes[before])]
            here, there = units.of_rank[ranks], units.of_rank[self.mesh.at_stage(ranks, int(stages[0]))]
        first, second = instance[after, here], instance[before, there]
        real, width = second >= 0, int(self.domains.count[before])
        pairs = np.unique(first[real] * width + second[real])
        return pairs // width, pairs % width

    def _streams(self) -> tuple[Csr, tuple[str, ...], Ints]:
        """Every stream of a class becomes one of each of its units, with that unit's copies in the same order."""
        table, units, names = self.program.streams, self.units, list[str]()
        none = np.zeros(0, dtype=np.int64)
        items, lengths, owners = [none], [none], [none]
        for stream, class_id in enumerate(self.program.stream_class.tolist()):
            ops = table.row(stream)
            if not len(ops):
                continue
            mine = units.of_class(class_id)
            copies = self.domains.instance[self.domain[ops], mine] + self.first[ops][:, None]
            items.append(copies.T.ravel())
            lengths.append(np.full(copies.shape[1], len(ops)))
            owners.append(np.arange(mine.start, mine.stop))
            names += [self.program.stream_names[stream]] * copies.shape[1]
        pointer = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
        return Csr(pointer, np.concatenate(items)), tuple(names), np.concatenate(owners)

    def _routes(self) -> tuple[Ints, Routes]:
        """The route of the first copy of every op (-1: none), and all routes, over links of the copies' own groups."""
        ops, first = self.program.ops, 0
        flows = np.flatnonzero((ops.work_bytes > 0) & (ops.route >= 0))
        sources = [route.source for route in self.lowered.network.routes]
        begin: dict[RouteSource, int] = {}
        loads = [np.zeros((3, 0), dtype=np.int64)]
        for source in dict.fromkeys(sources[route] for route in np.unique(ops.route[flows]).tolist()):
            begin[source] = first
            domain = self._domain(source)
            loads.append(self._loads(source, domain) + np.array([[first], [0], [0]]))
            first += int(self.domains.count[domain])
        route = np.full(len(ops), -1, dtype=np.int64)
        route[flows] = [begin[sources[each]] for each in ops.route[flows].tolist()]
        return route, self._over_few_links(first, *np.concatenate(loads, axis=1))

    def _domain(self, source: RouteSource) -> int:
        """The domain of a group's flows."""
        group = self.layout.groups[source.group]
        if not group.directed:
            return self.layout.num_classes + source.group
        return int(np.flatnonzero(self.layout.group_class[group.kind] == source.group)[0])

    def _loads(self, source: RouteSource, domain: int) -> Ints:
        """What the groups of a class of groups put on links of their own: (copy, link, coefficient) int64[3, n]."""
        cluster, layout = self.lowered.network.cluster, self.layout
        kind = self.kinds[layout.groups[source.group].kind]
        of_group = layout.group_class[kind.name][layout.class_of_rank[kind.groups[:, 0]]]
        mine = kind.groups[of_group == source.group]
        found = kind_loads(kind, mine, cluster)
        raw = found.loads[found.label, found.columns.index((source.op, source.line.algorithm))]
        loaded, share = raw > 0, source.line.share(is_port(found.link, cluster))
        units = self.units.of_rank[mine[found.row[loaded], 0]]
        key, index = np.unique(
            self.domains.instance[domain, units] * cluster.num_links + found.link[loaded], return_inverse=True
        )
        together = np.bincount(index, fixed_point(raw[loaded] / share[loaded]), len(key)).astype(np.int64)
        return np.stack([key // cluster.num_links, key % cluster.num_links, together])

    def _over_few_links(self, num_routes: int, route: Ints, link: Ints, coefficient: Ints) -> Routes:
        """Routes over one link of each set that the same flows load alike."""
        cluster = self.lowered.network.cluster
        links, end = np.unique(link, return_inverse=True)
        capacity = np.floor(cluster.capacity_of(links)).astype(np.int64)
        kind = np.unique(capacity, return_inverse=True)[1]
        colour = np.concatenate([np.arange(num_routes), num_routes + kind])
        label = np.unique(coefficient, return_inverse=True)[1].astype(np.int64)
        alike = refine(Incidence(colour, route, num_routes + end, label)).class_of[num_routes:]
        _, lowest, number = np.unique(alike, return_index=True, return_inverse=True)
        kept = np.flatnonzero(np.isin(end, lowest))
        kept = kept[np.lexsort((end[kept], route[kept]))]
        return Routes(
            Csr.of(route[kept], number[end[kept]], num_routes),
            coefficient[kept] / COEFFICIENT_ONE,
            capacity[lowest],
            tuple(cluster.link_name(int(each)) for each in links[lowest]),
        )
