"""Emission: templates repeated over the actions of every rank class become one Program, in bulk columns.

Every class owns one *slot* per node of every action. A collective that joins several classes has a slot in each
of them; the k-th use of a group kind in one class is the k-th use in the others, so those slots merge into one
op that sits on the streams of all of them (its rendezvous is its dependencies).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf

import numpy as np

from simpar.errors import BeyondIntegers, TooManyOps
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.traffic import Network
from simpar.program.fold.layout import Layout
from simpar.program.ir.program import MEMORY_CATEGORIES, Csr, Label, MemoryTable, OpTable, Program
from simpar.program.structure.templates import BUFFERS, Node, Template
from simpar.units import Flags, Ints

MOST_OPS = 8_000_000
"""Of all classes: with about 0.4 kB each in all that is made of them, 3 GB."""
_AT_MOST: ContextVar[float] = ContextVar("most ops of a Program that is built now", default=inf)


@contextmanager
def at_most(ops: int) -> Iterator[None]:
    """Programs of more ops than that are refused inside the block, before they are built."""
    token = _AT_MOST.set(ops)
    try:
        yield
    finally:
        _AT_MOST.reset(token)


@dataclass(frozen=True)
class ClassActions:
    """The ordered actions of rank classes that are alike.

    ``template`` int64[n] indexes ``templates``; ``source_class`` int64[classes, n, k] (-1: nobody) and
    ``source_action`` int64[n, k] name up to k actions whose exits the arrival nodes of each of them wait for.
    ``first_layer`` int64[n] is added to the layers that a template names: templates of stages that are alike are one.
    """

    templates: tuple[Template, ...]
    template: Ints
    microbatch: Ints
    stage: Ints
    source_class: Ints
    source_action: Ints
    first_layer: Ints


@dataclass(frozen=True)
class Slots:
    """Columns over the slots of all classes: int64[num_slots] each; ``group`` is -1 but for collectives."""

    class_id: Ints
    action: Ints
    node: Ints
    group: Ints

    def of_class(self, class_id: int) -> slice:
        """The slots of a class: classes are added in order of their id."""
        return slice(*np.searchsorted(self.class_id, [class_id, class_id + 1]).tolist())


@dataclass(frozen=True)
class _Table:
    """One template in columns.

    ``ops`` int64[6, nodes] are number, group, fixed_ns, work_bytes, route and rate cap of its nodes, ``rows``
    int64[columns, rows] what hangs on nodes, by name, ``uses`` where its collectives stand.
    """

    ops: Ints
    rows: Mapping[str, Ints]
    uses: Mapping[CollectiveUse, list[int]]


_WIDTH = {"dependency": 2, "stream": 2, "memory": 4, "arrival": 1, "awaits": 4, "frees": 2}
_NODES = {"dependency": 2, "stream": 1, "memory": 1, "arrival": 1, "awaits": 2, "frees": 1, "exit": 1}
"""Kinds of rows that hang on nodes, or on actions: their columns, and how many of the first of these name nodes."""


class Emitter:
    """Collects the slots of all classes.

    ``streams`` fixes the order of stream names within a class; streams that no collective of the job uses are not
    among them and left out of the nodes' lists.
    """

    def __init__(self, streams: Sequence[str], network: Network, most_ops: float | None = None) -> None:
        self.network = network
        self.most_ops = min(MOST_OPS, _AT_MOST.get()) if most_ops is None else most_ops
        self._streams = {name: index for index, name in enumerate(streams)}
        self._labels: dict[tuple[str, str, int], int] = {}
        self._tables: dict[int, tuple[Template, _Table]] = {}
        self._labelled: dict[tuple[int, int], Ints] = {}
        self._columns: dict[tuple[int, int], tuple[ClassActions, dict[str, Ints]]] = {}
        self._parts: list[tuple[Ints, dict[str, Ints]]] = []
        self._total = 0

    def add(self, classes: Ints, actions: ClassActions) -> None:
        """Append the slots of classes that are alike; slots stand in order of the ids of their classes.

        Raises TooManyOps where all together are more than ``most_ops``: MOST_OPS or those of :func:`at_most`.
        """
        key = id(actions.templates), id(actions.template)
        if key not in self._columns:
            self._columns[key] = actions, self._shared_columns(actions)
        shared = self._columns[key][1]
        num_slots = shared["slot"].shape[1]
        if self._total + num_slots * len(classes) > self.most_ops:
            raise TooManyOps(
                f"{int(actions.microbatch.max()) + 1:,} microbatches a step: more than {self.most_ops:,} ops; "
                "allowed: fewer microbatches (a smaller training.global_batch, a larger plan.micro_batch), or, without "
                "a pipeline, plan.kind ddp with plan.zero 0 or 1, where they become one op"
            )
        self._total += num_slots * len(classes)
        slot, action = shared["arrival"]
        source_class, source_action = actions.source_class[:, action], actions.source_action[action]
        waiting = np.stack(np.broadcast_arrays(slot[:, None], source_class, source_action))
        own = {
            "op": self._ops(classes, actions, shared["op"]),
            "arrival": waiting.reshape(3, len(classes), -1),
        }
        self._parts.append((classes, shared | own))

    def _shared_columns(self, actions: ClassActions) -> dict[str, Ints]:
        """Columns that classes with the same actions share; slots are counted from the first of the class."""
        tables = [self._table(template) for template in actions.templates]
        row, action = _tiling([table.ops for table in tables], actions.template)
        starts = np.searchsorted(action, np.arange(len(actions.template)))
        rows = {
            name: _tile([table.rows[name] for table in tables], actions.template, starts, _NODES[name])
            for name in _WIDTH
        }
        exits, (arrival,) = np.array([template.exit for template in actions.templates]), rows["arrival"]
        of_actions = (actions.microbatch[action], actions.stage[action])
        buffers = _buffer_rows(rows["awaits"], rows["frees"])
        return {
            "op": np.take(np.concatenate([table.ops for table in tables], axis=1), row, axis=1),
            "slot": np.stack([action, self._label(actions), *of_actions]),
            "dependency": np.concatenate([rows["dependency"], buffers], axis=1),
            "stream": rows["stream"],
            "memory": rows["memory"],
            "exit": (starts + exits[actions.template])[None],
            "arrival": np.stack([arrival, action[arrival]]),
        }

    def finish(self) -> tuple[Program, Slots, Ints]:
        """The Program of all slots, the slots, and the op that each slot became (int64[num_slots])."""
        network, layout, streams = self.network, self.network.layout, tuple(self._streams)
        first = self._begins("slot")
        class_id, action, label, microbatch, stage = self._joined("slot", first)
        _, node, group, *costs = self._joined("op", first)
        slots, columns = Slots(class_id, action, node, group), [class_id, *costs, label, microbatch, stage]
        op, kept = _merge(slots, layout)
        num_ops = int(kept.sum())
        if num_ops < len(op):
            columns = [column[kept] for column in columns]
        owner, exits = self._joined("exit", first)
        _, slot, source_class, source_action = self._joined("arrival", first)
        real = source_class >= 0
        slot, source_class, source_action = slot[real], source_class[real], source_action[real]
        sources = exits[np.searchsorted(owner, source_class) + source_action]
        _, waiting, waited_for = self._joined("dependency", first)
        waits = op[np.append(waiting, slot)], op[np.append(waited_for, sources)]
        del waiting, waited_for
        owner, slot, stream = self._joined("stream", first)  # slots of a class stand in program order
        stream += owner * len(streams)
        placed = op[slot]
        owner, slot, at_finish, delta, category = self._joined("memory", first)
        program = Program(
            ops=OpTable(*columns),
            dependencies=Csr.of(*waits, num_ops),
            streams=Csr.of(stream, placed, len(streams) * layout.num_classes),
            stream_names=streams * layout.num_classes,
            stream_class=np.repeat(np.arange(layout.num_classes), len(streams)),
            routes=network.program_routes(),
            memory=MemoryTable(op[slot], at_finish.astype(bool), owner, delta, category),
            labels=tuple(Label(*key) for key in self._labels),
            class_names=tuple(f"class {index}" for index in range(layout.num_classes)),
            multiplicity=layout.multiplicity,
        )
        return program, slots, op

    def _begins(self, name: str) -> Ints:
        """Where the rows of a name of every class begin, and end: int64[num_classes + 1]."""
        counts = np.zeros(self.network.layout.num_classes, dtype=np.int64)
        for classes, columns in self._parts:
            counts[classes] = columns[name].shape[-1]
        return np.concatenate([[0], np.cumsum(counts)])

    def _joined(self, name: str, first: Ints) -> list[Ints]:
        """Rows of a name of all classes in turn: the class of each and their columns, with slots counted over all."""
        begins, parts = self._begins(name), [(classes, columns.pop(name)) for classes, columns in self._parts]
        owner = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        joined = [np.empty(len(owner), dtype=np.int64) for _ in parts[0][1]]
        for classes, rows in parts:
            at = begins[classes, None] + np.arange(rows.shape[-1])
            for column, row in zip(joined, rows, strict=True):
                column[at] = row
        for column in joined[: _NODES.get(name, 0)]:
            column += first[owner]
        return [owner, *joined]

    def _label(self, actions: ClassActions) -> Ints:
        """Labels of all slots of a class: those of the nodes, with layers counted from the first of their stage."""
        pairs, which = np.unique(
            np.stack([actions.template, actions.first_layer]), axis=1, return_inverse=True
        )
        tables = []
        for number, first in pairs.T.tolist():
            template = actions.templates[number]
            if (id(template), first) not in self._labelled:
                keys = ((node.kind, node.name, moved_layer(node.layer, first)) for node in template.nodes)
                self._labelled[id(template), first] = _rows(
                    [(self._labels.setdefault(key, len(self._labels)),) for key in keys], 1
                )
            tables.append(self._labelled[id(template), first])
        labels: Ints = _tile(tables, which.ravel(), which.ravel(), 0)[0]
        return labels

    def _table(self, template: Template) -> _Table:
        if id(template) not in self._tables:
            self._tables[id(template)] = template, _table(template.nodes, self._streams)
        return self._tables[id(template)][1]

    def _ops(self, classes: Ints, actions: ClassActions, shared: Ints) -> Ints:
        """Columns of all slots of classes: what they share, and their collectives on the groups of each."""
        tables = [self._table(template) for template in actions.templates]
        row, _ = _tiling([table.ops for table in tables], actions.template)
        begins = np.cumsum([0, *(table.ops.shape[1] for table in tables)])
        uses: dict[CollectiveUse, int] = {}
        which = np.full(begins[-1], -1)
        for begin, table in zip(begins.tolist(), tables, strict=False):
            for use, at in table.uses.items():
                which[begin + np.array(at)] = uses.setdefault(use, len(uses))
        which = which[row]
        found = np.broadcast_to(shared[:, None], (len(shared), len(classes), len(row))).copy()
        for use, number in uses.items():
            found[1:, :, which == number] = self.network.flows(classes, use)[:, :, None]
        return found


def _table(nodes: Sequence[Node], streams: Mapping[str, int]) -> _Table:
    uses: dict[CollectiveUse, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.collective:
            uses.setdefault(node.collective, []).append(i)
    each = list(enumerate(nodes))
    changes = [(i, change) for i, node in each for change in node.memory]
    rows: dict[str, list[tuple[int, ...]]] = {
        "dependency": [(i, after) for i, node in each for after in node.after],
        "stream": [(i, streams[name]) for i, node in each for name in node.streams if name in streams],
        "memory": [
            (i, int(c.at_finish), round(c.delta_bytes), MEMORY_CATEGORIES.index(c.category))
            for i, c in changes
        ],
        "arrival": [(i,) for i, node in each if node.arrival],
        "awaits": [(i, 0, BUFFERS.index(a.buffer), a.back) for i, node in each for a in node.awaits],
        "frees": [(i, BUFFERS.index(name)) for i, node in each for name in node.frees],
    }
    return _Table(
        ops=_rows([(i, -1, 0 if node.collective else node.duration_ns, 0, -1, 0) for i, node in each], 6),
        rows={name: _rows(some, _WIDTH[name]) for name, some in rows.items()},
        uses=uses,
    )


def moved_layer(layer: int, first_layer: int) -> int:
    """A layer that a template names, counted from the first layer of its stage; -1 stays: what belongs to none."""
    return layer + first_layer if layer >= 0 else layer


def _rows(values: Sequence[tuple[int, ...]], width: int) -> Ints:
    """Rows as columns: int64[width, rows]."""
    try:
        return np.ascontiguousarray(np.array(values, dtype=np.int64).reshape(-1, width).T)
    except OverflowError:
        raise BeyondIntegers(
            "times of more than 292 years or tensors of more than 9.2 EB: allowed: fewer tokens a microbatch "
            "(training.seq_len, plan.micro_batch)"
        ) from None


def _tiling(tables: Sequence[Ints], template: Ints) -> tuple[Ints, Ints]:
    """For the rows of every action's template in turn their place among those of all tables, and the action."""
    lengths = np.array([table.shape[1] for table in tables], dtype=np.int64)
    counts, bases = lengths[template], (np.cumsum(lengths) - lengths)[template]
    action = np.repeat(np.arange(len(counts)), counts)
    return np.repeat(bases - np.cumsum(counts) + counts, counts) + np.arange(len(action)), action


def _tile(tables: Sequence[Ints], template: Ints, starts: Ints, nodes: int) -> Ints:
    """Rows of every action's template in turn, int64[columns, rows]; the first ``nodes`` columns become slots."""
    at, action = _tiling(tables, template)
    rows: Ints = np.take(np.concatenate(tables, axis=1), at, axis=1)
    rows[:nodes] += starts[action]
    return rows


def _buffer_rows(waiting: Ints, freeing: Ints) -> Ints:
    """Dependencies on the slots of earlier actions of a class that free a buffer: the last but some before each."""
    found = [np.zeros((2, 0), dtype=np.int64)]
    for buffer in np.unique(waiting[2]).tolist():
        free = freeing[0, freeing[1] == buffer]
        slot, start, _, back = waiting[:, waiting[2] == buffer]
        at = np.searchsorted(free, start) - back
        found.append(np.stack([slot[at >= 0], free[at[at >= 0]]]))
    return np.concatenate(found, axis=1)


def _merge(slots: Slots, layout: Layout) -> tuple[Ints, Flags]:
    """The op of every slot, and the slots that ops are made of: of a collective its slot in the lowest class.

    The k-th slot of a group kind in one member class is the k-th in all others.
    """
    owner = np.arange(len(slots.group))
    members = np.array([0 if each.directed else len(each.members) for each in layout.groups] + [0])
    joint = np.flatnonzero(members[slots.group] > 1)
    group, run = slots.group[joint], slots.group[joint] * layout.num_classes + slots.class_id[joint]
    order, nth = np.argsort(run, kind="stable"), np.empty_like(joint)
    nth[order] = np.arange(len(joint)) - np.searchsorted(run[order], run[order])
    _, first, call, many = np.unique(
        nth * len(members) + group, return_index=True, return_inverse=True, return_counts=True
    )
    for uneven in first[many != members[group[first]]][:1]:
        found = layout.groups[group[uneven]]
        raise AssertionError(f"classes {found.members} call the {found.kind} group unequally often")
    owner[joint] = joint[first][call]
    kept = owner == np.arange(len(owner))
    return (np.cumsum(kept) - 1)[owner], kept
