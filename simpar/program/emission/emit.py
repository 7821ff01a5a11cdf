"""Emission: templates repeated over the actions of every rank class become one Program, in bulk columns.

Every class owns one *slot* per node of every action. A collective that joins several classes has a slot in each
of them; the k-th use of a group kind in one class is the k-th use in the others, so those slots merge into one
op that sits on the streams of all of them (its rendezvous is its dependencies).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simpar.errors import BeyondIntegers, UserError
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.ir.program import MEMORY_CATEGORIES, Label
from simpar.program.structure.templates import BUFFERS, Node, Template

Ints = NDArray[np.int64]
MOST_OPS = 5_000_000
"""Of all classes: with about 0.8 kB each in all that is made of them, 4 GB."""


@dataclass(frozen=True)
class FlowUse:
    """How one collective appears in the Program: latency, bytes to drain, its route (-1: none) and rate cap."""

    fixed_ns: int
    work_bytes: int = 0
    route: int = -1
    rate_cap_bytes_per_s: int = 0


@dataclass(frozen=True)
class ClassActions:
    """The ordered actions of one rank class.

    ``template`` int64[n] indexes ``templates``; ``source_class`` / ``source_action`` int64[n] name the action
    whose exit the arrival nodes wait for (-1: nothing to wait for), or int64[n, k] up to k such actions.
    ``first_layer`` int64[n] is added to the layers that a template names: templates of stages that are alike are one.
    """

    name: str
    templates: tuple[Template, ...]
    template: Ints
    microbatch: Ints
    stage: Ints
    source_class: Ints
    source_action: Ints
    first_layer: Ints


@dataclass(frozen=True)
class Slots:
    """Columns over the slots of all classes, before merging."""

    class_id: Ints
    action: Ints
    node: Ints
    label: Ints
    fixed_ns: Ints
    work_bytes: Ints
    route: Ints
    rate_cap: Ints
    group: Ints
    microbatch: Ints
    stage: Ints


@dataclass(frozen=True)
class Links:
    """Rows (slot, ...) that hang on slots: dependencies, stream membership, memory changes."""

    dependency: Ints
    stream: Ints
    memory: Ints


def too_many(num_microbatches: int) -> UserError:
    """What is said where a step is larger than can be simulated."""
    return UserError(
        f"{num_microbatches:,} microbatches a step: more than {MOST_OPS:,} ops; allowed: fewer microbatches (a smaller "
        "training.global_batch, a larger plan.micro_batch), or, without a pipeline, plan.kind ddp with plan.zero 0 or "
        "1, where they become one op"
    )


class LabelTable:
    """Distinct labels in order of first use."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, str, int], int] = {}

    def add(self, kind: str, name: str, layer: int) -> int:
        """The index of a label, new or known."""
        return self._index.setdefault((kind, name, layer), len(self._index))

    def labels(self) -> tuple[Label, ...]:
        """All labels by index."""
        return tuple(Label(kind, name, layer) for kind, name, layer in self._index)


class Emitter:
    """Collects the slots of all classes.

    ``streams`` fixes the order of stream names within a class; streams that no collective of the job uses are not
    among them and left out of the nodes' lists.
    """

    def __init__(
        self,
        streams: Sequence[str],
        price: Callable[[int, Node], FlowUse],
        group_of: Callable[[int, str], int],
    ) -> None:
        self.streams = {name: index for index, name in enumerate(streams)}
        self.labels = LabelTable()
        self._price = price
        self._group_of = group_of
        self._shared: dict[int, tuple[Template, _Table]] = {}
        self._labelled: dict[tuple[int, int], Ints] = {}
        self._parts: list[Slots] = []
        self._rows: list[Links] = []
        self._starts: list[Ints] = []
        self._exits: list[Ints] = []
        self._arrivals: list[tuple[Ints, Ints, Ints]] = []
        self._total = 0

    def add(self, class_id: int, actions: ClassActions) -> None:
        """Append the slots of one class; classes are added in order of their id.

        Raises UserError where all together are more than MOST_OPS.
        """
        tables = [self._table(class_id, template) for template in actions.templates]
        sizes = np.array([len(table.fixed_ns) for table in tables], dtype=np.int64)[actions.template]
        if self._total + int(sizes.sum()) > MOST_OPS:
            raise too_many(int(actions.microbatch.max()) + 1)
        starts = self._total + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        action = np.repeat(np.arange(len(sizes)), sizes)
        node = np.arange(int(sizes.sum())) - (starts - self._total)[action]
        bases = np.cumsum([0, *(len(table.fixed_ns) for table in tables[:-1])])
        source = bases[actions.template][action] + node
        columns = {
            name: np.concatenate([getattr(table, name) for table in tables])[source]
            for name in ("fixed_ns", "work_bytes", "route", "rate_cap", "group")
        }
        self._parts.append(
            Slots(
                class_id=np.full(len(node), class_id),
                action=action,
                node=node,
                label=self._labels(actions)[action, node],
                microbatch=actions.microbatch[action],
                stage=actions.stage[action],
                **columns,
            )
        )
        rows = self._repeat_rows(class_id, tables, actions.template, starts)
        buffers = _buffer_rows(tables, actions.template, starts)
        self._rows.append(replace(rows, dependency=np.concatenate([rows.dependency, buffers])))
        exits = np.array([template.exit for template in actions.templates], dtype=np.int64)[actions.template]
        self._starts.append(starts)
        self._exits.append(starts + exits)
        self._note_arrivals(tables, actions, starts)
        self._total += len(node)

    def finish(self) -> tuple[Slots, Links]:
        """All slots and their rows; arrival dependencies are resolved here, once every class is known."""
        slots = _concatenate(self._parts)
        rows = _concatenate(self._rows)
        return slots, Links(np.concatenate([rows.dependency, self._arrival_rows()]), rows.stream, rows.memory)

    def _labels(self, actions: ClassActions) -> Ints:
        """Labels of the nodes of every action, int64[actions, nodes of the longest], zero behind the last one."""
        pairs, which = np.unique(
            np.stack([actions.template, actions.first_layer]), axis=1, return_inverse=True
        )
        found = np.zeros((pairs.shape[1], max(len(each.nodes) for each in actions.templates)), dtype=np.int64)
        for at, (number, first) in enumerate(pairs.T.tolist()):
            template = actions.templates[number]
            if (id(template), first) not in self._labelled:
                self._labelled[id(template), first] = _column(
                    self.labels.add(node.kind, node.name, moved_layer(node.layer, first))
                    for node in template.nodes
                )
            found[at, : len(template.nodes)] = self._labelled[id(template), first]
        return np.asarray(found[which.ravel()])

    def _table(self, class_id: int, template: Template) -> _Table:
        """A template of one class: what all classes with it share, and what its collectives are on their groups."""
        if id(template) not in self._shared:
            self._shared[id(template)] = template, self._without_groups(template)
        table = self._shared[id(template)][1]
        uses = table.uses
        if not uses.nodes:
            return table
        each = [self._price(class_id, template.nodes[at]) for at in uses.nodes]
        groups = [self._group_of(class_id, name) for name in uses.groups]
        columns = {
            "fixed_ns": [use.fixed_ns for use in each],
            "work_bytes": [use.work_bytes for use in each],
            "route": [use.route for use in each],
            "rate_cap": [use.rate_cap_bytes_per_s for use in each],
            "group": groups,
        }
        own = {name: getattr(table, name).copy() for name in columns}
        for name, values in columns.items():
            own[name][uses.at] = np.array(values, dtype=np.int64)[uses.which]
        return replace(table, **own)

    def _without_groups(self, template: Template) -> _Table:
        nodes = template.nodes
        none, free = np.zeros(len(nodes), dtype=np.int64), FlowUse(0)
        return _Table(
            fixed_ns=_column(0 if node.collective else node.duration_ns for node in nodes),
            work_bytes=none + free.work_bytes,
            route=none + free.route,
            rate_cap=none + free.rate_cap_bytes_per_s,
            group=none - 1,
            dependency=_rows(((i, after) for i, node in enumerate(nodes) for after in node.after), 2),
            stream=_rows(
                (
                    (i, self.streams[name])
                    for i, node in enumerate(nodes)
                    for name in node.streams
                    if name in self.streams
                ),
                2,
            ),
            memory=_rows(_memory_rows(nodes), 4),
            arrival=_column(i for i, node in enumerate(nodes) if node.arrival),
            awaits=_rows(
                (
                    (i, 0, BUFFERS.index(each.buffer), each.back)
                    for i, node in enumerate(nodes)
                    for each in node.awaits
                ),
                4,
            ),
            frees=_rows(((i, BUFFERS.index(name)) for i, node in enumerate(nodes) for name in node.frees), 2),
            uses=_uses(nodes),
        )

    def _repeat_rows(self, class_id: int, tables: Sequence[_Table], template: Ints, starts: Ints) -> Links:
        dependency = _tile([table.dependency for table in tables], template, starts, shifted=(0, 1))
        stream = _tile([table.stream for table in tables], template, starts, shifted=(0,))
        stream[:, 1] += class_id * len(self.streams)
        memory = _tile([table.memory for table in tables], template, starts, shifted=(0,))
        owner = np.full((len(memory), 1), class_id)
        return Links(dependency, stream, np.concatenate([memory, owner], axis=1))

    def _note_arrivals(self, tables: Sequence[_Table], actions: ClassActions, starts: Ints) -> None:
        classes, positions = (
            np.atleast_2d(column.T) for column in (actions.source_class, actions.source_action)
        )
        for source_class, source_action in zip(classes, positions, strict=True):
            waiting = np.flatnonzero(source_class >= 0)
            rows = _tile(
                [table.arrival[:, None] for table in tables],
                actions.template[waiting],
                starts[waiting],
                shifted=(0,),
            )
            counts = np.array([len(table.arrival) for table in tables])[actions.template[waiting]]
            self._arrivals.append(
                (
                    rows[:, 0],
                    np.repeat(source_class[waiting], counts),
                    np.repeat(source_action[waiting], counts),
                )
            )

    def _arrival_rows(self) -> Ints:
        offsets = np.concatenate([[0], np.cumsum([len(exits) for exits in self._exits])])
        exits = np.concatenate(self._exits)
        slot, source_class, source_action = (
            np.concatenate(column) for column in zip(*self._arrivals, strict=True)
        )
        return np.stack([slot, exits[offsets[source_class] + source_action]], axis=1)


@dataclass(frozen=True)
class _Table:
    """One template as columns (per node) and rows (node, ...)."""

    fixed_ns: Ints
    work_bytes: Ints
    route: Ints
    rate_cap: Ints
    group: Ints
    dependency: Ints
    stream: Ints
    memory: Ints
    arrival: Ints
    awaits: Ints
    frees: Ints
    uses: _Uses


@dataclass(frozen=True)
class _Uses:
    """Distinct collectives of a template: a node of each, their groups, where they are and which is there."""

    nodes: tuple[int, ...]
    groups: tuple[str, ...]
    at: Ints
    which: Ints


def _uses(nodes: Sequence[Node]) -> _Uses:
    known: dict[CollectiveUse, int] = {}
    at = [number for number, node in enumerate(nodes) if node.collective]
    which = [known.setdefault(nodes[number].collective, len(known)) for number in at]  # type: ignore[arg-type]
    first = [at[which.index(number)] for number in range(len(known))]
    return _Uses(tuple(first), tuple(use.group for use in known), _column(at), _column(which))


def moved_layer(layer: int, first_layer: int) -> int:
    """A layer that a template names, counted from the first layer of its stage; -1 stays: what belongs to none."""
    return layer + first_layer if layer >= 0 else layer


def _memory_rows(nodes: Sequence[Node]) -> list[tuple[int, int, int, int]]:
    return [
        (i, int(change.at_finish), round(change.delta_bytes), MEMORY_CATEGORIES.index(change.category))
        for i, node in enumerate(nodes)
        for change in node.memory
    ]


def _column(values: object) -> Ints:
    try:
        return np.array(list(values), dtype=np.int64)  # type: ignore[call-overload]
    except OverflowError:
        raise BeyondIntegers(
            "times of more than 292 years or tensors of more than 9.2 EB: allowed: fewer tokens a microbatch "
            "(training.seq_len, plan.micro_batch)"
        ) from None


def _rows(values: object, width: int) -> Ints:
    return _column(values).reshape(-1, width)


def _tile(tables: Sequence[Ints], template: Ints, starts: Ints, *, shifted: tuple[int, ...]) -> Ints:
    """Repeat each action's rows, shifting the node columns by the action's first slot."""
    counts = np.array([len(table) for table in tables], dtype=np.int64)[template]
    bases = np.cumsum([0, *(len(table) for table in tables[:-1])])[template]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, dtype=np.int64)
    action = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate(tables)[bases[action] + np.arange(len(action)) - first[action]]
    for column in shifted:
        rows[:, column] += starts[action]
    return rows


def _buffer_rows(tables: Sequence[_Table], template: Ints, starts: Ints) -> Ints:
    """Dependencies on the slots of earlier actions of a class that free a buffer: the last but some before each."""
    freeing = _tile([table.frees for table in tables], template, starts, shifted=(0,))
    waiting = _tile([table.awaits for table in tables], template, starts, shifted=(0, 1))
    found = [np.zeros((0, 2), dtype=np.int64)]
    for buffer in np.unique(waiting[:, 2]).tolist():
        free = freeing[freeing[:, 1] == buffer, 0]
        slot, start, _, back = waiting[waiting[:, 2] == buffer].T
        at = np.searchsorted(free, start) - back
        found.append(np.stack([slot[at >= 0], free[at[at >= 0]]], axis=1))
    return np.concatenate(found)


def _concatenate(parts: Sequence[Slots] | Sequence[Links]):  # type: ignore[no-untyped-def]  # noqa: ANN202
    names = parts[0].__dataclass_fields__
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
