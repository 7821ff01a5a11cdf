"""Rows swept without contention: the schedule's table with the times of every row, then data parallelism behind it.

The result is what the sweep engine finds for the Program of the row without contention, or a little less where blocks
are gathered or reduced one by one: there a pass takes at least what its own gathers and reductions ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import LETTERS, F
from simpar.search.rowbound import Chunk, RowBounds, RowCharge
from simpar.search.shapes import weigh
from simpar.search.syncs import Scheme, buckets
from simpar.search.tables import Table, finishes_ns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
TableKey = tuple[str, int, int, int]


@dataclass
class Sweeps:
    """Steps of rows without contention; the tables of the last few are kept."""

    bounds: RowBounds
    _tables: dict[TableKey, Table] = field(default_factory=dict)

    def table_key(self, row: int) -> TableKey:
        """What the table of a row depends on: schedule, ranks, microbatches, chunks."""
        rows = self.bounds.pipes.jobs.rows
        name = str(rows.domain["schedule"][rows.code["schedule"][row]])
        return name, int(rows["pp"][row]), int(rows["microbatches"][row]), int(rows["vpp"][row])

    def of(self, rows: Ints) -> Floats:
        """Nanoseconds that the steps of rows with one table take at least."""
        key = self.table_key(int(rows[0]))
        if key not in self._tables:
            self._tables[key] = Table.of(make_schedule(*key))
        found, pipes, chunk = np.zeros(len(rows)), self.bounds.pipes, Chunk(self.bounds, rows)
        for shape, mine in pipes.by_shape(pipes.index[rows]):
            found[mine] = self._of_shape(RowCharge(chunk, shape, mine), self._tables[key])
        return found

    def _of_shape(self, charge: RowCharge, table: Table) -> Floats:
        shape, rows = charge.shape, charge.rows
        times = {
            (letter, boundary): charge.stage_times(letter, boundary=boundary)
            for letter in shape.letters
            for boundary in (False, True)
        }
        hops = self.bounds.pipes.hops(shape, self.bounds.pipes.index[rows])
        finish = finishes_ns(table, times, hops, _floors(charge, table, times["F", True]))
        ends = np.stack([_reduced(charge, table, finish, rank) for rank in range(shape.num_ranks)])
        last = np.stack([finish[table.last_of(rank)] for rank in range(shape.num_ranks)])
        ready, again = np.maximum(last, ends[:, 0]).T, ends[:, 1].T
        streams = charge.charge().streams(self.bounds.pipes.microbatches(self.bounds.pipes.index[rows]))
        return np.asarray(np.maximum(charge.ended(ready, again), streams).max(axis=1))


def _floors(charge: RowCharge, table: Table, first: Floats) -> Floats | None:
    """When at the earliest the first forward of each stage ends, [n, stages]: its gathers queue from time zero."""
    gathers = charge.flag("gather", "F", boundary=True)
    if not gathers.any():
        return None
    shape, kinds = charge.shape, charge.passes("F", boundary=True).astype(np.float64)
    floors = np.zeros((len(charge.rows), len(shape.pieces)))
    opening = np.flatnonzero(table.boundary & (table.code == F))
    for rank in range(shape.num_ranks):
        queued = np.zeros(len(charge.rows))
        for stage in table.stage[opening[table.rank[opening] == rank]].tolist():
            left, latest = first[:, stage].copy(), np.zeros(len(charge.rows))
            if not queued.any():
                floors[:, stage] = charge.gather[:, shape.pieces[stage][0]] + first[:, stage]
            for kind in shape.pieces[stage]:
                queued = queued + charge.gather[:, kind]
                latest = np.maximum(latest, queued + left)
                left -= kinds[:, kind]
            floors[:, stage] = np.where(charge.reshard, floors[:, stage], latest)
    return np.where(gathers[:, None], floors, 0.0)


def _reduced(charge: RowCharge, table: Table, finish: Floats, rank: int) -> Floats:
    """When the first and the second reductions beside the backwards of a rank have ended, [2, n]."""
    ends = np.zeros((2, len(charge.rows)))
    for scheme, mine in charge.by_scheme():
        for letter in charge.shape.letters[1:]:
            if scheme.policies[letter, True].reduce:
                queue = _queue(charge, table, finish, (scheme, rank, letter), mine)
                ends[:, mine] = np.maximum(ends[:, mine], queue)
    return ends


def _queue(
    charge: RowCharge, table: Table, finish: Floats, which: tuple[Scheme, int, str], mine: Ints
) -> Floats:
    """The ends of one rank's queues of reductions under one scheme, [2, n]: each waits for its bucket and its turn.

    Of a second reduction only the last one is counted.
    """
    scheme, rank, letter = which
    every = scheme.policies[letter, False].reduce
    chosen = (table.rank == rank) & (table.code == LETTERS.index(letter)) & (table.boundary | every)
    actions = np.flatnonzero(chosen)
    kinds = charge.passes(letter, boundary=True)[mine].astype(np.float64)
    lead, total, again = {}, {}, 0.0
    for stage in np.unique(table.stage[actions]).tolist():
        cut = buckets(scheme, charge.shape.pieces[stage], scheme.policies[letter, True])
        took = scheme.reduction_ns(cut.size_bytes, cut.count)
        rest = np.cumsum(took[0][::-1])[::-1]
        lead[stage] = (rest[None, :] - weigh(kinds, cut.behind)).max(axis=1, initial=-np.inf)
        total[stage] = float(took[0].sum())
        if stage == table.stage[actions[-1]] and len(took) > 1:
            again = float(took[1][-1])
    stages = table.stage[actions].tolist()
    behind = np.cumsum([0.0, *(total[stage] for stage in stages[:0:-1])])[::-1]
    ends = np.zeros(len(mine))
    for action, stage, wait in zip(actions.tolist(), stages, behind.tolist(), strict=True):
        ends = np.maximum(ends, finish[action, mine] + lead[stage] + wait)
    return np.stack([ends, ends + again])
