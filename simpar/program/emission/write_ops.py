"""Templates written out over the actions of all classes in one go: what :meth:`Emitter.finish` does with numpy."""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.native import NativeLibrary, address, empty_columns, int64_column, pointers
from simpar.program.fold.quotient import Quotient
from simpar.program.ir.program import Csr, MemoryTable, OpTable
from simpar.units import Indices, Ints

LIBRARY = NativeLibrary(Path(__file__).with_suffix(".c"), worth=1_000_000)  # slots
_OF_ACTIONS = ("template", "microbatch", "stage", "label_at", "start", "source_class", "source_action")
_OF_NODES = ("node_at", "fixed_ns", "use", "label")
ROWS = ("dependency", "stream", "memory", "arrival")
_COLUMNS = (
    *_OF_ACTIONS, *_OF_NODES, "flow", *(name + suffix for name in ROWS for suffix in ("_at", "")), "exit", "buffer",
)  # fmt: skip
_SIZES = ("actions", "sources", "classes", "dependencies", "changes", "buffers")
_BY_GROUP = ("head", "cursor", "visitor")
_SLOT_COLUMNS = ("class_id", "action", "node", "group", "op")
_OP_COLUMNS = ("class_id", "route", "label", "microbatch", "stage", "fixed_ns", "work_bytes", "rate_cap_bytes_per_s")
_LARGE = _OP_COLUMNS[5:]
"""Columns that 32 bits do not hold."""


class _Alike(ctypes.Structure):
    """The struct ``Alike`` of write_ops.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in _COLUMNS),
        ("streams", ctypes.c_int64),
    )


_COUNTS = ("classes", "streams", "ops", "dependencies", "placed", "changes")
_POINTERS = (
    "alike", "alike_of", "place", "begin", "is_joint", *_BY_GROUP, "calls", "visitors", "next",
    *(f"slot_{name}" for name in _SLOT_COLUMNS), *_OP_COLUMNS, "waits_at", "stream_at", "waits", "placed_op",
    "change_op", "change_class", "at_finish", "delta", "category_of_change",
)  # fmt: skip


class _Output(ctypes.Structure):
    """The struct ``Output`` of write_ops.c."""

    _fields_ = (*((name, ctypes.c_int64) for name in _COUNTS), *((name, ctypes.c_void_p) for name in _POINTERS))


@dataclass(frozen=True)
class AlikeColumns:
    """Classes int64[classes] with the same actions, in columns named as in write_ops.c; rows are [width, rows].

    ``flow`` int64[uses, 5, classes] are the entries of the collectives that nodes use, ``buffer`` int64[2, n] the slots
    that wait for a buffer and those that free it, counted from the first one of the class.
    """

    classes: Ints
    columns: Mapping[str, Ints]

    def counted(self) -> _Alike:
        """The struct; its columns must live as long."""
        c = self.columns
        sizes = (
            len(c["template"]), c["source_action"].shape[1], len(self.classes), c["dependency"].shape[1],
            c["memory"].shape[1], c["buffer"].shape[1],
        )  # fmt: skip
        return _Alike(*sizes, *(address(c[name]) for name in _COLUMNS), c["stream"].shape[1])


def alike_columns(classes: Ints, **columns: Ints) -> AlikeColumns:
    """Columns as C reads them."""
    return AlikeColumns(classes, {name: int64_column(columns[name]) for name in _COLUMNS})


@dataclass(frozen=True)
class Written:
    """Columns over slots by name, int32[num_slots] each, those of ops, and what belongs to ops."""

    slots: Mapping[str, Indices]
    ops: OpTable
    dependencies: Csr
    placed: Csr
    memory: MemoryTable


def write_ops(
    library: ctypes.CDLL, parts: Sequence[AlikeColumns], begins: Ints, streams: int, quotient: Quotient
) -> Written:
    """Everything that is written out, by the loaded LIBRARY.

    ``begins`` int64[classes + 1] are the first slots of classes, each of which has ``streams`` streams. Raises
    AssertionError where classes call a collective of theirs unequally often.
    """
    count, num_classes = int(begins[-1]), quotient.num_classes
    library.place_ops.restype = ctypes.c_int64
    alike = (_Alike * len(parts))(*(part.counted() for part in parts))
    owner, place = np.zeros((2, num_classes), dtype=np.int64)
    for number, part in enumerate(parts):
        owner[part.classes], place[part.classes] = number, np.arange(len(part.classes))
    joint = np.array([0 if each.directed else len(each.members) for each in quotient.groups] + [0], dtype=np.int64)
    joint[joint < 2] = 0
    by_group = {name: np.full(len(joint), -1, dtype=np.int32) for name in _BY_GROUP}
    names = ("next", *(f"slot_{name}" for name in _SLOT_COLUMNS), *_OP_COLUMNS)
    by_slot = empty_columns(count, {name: np.int64 if name in _LARGE else np.int32 for name in names})
    made: dict[str, NDArray[Any]] = {
        "alike_of": owner, "place": place, "begin": int64_column(begins), "is_joint": joint, **by_group,
        "calls": np.zeros_like(joint), "visitors": np.zeros_like(joint), **by_slot,
        "waits_at": np.zeros(count + 1, dtype=np.int64),
        "stream_at": np.zeros(num_classes * streams + 1, dtype=np.int64),
    }  # fmt: skip
    output = _Output(num_classes, streams, alike=ctypes.cast(alike, ctypes.c_void_p))
    _give(output, made)
    uneven = library.place_ops(ctypes.byref(output), ctypes.c_int64(len(quotient.groups)))
    if uneven >= 0:
        group = quotient.groups[uneven]
        raise AssertionError(f"classes {group.members} call the {group.kind} group unequally often")
    made["next"].fill(0)
    changes = output.changes
    items: dict[str, NDArray[Any]] = {
        "waits": np.empty(output.dependencies, dtype=np.int32), "placed_op": np.empty(output.placed, dtype=np.int32),
        **{name: np.empty(changes, dtype=np.int32) for name in ("change_op", "change_class")},
        "at_finish": np.empty(changes, dtype=bool),
        **{name: np.empty(changes, dtype=np.int64) for name in ("delta", "category_of_change")},
    }  # fmt: skip
    _give(output, items)
    filled = np.zeros(num_classes * streams, dtype=np.int64)
    library.link_ops(ctypes.byref(output), *pointers(filled))
    num_ops = output.ops
    return Written(
        slots={name: made[f"slot_{name}"] for name in _SLOT_COLUMNS},
        ops=OpTable(**{name: made[name][:num_ops] for name in _OP_COLUMNS}),
        dependencies=Csr(made["waits_at"][: num_ops + 1], items["waits"]),
        placed=Csr(made["stream_at"], items["placed_op"]),
        memory=MemoryTable(
            items["change_op"], items["at_finish"], items["change_class"], items["delta"], items["category_of_change"]
        ),
    )


def _give(output: _Output, columns: Mapping[str, NDArray[Any]]) -> None:
    for name, column in columns.items():
        setattr(output, name, address(column))
