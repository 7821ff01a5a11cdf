"""Build a Program from bulk columns: append arrays, then ``build`` once.

Building op by op in Python costs more than running; every method takes whole columns, and scalars broadcast.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.program.ir.flow import quantise
from simpar.program.ir.program import MEMORY_CATEGORIES, Csr, Label, MemoryTable, OpTable, Program, Routes
from simpar.units import Floats, Ints

_OP_DEFAULTS = {
    "class_id": 0,
    "fixed_ns": 0,
    "work_bytes": 0,
    "route": -1,
    "rate_cap_bytes_per_s": 0,
    "label": 0,
    "microbatch": -1,
    "stage": -1,
}


class ProgramBuilder:
    """Collects columns and joins them once.

    Example:
        >>> build = ProgramBuilder()
        >>> gpu = build.add_class("gpu")
        >>> compute = build.add_stream("compute", gpu)
        >>> build.place(compute, build.add_ops(3, class_id=gpu, fixed_ns=[5, 7, 9]))
        >>> len(build.build())
        3

    """

    def __init__(self) -> None:
        self._num_ops = 0
        self._ops: dict[str, list[Ints]] = {name: [] for name in _OP_DEFAULTS}
        self._waits: list[list[Ints]] = []
        self._placed: list[list[Ints]] = []
        self._memory: list[list[Ints]] = []
        self._routes: list[tuple[Ints, Floats]] = []
        self._classes: list[tuple[str, int]] = []
        self._streams: list[tuple[str, int]] = []
        self._links: list[tuple[str, int]] = []
        self._labels: dict[Label, int] = {}

    def add_class(self, name: str, multiplicity: int = 1) -> int:
        """Add a class that stands for `multiplicity` ranks; return its id."""
        self._classes.append((name, multiplicity))
        return len(self._classes) - 1

    def add_stream(self, name: str, class_id: int) -> int:
        """Add a stream of a class; return its id."""
        self._streams.append((name, class_id))
        return len(self._streams) - 1

    def add_link(self, name: str, capacity_bytes_per_s: float) -> int:
        """Add a link; return its id."""
        self._links.append((name, int(capacity_bytes_per_s)))
        return len(self._links) - 1

    def add_route(self, links: ArrayLike, coefficient: ArrayLike = 1.0, flows: ArrayLike = 1) -> int:
        """Add a route; return its id. `coefficient` is of one flow, `flows` how many are on that link."""
        link = np.atleast_1d(np.asarray(links, np.int64))
        self._routes.append((link, np.broadcast_to(quantise(coefficient) * np.asarray(flows), link.shape)))
        return len(self._routes) - 1

    def label(self, label: Label) -> int:
        """Return the id of a label, adding it when it is new."""
        return self._labels.setdefault(label, len(self._labels))

    def add_ops(self, count: int, **columns: ArrayLike) -> Ints:
        """Add `count` ops with columns as in OpTable and return their ids, int64[count]."""
        unknown = columns.keys() - _OP_DEFAULTS.keys()
        if unknown:
            raise TypeError(f"no such column of ops: {', '.join(sorted(unknown))}")
        for name, column in {**_OP_DEFAULTS, **columns}.items():
            self._ops[name].append(np.broadcast_to(np.asarray(column, np.int64), (count,)))
        self._num_ops += count
        return np.arange(self._num_ops - count, self._num_ops)

    def depend(self, ops: ArrayLike, on: ArrayLike) -> None:
        """Make each of `ops` wait for the matching entry of `on`."""
        self._waits.append(_columns((ops, on)))

    def place(self, streams: ArrayLike, ops: ArrayLike) -> None:
        """Append ops to streams; the order of calls, then of the arrays, is program order."""
        self._placed.append(_columns((streams, ops)))

    def memory(
        self, ops: ArrayLike, delta_bytes: ArrayLike, *, class_id: ArrayLike, at_finish: bool, category: str
    ) -> None:
        """Add changes of memory: `delta_bytes` > 0 allocates, < 0 frees."""
        code = MEMORY_CATEGORIES.index(category)
        self._memory.append(_columns((ops, int(at_finish), class_id, delta_bytes, code)))

    def build(self) -> Program:
        """Return the Program of everything added so far."""
        waiting, waited_for = _stacked(self._waits, 2)
        stream, placed = _stacked(self._placed, 2)
        op, at_finish, class_id, delta, category = _stacked(self._memory, 5)
        (streams, stream_class), (link_names, capacity) = _columns_of(self._streams), _columns_of(self._links)
        classes, multiplicity = _columns_of(self._classes)
        owner = np.repeat(np.arange(len(self._routes)), [len(link) for link, _ in self._routes])
        links = Csr.of(owner, _join([link for link, _ in self._routes]), len(self._routes))
        coefficient = np.concatenate([np.zeros(0), *(each for _, each in self._routes)])
        return Program(
            ops=OpTable(**{name: _join(parts) for name, parts in self._ops.items()}),
            dependencies=Csr.of(waiting, waited_for, self._num_ops),
            streams=Csr.of(stream, placed, len(self._streams)),
            stream_names=streams,
            stream_class=stream_class,
            routes=Routes(links, coefficient, capacity, link_names),
            memory=MemoryTable(op, at_finish.astype(bool), class_id, delta, category),
            labels=tuple(self._labels) or (Label("op", "op"),),
            class_names=classes,
            multiplicity=multiplicity,
        )


def _columns(values: Iterable[ArrayLike]) -> list[Ints]:
    return [column.ravel() for column in np.broadcast_arrays(*(np.asarray(v, np.int64) for v in values))]


def _stacked(rows: Sequence[Sequence[Ints]], width: int) -> list[Ints]:
    return [_join([row[at] for row in rows]) for at in range(width)]


def _join(parts: Sequence[NDArray[Any]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64, copy=False)


def _columns_of(rows: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], Ints]:
    """Names, and what goes with each."""
    return tuple(name for name, _ in rows), np.array([value for _, value in rows], dtype=np.int64)
