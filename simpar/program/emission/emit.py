"""Emission: templates repeated over the actions of every rank class become one Program, in bulk columns.

Every class owns one *slot* per node of every action. A collective that joins several classes has a slot in each
of them; the k-th use of a group kind in one class is the k-th use in the others, so those slots merge into one
op that sits on the streams of all of them (its rendezvous is its dependencies).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import TooManyOps
from simpar.program.emission.template_columns import OPS, WIDTH, SharedTables, TemplateColumns, make_columns
from simpar.program.emission.traffic import QuotientNetwork
from simpar.program.emission.write_ops import LIBRARY, AlikeColumns, alike_columns, write_ops
from simpar.program.fold.quotient import Quotient
from simpar.program.ir.program import Csr, Label, MemoryTable, OpTable, Program
from simpar.program.structure.templates import Template
from simpar.units import Flags, Indices, Ints, unique

MOST_OPS = 8_000_000
"""Ops of all classes together; an op takes about 0.25 kB in everything made from it, which gives 2 GB."""
_AT_MOST: ContextVar[float] = ContextVar("most ops of a Program that is built now", default=inf)


@contextmanager
def at_most(ops: int) -> Iterator[None]:
    """Inside the ``with`` block, Programs of more than ``ops`` ops are refused before they are built.

    Of blocks within each other the fewest count.
    """
    token = _AT_MOST.set(min(ops, _AT_MOST.get()))
    try:
        yield
    finally:
        _AT_MOST.reset(token)


@dataclass(frozen=True)
class ClassActions:
    """The n ordered actions of rank classes that are alike.

    ``template`` int64[n] indexes ``templates``. The arrival nodes of an action wait for the exits of up to k other
    actions: number ``source_action`` int64[n, k] of the class ``source_class`` int64[classes, n, k] (-1: none).
    ``first_layer`` int64[n] is added to the layers that a template names, because stages that are alike share
    templates.
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
    """Columns over the slots of all classes: int32[num_slots] each; ``group`` is -1 but for collectives."""

    class_id: Indices
    action: Indices
    node: Indices
    group: Indices

    def of_class(self, class_id: int) -> slice:
        """The slots of a class: classes are added in order of their id."""
        ends = np.array(
            [class_id, class_id + 1], dtype=self.class_id.dtype
        )  # with another dtype, searchsorted would copy the whole column
        return slice(*np.searchsorted(self.class_id, ends).tolist())


_Read = tuple[Ints, Ints]
"""Values, and for every slot the index of its value."""
_OF_ACTIONS = ("template", "microbatch", "stage", "source_class", "source_action", "first_layer")
_FLOWS = OPS[1:]
"""Columns that a collective gets from its process group."""
_LARGE = ("fixed_ns", "work_bytes", "rate_cap_bytes_per_s")
"""Columns that 32 bits do not hold."""
_NODES = {"dependency": 2, "stream": 1, "memory": 1, "arrival": 1, "awaits": 2, "frees": 1, "exit": 1}
"""By kind of row: how many of the first columns name nodes."""


class Emitter:
    """Collects the slots of all classes.

    ``streams`` fixes the order of stream names within a class. Streams that are not among them, because no collective
    of the job uses them, are left out of the nodes' lists.
    """

    def __init__(self, streams: Sequence[str], network: QuotientNetwork, most_ops: float | None = None) -> None:
        self.network = network
        self.most_ops = min(MOST_OPS, _AT_MOST.get()) if most_ops is None else most_ops
        self._streams = {name: index for index, name in enumerate(streams)}
        self._labels: dict[tuple[str, str, int], int] = {}
        self._tables: dict[int, tuple[Template, TemplateColumns]] = {}
        self._known: dict[tuple[int, ...], SharedTables] = {}
        self._labelled: dict[tuple[int, int], Ints] = {}
        self._added: list[tuple[Ints, ClassActions]] = []
        self._parts: list[tuple[Ints, dict[str, Ints]]] = []
        self._begins = np.zeros(network.quotient.num_classes + 1, dtype=np.int64)

    def add(self, classes: Ints, actions: ClassActions) -> None:
        """Append the slots of classes that are alike; slots are ordered by the ids of their classes.

        Raises TooManyOps where there are more than ``most_ops`` in all: by default MOST_OPS, or as :func:`at_most`
        says.
        """
        lengths = np.array([len(template.nodes) for template in actions.templates])
        self._begins[classes + 1] = lengths[actions.template].sum()
        if self._begins.sum() > self.most_ops:
            raise TooManyOps(
                f"{int(actions.microbatch.max()) + 1:,} microbatches a step: more than {self.most_ops:,} ops; "
                "allowed: fewer microbatches (a smaller training.global_batch, a larger plan.micro_batch), or, without "
                "a pipeline, plan.kind ddp with plan.zero 0 or 1, where they become one op"
            )
        self._added.append((classes, actions))

    def __len__(self) -> int:
        """Slots of all classes."""
        return int(self._begins.sum())

    def digest(self) -> bytes:
        """A digest of what :meth:`finish` reads; steps with equal digests differ at most in the names of links."""
        network, quotient = self.network, self.network.quotient
        hashed = hashlib.sha256(repr((tuple(self._streams), [group.members for group in quotient.groups])).encode())
        directed = np.array([group.directed for group in quotient.groups])
        parts: list[NDArray[Any]] = [quotient.multiplicity, directed]
        known: dict[int, list[NDArray[Any]]] = {}
        for classes, actions in self._added:
            tables = self._shared(actions).tables
            for template, table in zip(actions.templates, tables, strict=True):
                if id(template) not in known:
                    hashed.update(repr([(node.kind, node.name, node.layer) for node in template.nodes]).encode())
                    known[id(template)] = [np.array(len(known)), table.ops, *table.rows.values()]
                    parts += known[id(template)]
                parts.append(known[id(template)][0])
            parts += [classes, *(getattr(actions, name) for name in _OF_ACTIONS)]
            uses, use_of_node = self._shared(actions).uses
            parts += [use_of_node, *network.flows(classes, uses)]
        routes = network.program_routes()
        parts += [routes.links.pointer, routes.links.item, routes.coefficient, routes.capacity_bytes_per_s]
        for part in parts:
            hashed.update(repr((part.dtype.str, part.shape)).encode())
            hashed.update(np.ascontiguousarray(part).data)
        return hashed.digest()

    def finish(self) -> tuple[Program, Slots, Indices]:
        """The Program of all slots, the slots, and the op that each slot became (int32[num_slots])."""
        quotient, streams = self.network.quotient, tuple(self._streams)
        self._begins = np.cumsum(self._begins)
        if library := LIBRARY.load_for(int(self._begins[-1])):
            parts = [self._alike(classes, actions) for classes, actions in self._added]
            written = write_ops(library, parts, self._begins, len(streams), quotient)
            of_slots = {name: written.slots[name] for name in ("class_id", "action", "node", "group")}
            program = self._program(written.ops, written.dependencies, written.placed, written.memory)
            return program, Slots(**of_slots), written.slots["op"]
        columns = self._columns()
        slots = Slots(columns["class_id"], columns.pop("action"), columns.pop("node"), columns.pop("group"))
        op, kept = _merge(slots, quotient)
        num_ops = int(kept.sum())
        if num_ops < len(op):
            columns = {name: column[kept] for name, column in columns.items()}
        waits = self._waits(op)
        dependencies = Csr.of(*waits, num_ops)
        del waits
        owner, slot, stream = self._joined("stream")  # slots of a class stand in program order
        stream += owner * len(streams)
        placed = Csr.of(stream, op[slot], len(streams) * quotient.num_classes)
        owner, slot, at_finish, delta, category = self._joined("memory", np.int64)
        memory = MemoryTable(op[slot], at_finish.astype(bool), owner, delta, category)
        return self._program(OpTable(**columns), dependencies, placed, memory), slots, op

    def _program(self, ops: OpTable, dependencies: Csr, streams: Csr, memory: MemoryTable) -> Program:
        quotient, names = self.network.quotient, tuple(self._streams)
        return Program(
            ops=ops,
            dependencies=dependencies,
            streams=streams,
            stream_names=names * quotient.num_classes,
            stream_class=np.repeat(np.arange(quotient.num_classes), len(names)),
            routes=self.network.program_routes(),
            memory=memory,
            labels=tuple(map(Label._make, self._labels)),
            class_names=tuple(f"class {index}" for index in range(quotient.num_classes)),
            multiplicity=quotient.multiplicity,
        )

    def _alike(self, classes: Ints, actions: ClassActions) -> AlikeColumns:
        """What :func:`write_ops` reads of classes with the same actions."""
        shared, template = self._shared(actions), actions.template
        tables, (uses, use), of_nodes = shared.tables, shared.uses, shared.columns
        _, starts = _slots_of(tables, template)
        labels, label_at = self._label(actions)
        waiting, freeing = (
            _tile([table.rows[name] for table in tables], template, starts, _NODES[name])
            for name in ("awaits", "frees")
        )
        return alike_columns(
            classes,
            template=template,
            microbatch=actions.microbatch,
            stage=actions.stage,
            label_at=label_at,
            start=starts,
            source_class=actions.source_class,
            source_action=actions.source_action,
            use=use,
            label=labels,
            flow=self.network.flows(classes, uses),
            exit=np.array([each.exit for each in actions.templates]),
            buffer=_buffer_rows(waiting, freeing),
            **of_nodes,
        )

    def _columns(self) -> dict[str, Any]:
        """Columns of all slots by name; their rows (dependencies and so on) are kept by class for :meth:`_joined`."""
        names = ("class_id", "action", "label", "microbatch", "stage", *OPS)
        columns = {name: np.empty(self._begins[-1], dtype=np.int64 if name in _LARGE else np.int32) for name in names}
        known: dict[tuple[int, int], tuple[Ints, dict[str, _Read], dict[str, Ints]]] = {}
        for classes, actions in self._added:
            key, shared = (id(actions.templates), id(actions.template)), self._shared(actions)
            if key not in known:
                known[key] = self._shared_columns(actions, shared.tables)
            row, read, rows = known[key]
            begins = self._begins[classes, None]
            places = _places(begins, len(row))
            columns["class_id"][places] = classes[:, None]
            for name, (values, at) in read.items():
                column, values = columns[name], values.astype(columns[name].dtype)
                if len(values) and (values == values[0]).all():  # of collectives, what comes from groups
                    column[places] = values[0]
                elif isinstance(places, slice):
                    np.take(values, at, out=column[places], mode="clip")
                else:
                    column[places] = values[at]
            uses, use_of_node = shared.uses
            if uses:
                flows = self.network.flows(classes, uses)
                at = np.flatnonzero(use_of_node[row] >= 0)
                use = use_of_node[row[at]]
                for number, name in enumerate(_FLOWS):
                    columns[name][begins + at] = flows[use, number].T
            slot, action = rows["arrival"]
            source_class, source_action = actions.source_class[:, action], actions.source_action[action]
            waiting = np.stack(np.broadcast_arrays(slot[:, None], source_class, source_action))
            self._parts.append((classes, {**rows, "arrival": waiting.reshape(3, len(classes), -1)}))
        return columns

    def _shared_columns(
        self, actions: ClassActions, tables: Sequence[TemplateColumns]
    ) -> tuple[Ints, dict[str, _Read], dict[str, Ints]]:
        """What classes with the same actions share: (node of every slot, values of columns, rows by name).

        Nodes are numbered through all templates. In the rows, slots are counted from the first one of the class.
        """
        row, action = _tiling([table.ops for table in tables], actions.template)
        lengths, starts = _slots_of(tables, actions.template)
        rows = {
            name: _tile([table.rows[name] for table in tables], actions.template, starts, _NODES[name])
            for name in WIDTH
        }
        exits, (arrival,) = np.array([template.exit for template in actions.templates]), rows["arrival"]
        buffers = _buffer_rows(rows.pop("awaits"), rows.pop("frees"))
        rows["dependency"] = np.concatenate([rows["dependency"], buffers], axis=1)
        rows["exit"] = (starts + exits[actions.template])[None]
        rows["arrival"] = np.stack([arrival, action[arrival]])
        labels, first = self._label(actions)
        bases = (np.cumsum(lengths) - lengths)[actions.template]
        slots = {"action": np.arange(len(starts)), "microbatch": actions.microbatch, "stage": actions.stage}
        read = {name: (values, action) for name, values in slots.items()}
        read["label"] = labels, row + (first - bases)[action]
        ops = np.concatenate([table.ops for table in tables], axis=1)
        return row, read | {name: (values, row) for name, values in zip(OPS, ops, strict=True)}, rows

    def _waits(self, op: Indices) -> tuple[Indices, Indices]:
        """(Waiting op, op that it waits for): earlier nodes of the same action, and the exits of other actions."""
        owner, exits = self._joined("exit")
        _, slot, source_class, source_action = self._joined("arrival")
        real = source_class >= 0
        sources = exits[np.searchsorted(owner, source_class[real]) + source_action[real]]
        _, waiting, waited_for = self._joined("dependency")
        return op[np.append(waiting, slot[real])], op[np.append(waited_for, sources)]

    def _joined(self, name: str, dtype: type[np.signedinteger[Any]] = np.int32) -> list[Any]:
        """Rows of one name, class after class: the class of every row, then its columns, with slots of the Program."""
        counts, parts = (np.zeros_like(self._begins), [(classes, rows.pop(name)) for classes, rows in self._parts])
        for classes, rows in parts:
            counts[classes + 1] = rows.shape[-1]
        begins = np.cumsum(counts)
        owner = np.repeat(np.arange(len(counts) - 1, dtype=np.int32), counts[1:])
        joined = [np.empty(len(owner), dtype=dtype) for _ in parts[0][1]]
        for classes, rows in parts:
            at = _places(begins[classes, None], rows.shape[-1])
            for position, (column, row) in enumerate(zip(joined, rows, strict=True)):
                column[at] = row + self._begins[classes, None] if position < _NODES[name] else row
        return [owner, *joined]

    def _label(self, actions: ClassActions) -> tuple[Ints, Ints]:
        """(Labels of nodes, where those of every action begin); layers are counted from the first of their stage."""
        count = int(actions.first_layer.max()) + 1
        pairs, which = np.unique(actions.template * count + actions.first_layer, return_inverse=True)
        tables = []
        for number, first in (divmod(pair, count) for pair in pairs.tolist()):
            template = actions.templates[number]
            if (id(template), first) not in self._labelled:
                known, layers = self._labels, [model_layer(node.layer, first) for node in template.nodes]
                numbers = [
                    known.setdefault((node.kind, node.name, layer), len(known))
                    for node, layer in zip(template.nodes, layers, strict=True)
                ]
                self._labelled[id(template), first] = np.array(numbers, dtype=np.int64)
            tables.append(self._labelled[id(template), first])
        lengths = np.array([len(table) for table in tables])
        return np.concatenate(tables), (np.cumsum(lengths) - lengths)[which]

    def _shared(self, actions: ClassActions) -> SharedTables:
        """The tables of the templates of some actions, the same for all that run the same templates."""
        key = tuple(map(id, actions.templates))
        if key not in self._known:
            for template in actions.templates:
                if id(template) not in self._tables:
                    self._tables[id(template)] = template, make_columns(template.nodes, self._streams)
            self._known[key] = SharedTables([self._tables[at][1] for at in key])
        return self._known[key]


def _slots_of(tables: Sequence[TemplateColumns], template: Ints) -> tuple[Ints, Ints]:
    """How many slots every template has, and the first slot of every action, counted from its class's."""
    lengths = np.array([table.ops.shape[1] for table in tables])
    return lengths, np.cumsum(lengths[template]) - lengths[template]


def model_layer(layer: int, first_layer: int) -> int:
    """The layer of the model for a layer of a template, which counts from the stage's first; -1 (no layer) stays."""
    return layer + first_layer if layer >= 0 else layer


def _tiling(tables: Sequence[Ints], template: Ints) -> tuple[Ints, Ints]:
    """(Place among the rows of all tables, action) of the rows of every action's template, action after action."""
    lengths = np.array([table.shape[1] for table in tables], dtype=np.int64)
    counts, bases = lengths[template], (np.cumsum(lengths) - lengths)[template]
    action = np.repeat(np.arange(len(counts)), counts)
    row = np.repeat(bases - np.cumsum(counts) + counts, counts)
    row += np.arange(len(row))
    return row, action


def _tile(tables: Sequence[Ints], template: Ints, starts: Ints, nodes: int) -> Ints:
    """Rows of every action's template, action after action, int64[columns, rows]; ``nodes`` columns become slots."""
    at, action = _tiling(tables, template)
    rows: Ints = np.take(np.concatenate(tables, axis=1), at, axis=1)
    rows[:nodes] += starts[action]
    return rows


def _buffer_rows(waiting: Ints, freeing: Ints) -> Ints:
    """Dependencies (slot, freeing slot) on earlier actions of a class that free a buffer.

    A wait is for the ``back``-th last slot before its action that frees the buffer; without one it does not wait.
    """
    result = [np.zeros((2, 0), dtype=np.int64)]
    for buffer in unique(waiting[2]).tolist():
        free = freeing[0, freeing[1] == buffer]
        slot, start, _, back = waiting[:, waiting[2] == buffer]
        at = np.searchsorted(free, start) - back
        result.append(np.stack([slot[at >= 0], free[at[at >= 0]]]))
    return np.concatenate(result, axis=1)


def _places(begins: Ints, count: int) -> Any:
    """Places of ``count`` rows of each class, which begin at ``begins`` int64[classes, 1]; a slice for one class."""
    first = int(begins[0, 0])
    return slice(first, first + count) if len(begins) == 1 else begins + np.arange(count)


def _merge(slots: Slots, quotient: Quotient) -> tuple[Indices, Flags]:
    """The op of every slot, and which slots ops are made of: of a collective, its slot in the lowest class.

    The k-th use of a group in one of its classes is the same collective as the k-th use in every other.
    """
    owner = np.arange(len(slots.group), dtype=np.int32)
    members = np.array([0 if each.directed else len(each.members) for each in quotient.groups] + [0])
    joint = np.flatnonzero(members[slots.group] > 1)
    group = slots.group[joint].astype(np.int64)
    run = group * quotient.num_classes + slots.class_id[joint]
    order, nth = np.argsort(run, kind="stable"), np.empty_like(joint)
    nth[order] = np.arange(len(joint)) - np.searchsorted(run[order], run[order])
    _, first, call, many = np.unique(
        nth * len(members) + group, return_index=True, return_inverse=True, return_counts=True
    )
    for uneven in first[many != members[group[first]]][:1]:
        groups = quotient.groups[group[uneven]]
        raise AssertionError(f"classes {groups.members} call the {groups.kind} group unequally often")
    owner[joint] = joint[first][call]
    kept = owner == np.arange(len(owner), dtype=np.int32)
    return (np.cumsum(kept, dtype=np.int32) - 1)[owner], kept
