"""Rows of the space as columns of codes, one per joined axis, and derived quantities on demand."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.plan.choices.mesh import split_order
from simpar.plan.mesh import MeshSizes
from simpar.planner.problem import Problem
from simpar.units import Flags, Ints

Mask = Flags
Codes = NDArray[np.int8 | np.int16 | np.int32]
"""Indices into the domain of an axis, in the narrowest integer type that holds them."""
ROW_BATCH = 2**19
SPARSE = 16
"""Numbers spread over more than SPARSE times their count are made dense by sorting."""


class Rows:
    """Rows of the space under construction: codes of every joined axis, and arrays of values on demand.

    ``left_out`` are values of axes that an export target refused in all rows. If there is a set ``read``, it gets the
    names of the columns that rules read.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.domain: dict[str, tuple[Any, ...]] = {}
        self.code: dict[str, Codes] = {}
        self.count = 1
        self.left_out: dict[str, tuple[Any, ...]] = {}
        self.read: set[str] | None = None
        self._known: dict[str, Any] = {}

    def join(self, name: str, domain: Sequence[Any], keep: Callable[[Rows], Mask] | None = None) -> None:
        """Multiply the rows by the values of another axis and keep what a rule keeps, ROWS_AT_ONCE rows at a time."""
        step, codes = max(ROW_BATCH // max(len(domain), 1), 1), dict[str, list[Codes]]()
        for first in range(0, max(self.count, 1), step):
            part = self if self.count <= step else self.subset(slice(first, first + step))
            part._multiply(name, tuple(domain))
            if keep is not None:
                part.keep_only(part._kept(keep))
            for known, column in part.code.items():
                codes.setdefault(known, []).append(column)
        self.code = {known: np.concatenate(columns) for known, columns in codes.items()}
        self.domain[name], self.count = tuple(domain), len(self.code[name])
        self._known.clear()

    def _kept(self, keep: Callable[[Rows], Mask]) -> Mask:
        """What a rule keeps, which is noted as a reader of the columns that it reads."""
        if self.read is None:
            return keep(self)
        plain = self.code
        self.code = _Noted(plain, self.read)
        mask, self.code = keep(self), plain
        return mask

    def _multiply(self, name: str, domain: tuple[Any, ...]) -> None:
        self._known.clear()
        small = np.int8 if len(domain) <= np.iinfo(np.int8).max else np.int16
        self.code = {known: np.repeat(codes, len(domain)) for known, codes in self.code.items()}
        self.code[name] = np.tile(np.arange(len(domain), dtype=small), self.count)
        self.domain[name] = domain
        self.count *= len(domain)

    def set(self, name: str, which: Ints, value: Any) -> None:
        """Give some rows a value of an axis, which may be new to its domain; rows these were taken from keep theirs."""
        if value not in self.domain[name]:
            self.domain[name] = (*self.domain[name], value)
        codes = self.code[name].astype(np.int32)
        codes[which] = self.domain[name].index(value)
        self.code[name] = codes
        self._known.pop(name, None)

    def keep_only(self, which: Any) -> None:
        """Keep some of the rows, by numbers or by a mask."""
        if isinstance(which, np.ndarray) and which.dtype.kind == "b":
            if which.all():
                return
            which = np.flatnonzero(which)
        self._known.clear()
        self.code = {name: codes[which] for name, codes in self.code.items()}
        self.count = len(next(iter(self.code.values()), ()))

    def __getitem__(self, name: str) -> Any:
        """Values of a numeric axis or of a derived quantity: dp, microbatches, stages, is_pipelined."""
        if name not in self._known:
            derived = name in _DERIVED
            values = _DERIVED[name](self) if derived else np.array(self.domain[name])[self.code[name]]
            self._known[name] = values
        return self._known[name]

    def forget(self) -> Rows:
        """The same rows, without the columns of values that were asked for: of millions of rows they are large."""
        self._known.clear()
        return self

    def at(self, name: str, which: Any) -> Any:
        """Values of some rows, or of one, without computing and keeping the column of all rows."""
        row = Rows(self.problem)
        row.domain = self.domain
        row.code = _Taken(self.code, which)
        return row[name]

    def subset(self, which: Any) -> Rows:
        """A copy with some of the rows."""
        result = Rows(self.problem)
        result.domain, result.code, result.count = dict(self.domain), dict(self.code.items()), self.count
        result.left_out, result.read = dict(self.left_out), self.read
        result.keep_only(which)
        return result

    def number(self, names: Sequence[str], last: Any = 0, most: int = 1) -> Ints:
        """One number per combination of values of those axes that are joined, and of ``last`` below ``most``."""
        code = np.zeros(self.count, dtype=np.int64)
        for name in names:
            if (values := len(self.domain.get(name, ()))) > 1:
                code *= values
                code += self.code[name]
        code *= most
        code += last
        return code

    def one_of(self, name: str, *values: Any) -> Mask:
        """Rows whose value on an axis is one of ``values``."""
        wanted = [index for index, value in enumerate(self.domain[name]) if value in values]
        return np.isin(self.code[name], wanted)


class _Noted(dict[str, Codes]):
    """Codes of which ``read`` gets the names that are read, all of them where all are looked at."""

    def __init__(self, code: dict[str, Codes], read: set[str]) -> None:
        super().__init__(code)
        self.read = read

    def __getitem__(self, name: str) -> Codes:
        self.read.add(name)
        return super().__getitem__(name)

    def items(self) -> ItemsView[str, Codes]:  # type: ignore[override]
        """All names and codes."""
        self.read.update(self)
        return super().items()

    def get(self, name: str, default: Any = None) -> Any:
        """The codes of an axis, if it is joined."""
        if name not in self:
            return default
        return self[name]


class _Taken(dict[str, Codes]):
    """Codes of some rows, each taken from those of all rows when it is read first."""

    def __init__(self, code: dict[str, Codes], which: Any) -> None:
        super().__init__()
        self.all, self.which = code, which

    def __missing__(self, name: str) -> Codes:
        """The codes of an axis."""
        self[name] = self.all[name][self.which]
        return self[name]


def factorize(*columns: Codes | Ints | Flags) -> tuple[Ints, Ints]:
    """The first row of every distinct combination of columns, in ascending order, and each row's index in these."""
    rows = len(columns[0])
    code, size = np.zeros(rows, dtype=np.int64), 1
    for column in columns if rows else ():
        place, count = _places(column)
        if size * count > SPARSE * rows:
            code, size = _dense(code)
        code *= count
        code += place
        size *= count
    if rows and (len(columns) > 1 or columns[0].dtype.itemsize == 1):
        code, size = _dense(code)
    first = np.zeros(size if rows else 0, dtype=np.int64)
    first[code[::-1]] = np.arange(rows)[::-1]  # the last write stays: the first row
    return first, code


def are_among(values: Ints, ascending: Ints) -> Flags:
    """Which values are among others, which ascend: as ``np.isin``, which imports masked arrays and sorts again."""
    at = np.searchsorted(ascending, values)
    return np.asarray((at < len(ascending)) & (np.append(ascending, 0)[at] == values))


def stride(rows: Rows, axis: str) -> Ints:
    """The distance of neighbours along an axis of the mesh, int64[rows]: the product of the faster axes."""
    orders = [split_order(order) for order in rows.domain["order"]]
    result = np.ones(rows.count, dtype=np.int64)
    for other in orders[0]:
        faster = np.array([order.index(other) < order.index(axis) for order in orders])
        if faster.any():
            result *= np.where(faster[rows.code["order"]], rows[other], 1)
    return result


def group_indices(number: Ints) -> Iterator[Ints]:
    """Positions of equal numbers in groups, the lowest number first, each group in ascending order."""
    order, first = np.argsort(number, kind="stable"), 0
    for end in (*(np.flatnonzero(np.diff(number[order])) + 1).tolist(), len(order)):
        if end > first:
            yield order[first:end]
        first = end


def _places(column: Codes | Ints | Flags) -> tuple[Codes | Ints | Flags, int]:
    """Numbers from 0 that keep the order of a column's values, and more than the largest of them.

    Codes stay as they are, though they may skip numbers: of millions of rows, narrow columns cost little.
    """
    if column.dtype == np.bool_:
        return column, 2
    if column.dtype.itemsize == 1:
        least = int(column.min())
        return np.subtract(column, least, dtype=np.int16) if least else column, int(column.max()) - least + 1
    return _dense(np.asarray(column, dtype=np.int64))


def _dense(column: Ints) -> tuple[Ints, int]:
    """Consecutive numbers from 0 that keep the order of a column's values, and how many there are."""
    least, most = int(column.min()), int(column.max())
    if most - least > SPARSE * len(column):
        values, index = np.unique(column, return_inverse=True)
        return index, len(values)
    there = np.zeros(most - least + 1, dtype=bool)
    there[column - least] = True
    place = np.cumsum(there) - 1
    return place[column - least], int(place[-1]) + 1


_DERIVED: dict[str, Callable[[Rows], Any]] = {
    "dp": lambda rows: (
        rows.problem.cluster.world_size // MeshSizes(tp=rows["tp"], cp=rows["cp"], pp=rows["pp"]).replica_ranks
    ),
    "width": lambda rows: MeshSizes(dp=rows["dp"], cp=rows["cp"]).width,
    "expert_tp": lambda rows: _expert_sizes(rows).expert_tensor_parallel,
    "copies": lambda rows: replace(_expert_sizes(rows), dp=rows["dp"], cp=rows["cp"]).expert_copies,
    "microbatches": lambda rows: rows.problem.training.global_batch // np.maximum(rows["dp"] * rows["micro_batch"], 1),
    "stages": lambda rows: rows["pp"] * rows["vpp"],
    "is_pipelined": lambda rows: MeshSizes(pp=rows["pp"]).is_pipelined,
}


def _expert_sizes(rows: Rows) -> MeshSizes:
    """Tensor and expert ranks; etp is 0 where it follows from them."""
    if "etp" not in rows.domain:
        given = np.asarray(rows.problem.base.mesh.etp or 0)
    else:  # rows in which it changes nothing have None
        given = np.array([ranks or 0 for ranks in rows.domain["etp"]])[rows.code["etp"]]
    return MeshSizes(tp=rows["tp"], ep=rows["ep"], etp=given)
