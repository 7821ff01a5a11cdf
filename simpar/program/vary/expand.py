"""Expansion: a folded Program becomes that of all units, in bulk columns, without lowering anything again.

Folding simulates one rank for all that behave alike; independent jitter makes none behave alike. But what they run
is still the same: an op of a class is repeated for its units (:mod:`simpar.program.vary.lockstep`), a collective for
the sets of units that its groups join, a flow for the links that its own groups load. Expanded and unfolded Programs
give the same integers, op by op.

Links that the same flows load equally much, such as the NICs of a tensor-parallel group, stand for each other (by
colour refinement, as in :mod:`simpar.program.fold.refinement`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import is_port
from simpar.plan.mesh import Mesh
from simpar.program.emission.traffic import BLOCK_KINDS, RouteSource, group_kinds
from simpar.program.fold.group_routes import GroupKind, kind_loads
from simpar.program.fold.refinement import Incidence, refine
from simpar.program.ir.flow import COEFFICIENT_ONE, fixed_point
from simpar.program.ir.program import Csr, MemoryTable, OpTable, Program, Routes
from simpar.program.lower import Lowered
from simpar.program.structure.stages import StageBuilder
from simpar.program.vary.lockstep import Units, connected

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Expanded:
    """The Program of all units. Op i of the folded one became ``first[i]`` to ``first[i] + count[i]``.

    ``unit`` int64[num_ops] is the unit of an op of one unit, and the first that it joins of a collective.
    """

    program: Program
    units: Units
    first: Ints
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

    def first_unit(self, domain: int) -> Ints:
        """The first unit of every copy."""
        units = np.flatnonzero(self.instance[domain] >= 0)
        return units[np.unique(self.instance[domain, units], return_index=True)[1]]


def expand(lowered: Lowered) -> Expanded:
    """The Program of all units of a folded one whose pipeline ranks share one mesh."""
    return _Expansion(lowered).expanded()


def num_copies(lowered: Lowered) -> int:
    """How many ops expansion would make."""
    return int(_Expansion(lowered).count.sum())


class _Expansion:
    """The parts of one expansion."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.program, self.layout = lowered.program, lowered.layout
        builder = lowered.builder
        assert isinstance(builder, StageBuilder), "stages with meshes of their own are lowered unfolded"
        self.kinds = {kind.name: kind for kind in group_kinds(builder.view, builder.sync, lowered.schedule)}
        self.mesh: Mesh = builder.job.plan.mesh
        self.units = Units.of(self.layout, [k for name, k in self.kinds.items() if name in BLOCK_KINDS])
        self.domains = self._domains()
        self.domain = self._domain_of_ops()
        self.count = self.domains.count[self.domain]
        self.first = np.cumsum(self.count) - self.count

    def expanded(self) -> Expanded:
        """All columns together."""
        ops, units = self.program.ops, self.units
        unit = self._repeat_by_domain(self.domains.first_unit)
        route, routes = _RoutesOfUnits(self).columns()
        repeated = {
            name: np.repeat(getattr(ops, name), self.count)
            for name in ("fixed_ns", "work_bytes", "rate_cap_bytes_per_s", "label", "microbatch", "stage")
        }
        names = self.program.stream_names
        streams, stream_names, stream_class = self._streams(names)
        program = Program(
            ops=OpTable(class_id=unit, route=route, **repeated),
            dependencies=self._dependencies(len(unit)),
            streams=streams,
            stream_names=stream_names,
            stream_class=stream_class,
            routes=routes,
            memory=MemoryTable(*(np.zeros(0, dtype=kind) for kind in (int, bool, int, int, int))),
            labels=self.program.labels,
            class_names=tuple(f"unit {index}" for index in range(len(units))),
            multiplicity=units.size,
        )
        return Expanded(program, units, self.first, self.count, unit)

    def _domains(self) -> Domains:
        layout, units = self.layout, self.units
        num_classes = layout.num_classes
        instance = np.full((num_classes + len(layout.groups), len(units)), -1, dtype=np.int64)
        classes: list[tuple[int, ...]] = []
        for class_id in range(num_classes):
            mine = units.of_class(class_id)
            instance[class_id, mine] = np.arange(mine.stop - mine.start)
            classes.append((class_id,))
        parts: dict[str, Ints] = {}
        for index, group in enumerate(layout.groups):
            classes.append(() if group.directed else group.members)
            if group.directed:
                continue
            if group.kind not in parts:
                parts[group.kind] = connected(len(units), [units.of_rank[self.kinds[group.kind].groups]])
            here = np.concatenate([np.arange(len(units))[units.of_class(c)] for c in group.members])
            number = np.unique(parts[group.kind][here], return_inverse=True)[1]
            instance[num_classes + index, here] = number
        return Domains(instance, tuple(classes), instance.max(axis=1) + 1)

    def _domain_of_ops(self) -> Ints:
        """The class of an op, or what its group joins; a message is its sender's."""
        domain = self.program.ops.class_id.copy()
        slots, directed = self.lowered.slots, np.array([g.directed for g in self.layout.groups] + [True])
        joint = np.flatnonzero((slots.group >= 0) & ~directed[slots.group])
        domain[self.lowered.op_of_slot[joint]] = self.layout.num_classes + slots.group[joint]
        return domain

    def _repeat_by_domain(self, values: object) -> Ints:
        """One column over all copies, whose values depend on the domain of the op alone."""
        column = np.empty(int(self.count.sum()), dtype=np.int64)
        for domain in np.unique(self.domain).tolist():
            ops = np.flatnonzero(self.domain == domain)
            column[self.first[ops][:, None] + np.arange(self.domains.count[domain])] = values(domain)  # type: ignore[operator]
        return column

    def _dependencies(self, num_ops: int) -> Csr:
        table = self.program.dependencies
        waiting, waited_for = table.owners(), table.item
        num = len(self.domains.classes)
        key = self.domain[waiting] * num + self.domain[waited_for]
        rows = [np.zeros((2, 0), dtype=np.int64)]
        for pair in np.unique(key).tolist():
            mine = np.flatnonzero(key == pair)
            after, before = self._copies_linked(pair // num, pair % num)
            ends = (
                (self.first[waiting[mine]][:, None] + after).ravel(),
                (self.first[waited_for[mine]][:, None] + before).ravel(),
            )
            rows.append(np.stack(ends))
        owner, item = np.concatenate(rows, axis=1)
        return Csr.of(owner, item, num_ops)

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
        real = second >= 0
        width = int(self.domains.count[before])
        pairs = np.unique(first[real] * width + second[real])
        return pairs // width, pairs % width

    def _streams(self, names: Sequence[str]) -> tuple[Csr, tuple[str, ...], Ints]:
        """Every stream of a class becomes one of each of its units, with that unit's copies in the same order."""
        table, units = self.program.streams, self.units
        items, lengths, owners = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], []
        stream_names: list[str] = []
        for stream, class_id in enumerate(self.program.stream_class.tolist()):
            ops = table.row(stream)
            if not len(ops):
                continue
            mine = units.of_class(class_id)
            copies = self.domains.instance[self.domain[ops], mine] + self.first[ops][:, None]
            items.append(copies.T.ravel())
            lengths.append(np.full(copies.shape[1], len(ops)))
            owners.append(np.arange(mine.start, mine.stop))
            stream_names += [names[stream]] * copies.shape[1]
        pointer = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
        return Csr(pointer, np.concatenate(items)), tuple(stream_names), np.concatenate(owners)


@dataclass(frozen=True)
class _Loads:
    """Bytes that the copies of a flow put on links, per byte of progress: rows (copy, link, coefficient)."""

    copy: Ints
    link: Ints
    coefficient: Ints


class _RoutesOfUnits:
    """Routes of all copies over the links that their own groups load."""

    def __init__(self, parts: _Expansion) -> None:
        self.parts = parts
        self.network = parts.lowered.network
        ops = parts.program.ops
        self.flows = np.flatnonzero((ops.work_bytes > 0) & (ops.route >= 0))
        self.sources: Sequence[RouteSource] = [route.source for route in self.network.routes]

    def columns(self) -> tuple[Ints, Routes]:
        """The route of every copy of every op, and the routes."""
        parts, ops = self.parts, self.parts.program.ops
        route = np.full(int(parts.count.sum()), -1, dtype=np.int64)
        first = 0
        begins: dict[RouteSource, int] = {}
        for source in self._loads:
            begins[source] = first
            first += int(parts.domains.count[self._domain(source)])
        for op in self.flows.tolist():
            many = int(parts.count[op])
            begin = begins[self.sources[int(ops.route[op])]]
            route[parts.first[op] : parts.first[op] + many] = begin + np.arange(many)
        loads = [np.zeros((3, 0), dtype=np.int64)]
        for source, found in self._loads.items():
            loads.append(np.stack([begins[source] + found.copy, found.link, found.coefficient]))
        return route, self._routes(first, *np.concatenate(loads, axis=1))

    @cached_property
    def _loads(self) -> Mapping[RouteSource, _Loads]:
        used = np.unique(self.parts.program.ops.route[self.flows]).tolist()
        return {source: self._of_source(source) for source in dict.fromkeys(self.sources[r] for r in used)}

    def _domain(self, source: RouteSource) -> int:
        """The domain of a group's flows."""
        group = self.parts.layout.groups[source.group]
        if not group.directed:
            return self.parts.layout.num_classes + source.group
        return int(np.flatnonzero(self.parts.layout.group_class[group.kind] == source.group)[0])

    def _of_source(self, source: RouteSource) -> _Loads:
        """What the groups of a class of groups put on links of their own."""
        parts, cluster, layout = self.parts, self.network.cluster, self.parts.layout
        group = layout.groups[source.group]
        kind: GroupKind = parts.kinds[group.kind]
        ends = kind.groups[:, 0]
        mine = kind.groups[layout.group_class[kind.name][layout.class_of_rank[ends]] == source.group]
        found = kind_loads(kind, mine, cluster)
        raw = found.loads[found.label, found.columns.index((source.op, source.line.algorithm))]
        share = source.line.share(is_port(found.link, cluster))
        loaded = raw > 0
        units = parts.units.of_rank[mine[found.row[loaded], 0]]
        copy, link = parts.domains.instance[self._domain(source), units], found.link[loaded]
        key, index = np.unique(copy * cluster.num_links + link, return_inverse=True)
        together = np.bincount(index, fixed_point(raw[loaded] / share[loaded]), len(key))
        return _Loads(key // cluster.num_links, key % cluster.num_links, together.astype(np.int64))

    def _routes(self, num_routes: int, route: Ints, link: Ints, coefficient: Ints) -> Routes:
        """Routes over one link of each set that the same flows load alike."""
        cluster = self.network.cluster
        links, end = np.unique(link, return_inverse=True)
        capacity = np.floor(cluster.capacity_of(links)).astype(np.int64)
        colour = np.concatenate(
            [np.arange(num_routes), num_routes + np.unique(capacity, return_inverse=True)[1]]
        )
        label = np.unique(coefficient, return_inverse=True)[1].astype(np.int64)
        alike = refine(Incidence(colour, route, num_routes + end, label)).class_of[num_routes:]
        _, lowest, number = np.unique(alike, return_index=True, return_inverse=True)
        kept = np.isin(end, lowest)
        order = np.lexsort((end[kept], route[kept]))
        rows = (column[kept][order] for column in (route, number[end], coefficient))
        owner, item, weight = rows
        return Routes(
            Csr.of(owner, item, num_routes),
            weight / COEFFICIENT_ONE,
            capacity[lowest],
            tuple(cluster.link_name(int(each)) for each in links[lowest]),
        )
