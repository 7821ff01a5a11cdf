"""Templates as columns: what :mod:`simpar.program.emission.emit` repeats over the actions of all classes."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import BeyondIntegers
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.write_ops import ROWS
from simpar.program.ir.program import MEMORY_CATEGORIES
from simpar.program.structure.templates import BUFFERS, TemplateNode
from simpar.units import Ints

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
    uses: dict[CollectiveUse, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.collective:
            uses.setdefault(node.collective, []).append(i)
    each = list(enumerate(nodes))
    # of a collective, all but the node come from its group's flow (_FLOWS); -1 names no group and no route
    ops = np.zeros((len(OPS), len(nodes)), dtype=np.int64)
    ops[[OPS.index("group"), OPS.index("route")]] = -1
    ops[OPS.index("node")] = np.arange(len(nodes))
    ops[OPS.index("fixed_ns")] = _rows([(0 if node.collective else node.duration_ns,) for node in nodes], 1)
    changes = [(i, change) for i, node in each for change in node.memory]
    # by kind of row: (node, node waited for), (node, stream), (node, at its finish?, bytes, category), (node,),
    # (node, first node of the action, buffer, how many uses back), (node, buffer)
    rows: dict[str, list[tuple[int, ...]]] = {
        "dependency": [(i, after) for i, node in each for after in node.after],
        "stream": [(i, streams[name]) for i, node in each for name in node.streams if name in streams],
        "memory": [
            (i, int(c.at_finish), round(c.delta_bytes), MEMORY_CATEGORIES.index(c.category)) for i, c in changes
        ],
        "arrival": [(i,) for i, node in each if node.arrival],
        "awaits": [(i, 0, BUFFERS.index(a.buffer), a.back) for i, node in each for a in node.awaits],
        "frees": [(i, BUFFERS.index(name)) for i, node in each for name in node.frees],
    }
    return TemplateColumns(ops=ops, rows={name: _rows(some, WIDTH[name]) for name, some in rows.items()}, uses=uses)


def _rows(values: Sequence[tuple[int, ...]], width: int) -> Ints:
    """Rows as columns: int64[width, rows]."""
    try:
        flat = np.fromiter(chain.from_iterable(values), np.int64, len(values) * width)
    except OverflowError:
        raise BeyondIntegers(
            "times of more than 292 years or tensors of more than 9.2 EB: allowed: fewer tokens a microbatch "
            "(training.seq_len, plan.micro_batch)"
        ) from None
    return np.ascontiguousarray(flat.reshape(-1, width).T)
