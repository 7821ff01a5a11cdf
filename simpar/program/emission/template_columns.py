"""Templates as columns: what :mod:`simpar.program.emission.emit` repeats over the actions of all classes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeVar

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import BeyondIntegers
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.write_ops import ROWS
from simpar.program.ir.program import MEMORY_CATEGORIES
from simpar.program.structure.templates import BUFFERS, TemplateNode
from simpar.units import Ints

Item = TypeVar("Item")
OPS = ("node", "group", "fixed_ns", "work_bytes", "route", "rate_cap_bytes_per_s")
WIDTH = {"dependency": 2, "stream": 2, "memory": 4, "arrival": 1, "awaits": 4, "frees": 2}
"""By kind of row: how many columns it has."""


@dataclass(frozen=True)
class TemplateColumns:
    """One template in columns.

    ``ops`` int64[6, nodes] has a row for each of ``OPS``. ``rows``, by name, are int64[columns, rows] of what belongs
    to nodes: dependencies, streams, memory and so on. ``uses`` are the nodes of each collective.
    """

    ops: Ints
    rows: Mapping[str, Ints]
    uses: Mapping[CollectiveUse, list[int]]


@dataclass(frozen=True)
class SharedTables:
    """Tables of templates, one behind the other."""

    tables: list[TemplateColumns]

    @cached_property
    def uses(self) -> tuple[list[CollectiveUse], Ints]:
        """Distinct collectives, and for each node, template after template, the index of its collective or -1."""
        uses: dict[CollectiveUse, int] = {}
        result = [np.full(table.ops.shape[1], -1) for table in self.tables]
        for of_node, table in zip(result, self.tables, strict=True):
            for use, at in table.uses.items():
                of_node[at] = uses.setdefault(use, len(uses))
        return list(uses), np.concatenate(result)

    @cached_property
    def columns(self) -> dict[str, Ints]:
        """What C reads of nodes and rows, and where those of every template begin."""
        result = {
            "node_at": _begins([table.ops for table in self.tables]),
            "fixed_ns": np.concatenate([table.ops[OPS.index("fixed_ns")] for table in self.tables]),
        }
        for name in ROWS:
            rows = [table.rows[name] for table in self.tables]
            result |= {name: np.concatenate(rows, axis=1), f"{name}_at": _begins(rows)}
        return result


def _begins(rows: Sequence[Ints]) -> Ints:
    """Where the columns of every part begin, and the end of the last."""
    return np.cumsum([0, *(each.shape[1] for each in rows)])


def make_columns(nodes: Sequence[TemplateNode], streams: Mapping[str, int]) -> TemplateColumns:
    """The columns of a template's nodes; ``streams`` are the numbers of those that the Program has."""
    # of a collective, all but the node come from its group's flow (_FLOWS); -1 names no group and no route
    ops = np.zeros((len(OPS), len(nodes)), dtype=np.int64)
    ops[[OPS.index("group"), OPS.index("route")]] = -1
    ops[OPS.index("node")] = np.arange(len(nodes))
    ops[OPS.index("fixed_ns")] = _columns([0 if node.collective else node.duration_ns for node in nodes])[0]
    waiting, after = _owned([node.after for node in nodes])
    placed, names = _owned([node.streams for node in nodes])
    stream = np.array([streams.get(name, -1) for name in names], dtype=np.int64)
    changing, changes = _owned([node.memory for node in nodes])
    holding, awaits = _owned([node.awaits for node in nodes])
    freeing, frees = _owned([node.frees for node in nodes])
    rows = {
        "dependency": _columns(waiting, after),  # node, node waited for
        "stream": _columns(placed, stream)[:, stream >= 0],
        "memory": _columns(
            changing,
            [each.at_finish for each in changes],
            [round(each.delta_bytes) for each in changes],
            [MEMORY_CATEGORIES.index(each.category) for each in changes],
        ),
        "arrival": _columns(np.flatnonzero([node.arrival for node in nodes])),
        # node, first node of the action, buffer, how many uses back
        "awaits": _columns(
            holding, [0] * len(awaits), [BUFFERS.index(a.buffer) for a in awaits], [a.back for a in awaits]
        ),
        "frees": _columns(freeing, [BUFFERS.index(name) for name in frees]),
    }
    return TemplateColumns(ops=ops, rows=rows, uses=_uses(nodes))


def _uses(nodes: Sequence[TemplateNode]) -> dict[CollectiveUse, list[int]]:
    """The nodes of each collective."""
    same: dict[int, tuple[CollectiveUse, list[int]]] = {}  # layers share the object, which is quicker to tell
    for at, node in enumerate(nodes):
        if node.collective is not None:
            same.setdefault(id(node.collective), (node.collective, []))[1].append(at)
    result: dict[CollectiveUse, list[int]] = {}
    for use, places in same.values():
        result.setdefault(use, []).extend(places)
    return result


def _owned(lists: Sequence[Sequence[Item]]) -> tuple[Ints, list[Item]]:
    """The items of lists, one after the other, and the index of the list of each, int64[items]."""
    lengths = np.array([len(each) for each in lists], dtype=np.int64)
    return np.repeat(np.arange(len(lists)), lengths), [*chain.from_iterable(lists)]


def _columns(*columns: Ints | Sequence[int]) -> Ints:
    """Columns of equal length as rows of one array, int64[columns, n]."""
    try:
        return np.array([np.asarray(column, dtype=np.int64) for column in columns])
    except OverflowError:
        raise BeyondIntegers(
            "times of more than 292 years or tensors of more than 9.2 EB: allowed: fewer tokens a microbatch "
            "(training.seq_len, plan.micro_batch)"
        ) from None
