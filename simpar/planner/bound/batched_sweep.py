"""Contention-free sweeps of rows: the schedule's table with the times of every row, then data parallelism.

The result equals what the sweep engine finds for the row's Program without contention, or is a little less where blocks
are gathered or reduced one by one: there only the row's own gathers and reductions lengthen a pass.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.schedules import EVEN_COSTS, looks_at_costs, make_schedule, producer_of
from simpar.plan.schedules.actions import LETTERS, F, Schedule
from simpar.planner.bound.action_tables import Blocked, Pairs, PrecedenceGraph, compute_ends_ns, finishes_ns
from simpar.planner.bound.batches import RowBatch
from simpar.planner.bound.beside_gathers import GatherLoads, ends_beside_gathers_ns
from simpar.planner.bound.data_parallel import BucketCut, Configuration
from simpar.planner.bound.overlapped_passes import OverlappedPasses
from simpar.planner.bound.shapes import PipelineShape, weigh
from simpar.planner.bound.steps import RowCharge, StepBounds, any_nonzero
from simpar.program.resolve.pass_costs import relative_costs
from simpar.units import Floats, Ints, unique

Costs = tuple[float, float, float]
TableKey = tuple[str, int, int, int, Costs]
MOST_ACTIONS = 2**19  # in all tables that are kept, each of some 100 bytes
WHOLE: Blocked = frozenset()  # nothing has to run alone
PART = 5
"""Bounds from the beginning of a table look at one in PART of a step's microbatches."""


@dataclass
class Sweeps:
    """Contention-free steps of rows; the most recently used tables are kept."""

    bounds: StepBounds
    _tables: dict[tuple[TableKey, Blocked], PrecedenceGraph] = field(default_factory=dict)
    _costs: dict[int, Costs] = field(default_factory=dict)

    @cached_property
    def together(self) -> OverlappedPasses:
        """Bounds of pairs of passes that run together."""
        return OverlappedPasses(self.bounds.pipelines.blocks)

    @cached_property
    def _gathers(self) -> GatherLoads:
        """What gathers put on NICs."""
        pipelines = self.bounds.pipelines
        return GatherLoads(pipelines.jobs.problem, pipelines.prices.cluster)

    def costs_of(self, rows: Ints) -> list[Costs]:
        """Mean durations of F, I and W over all blocks, for which the tables of rows are made, as in the simulator.

        They do not depend on how blocks are spread over stages.
        """
        pipelines, columns = self.bounds.pipelines, self.bounds.pipelines.jobs.rows
        names, given = columns.domain["schedule"], columns.problem.base.pipeline.pass_costs
        greedy = np.array([looks_at_costs(name) for name in names])[columns.code["schedule"][rows]]
        waiting = rows[greedy & columns.at("is_pipelined", rows)] if given is None else rows[:0]
        pipes = unique(pipelines.index[waiting])
        pipes = pipes[[pipe not in self._costs for pipe in pipes.tolist()]]
        for shape, mine in pipelines.by_shape(pipes):
            times = pipelines.blocks.plain_ns(pipelines.key[pipes[mine]], "FIW")
            total = np.stack([weigh(times[one], shape.by_stage).sum(axis=1) for one in "FIW"], axis=1)
            self._costs |= dict(zip(pipes[mine].tolist(), map(relative_costs, total), strict=True))
        none = given or EVEN_COSTS
        each = zip(greedy.tolist(), pipelines.index[rows].tolist(), strict=True)
        return [self._costs.get(pipe, none) if looks else EVEN_COSTS for looks, pipe in each]

    def _by_table(self, rows: Ints) -> Iterator[tuple[TableKey, Ints]]:
        """Groups rows by the table that they run: yields its key and positions in ``rows``.

        A table depends on schedule, ranks, microbatches, chunks, and the durations it is made for.
        """
        columns, groups = self.bounds.pipelines.jobs.rows, dict[TableKey, list[int]]()
        names = [columns.domain["schedule"][code] for code in columns.code["schedule"][rows]]
        sizes = (columns.at(axis, rows).tolist() for axis in ("pp", "microbatches", "vpp"))
        for at, key in enumerate(zip(names, *sizes, self.costs_of(rows), strict=True)):
            groups.setdefault(key, []).append(at)
        for key, mine in groups.items():
            yield key, np.array(mine)

    def table_of(self, row: int) -> Schedule:
        """The schedule table that a row runs."""
        ((key, _),) = self._by_table(np.array([row]))
        return self._table(key, WHOLE).schedule

    def of(self, rows: Ints, least_ns: Mapping[int, Floats] | None = None) -> Floats:
        """Lower bounds of the steps of rows in nanoseconds, float64[len(rows)].

        ``least_ns`` says by row when its actions end at the earliest, float64[actions], where that is known.
        """
        result = np.zeros(len(rows))
        for charge, table in self._tabled(rows):
            result[charge.mine] = self._swept(charge, table, _least(charge, table, least_ns or {}))
        return result

    def tables_ns(self, rows: Ints) -> Floats:
        """Nanoseconds of the passes and messages of rows in their tables, without data parallelism.

        Computed once for all rows of a pipeline in which the same passes run together.
        """
        result, index = np.zeros(len(rows)), self.bounds.pipelines.index
        for charge, table in self._tabled(rows):
            pipes, where = np.unique(index[charge.rows], return_inverse=True)
            result[charge.mine] = self._table_ns(charge.shape, pipes, table)[where]
        return result

    def begun_ns(self, rows: Ints) -> Floats:
        """Bounds from the beginning of a table plus the work each rank has left then; 0 if the schedule has none.

        This costs a fraction of the whole table and suffices for most rows, which fall behind from the first
        microbatches on.
        """
        result, pipelines = np.zeros(len(rows)), self.bounds.pipelines
        for (name, ranks, microbatches, _, costs), same in self._by_table(rows):
            beginnings = producer_of(name).beginnings
            if beginnings is None:
                continue
            tables = beginnings(ranks, microbatches, costs, microbatches // PART)
            for shape, mine in pipelines.by_shape(pipelines.index[rows[same]]):
                pipes, where = np.unique(pipelines.index[rows[same[mine]]], return_inverse=True)
                each = [self._begun_ns(shape, pipes, PrecedenceGraph.of(table)) for table in tables]
                result[same[mine]] = np.min(each, axis=0)[where]
        return result

    def _begun_ns(self, shape: PipelineShape, pipes: Ints, table: PrecedenceGraph) -> Floats:
        """:meth:`begun_ns` for pipelines of one shape and the beginning of one table, float64[len(pipes)]."""
        left = np.zeros((len(pipes), shape.num_ranks))
        for letter, took in self._times(shape, pipes).items():
            begun = np.bincount(table.stage[table.code == LETTERS.index(letter)], minlength=len(shape.pieces))
            left += shape.by_rank(took * (table.schedule.num_microbatches - begun))
        ends = np.zeros((shape.num_ranks, len(pipes)))
        np.maximum.at(ends, table.rank, self._finishes_ns(shape, pipes, table))
        return np.asarray((ends.T + left).max(axis=1))

    def _tabled(self, rows: Ints) -> Iterator[tuple[RowCharge, PrecedenceGraph]]:
        """Groups rows by shape and table."""
        pipelines, batch = self.bounds.pipelines, RowBatch(self.bounds, rows)
        for key, same in self._by_table(rows):
            for shape, mine in pipelines.by_shape(pipelines.index[rows[same]]):
                for apart, alike in _by_pairs(RowCharge(batch, shape, same[mine])):
                    yield RowCharge(batch, shape, same[mine[alike]]), self._table(key, apart)

    def _table_ns(self, shape: PipelineShape, pipes: Ints, table: PrecedenceGraph) -> Floats:
        """When the last pass of pipelines of one shape ends in a table, without data parallelism."""
        return np.asarray(self._finishes_ns(shape, pipes, table).max(axis=0))

    def _finishes_ns(self, shape: PipelineShape, pipes: Ints, table: PrecedenceGraph) -> Floats:
        """When every pass of pipelines of one shape ends in a table, float64[actions, n]."""
        taken, pipelines = self._times(shape, pipes), self.bounds.pipelines
        times = {(letter, boundary): took for letter, took in taken.items() for boundary in (False, True)}
        pairs = self._pairs(shape, pipes, table)
        return finishes_ns(table, times, pipelines.hops(shape, pipes), pairs=pairs)

    def _times(self, shape: PipelineShape, pipes: Ints) -> dict[str, Floats]:
        """Durations of the passes of every stage by letter, with nothing beside them, [n, stages]."""
        pipelines = self.bounds.pipelines
        return pipelines.tabled_times(shape, pipes, pipelines.blocks.plain_ns(pipelines.key[pipes], shape.letters))

    def _table(self, key: TableKey, apart: Blocked) -> PrecedenceGraph:
        table = self._tables.pop((key, apart), None)
        if table is None:
            table = self._table(key, WHOLE).split(apart) if apart else PrecedenceGraph.of(_made(*key))
            while len(self._tables) > 1 and sum(len(one.code) for one in self._tables.values()) > MOST_ACTIONS:
                del self._tables[next(iter(self._tables))]
        self._tables[key, apart] = table  # behind all others: the last one used
        return table

    def _swept(self, charge: RowCharge, table: PrecedenceGraph, least: Floats | None) -> Floats:
        shape, pipelines = charge.shape, self.bounds.pipelines
        times = {
            (letter, boundary): charge.slowed_times(letter, boundary=boundary)
            for letter in shape.letters
            for boundary in (False, True)
        }
        first = charge.healthy_times(charge.pass_times("F", boundary=True), "F", boundary=True)
        hops, floors = (pipelines.hops(shape, pipelines.index[charge.rows]), _floors(charge, table, first))
        pairs = self._pairs(shape, pipelines.index[charge.rows], table)
        if (slowed := ends_beside_gathers_ns(charge, self._gathers, table, times)) is not None:
            least = slowed if least is None else np.maximum(least, slowed)
        finish = finishes_ns(table, times, hops, floors, pairs, least)
        ends = _reduced(charge, table, compute_ends_ns(table, finish, hops))
        last = np.stack([finish[table.last_of(rank)] for rank in range(shape.num_ranks)])
        ready, again = np.maximum(last, ends[:, 0]).T, ends[:, 1].T
        linked = np.maximum(charge.linked_ns(), charge.crowded())
        if pipelines.blocks.lockstep.happens:
            linked = np.maximum(linked, charge.released_ns(_closing(table, finish)))
        return np.asarray(np.maximum(charge.ended(ready, again), linked).max(axis=1))

    def _pairs(self, shape: PipelineShape, pipes: Ints, table: PrecedenceGraph) -> Pairs:
        """Durations of the pairs of passes in a table, for some pipelines of one shape."""
        pieces, keys = shape.pieces, self.bounds.pipelines.key[pipes]
        held = {pair: (pieces[pair[0]], pieces[pair[2]], pair[1]) for pair in table.pairs}
        known = {each: self.together.pairs_ns(keys, *each) for each in dict.fromkeys(held.values())}
        result = {pair: known[each] for pair, each in held.items()}
        if (slow := self.bounds.pipelines.stages_of_slowest(shape, pipes)) is None:
            return result
        for pair, each in held.items():  # both stages are on one rank
            if (late := slow[:, pair[0]]).any():
                took = result[pair] = result[pair].copy()
                took[late] = self.together.pairs_ns(keys[late], *each, factor=self.bounds.pipelines.slowness)
        return result


def _made(name: str, ranks: int, microbatches: int, chunks: int, costs: Costs) -> Schedule:
    return make_schedule(name, ranks, microbatches, chunks, costs=costs)


def _by_pairs(charge: RowCharge) -> Iterator[tuple[Blocked, Ints]]:
    """Groups rows by the kinds of passes that must not run together with another pass."""
    if not charge.shape.pairs:
        yield WHOLE, np.arange(len(charge.mine))
        return
    groups: dict[Blocked, list[Ints]] = {}
    for configuration, mine in charge.by_configuration():
        groups.setdefault(configuration.apart, []).append(mine)
    for apart, parts in groups.items():
        yield apart, np.concatenate(parts)


def _least(charge: RowCharge, table: PrecedenceGraph, least_ns: Mapping[int, Floats]) -> Floats | None:
    """When the actions of rows end at the earliest, [actions, n]; None where that is known of none."""
    rows = charge.rows.tolist()
    if not any(row in least_ns for row in rows):
        return None
    none = np.zeros(len(table.code))
    return np.stack([least_ns.get(row, none) for row in rows], axis=1)


def _closing(table: PrecedenceGraph, finish: Floats) -> Floats:
    """When the last backwards of ranks begin at the earliest, [n, ranks]: behind what they wait for."""
    waits = (each[table.closing] for each in (table.before, table.source))
    ends = (np.where(one[:, None] < 0, 0.0, finish[one]) for one in waits)
    return np.asarray(np.maximum(*ends).T)


def _floors(charge: RowCharge, table: PrecedenceGraph, first: Floats) -> Floats | None:
    """The earliest ends of the first forward of each stage, [n, stages]: its gathers queue from time zero."""
    gather = charge.moves("gather", "F", boundary=True)
    if not gather.any():
        return None
    shape, kinds = charge.shape, charge.pass_times("F", boundary=True)
    floors = np.zeros((len(charge.mine), len(shape.pieces)))
    opening = np.flatnonzero(table.boundary & (table.code == F))
    for rank in range(shape.num_ranks):
        queued = np.zeros(len(charge.mine))
        for position, stage in enumerate(table.stage[opening[table.rank[opening] == rank]].tolist()):
            left, latest = first[:, stage].copy(), np.zeros(len(charge.mine))
            if position == 0:
                floors[:, stage] = gather[:, shape.pieces[stage][0]] + first[:, stage]
            for kind in shape.pieces[stage]:
                queued = queued + gather[:, kind]
                latest = np.maximum(latest, queued + left)
                left -= kinds[:, kind]
            floors[:, stage] = np.where(charge.reshard, floors[:, stage], latest)
    return np.where(any_nonzero(gather), floors, 0.0)


def _reduced(charge: RowCharge, table: PrecedenceGraph, finish: Floats) -> Floats:
    """When the first and second reductions beside the backwards of ranks have ended, [ranks, 2, n].

    Reductions do not wait for the messages that backwards send, so ``finish`` is when kernels end.
    """
    ends = np.zeros((charge.shape.num_ranks, 2, len(charge.mine)))
    for configuration, mine in charge.by_configuration():
        for letter in charge.shape.letters[1:]:
            if configuration.policies[letter, True].reduces:
                queue = _Queue(charge, table, configuration, letter, mine)
                for rank, end in enumerate(ends):
                    end[:, mine] = np.maximum(end[:, mine], queue.ends(rank, finish))
    return ends


@dataclass
class _Queue:
    """First and second reductions after the backwards of one letter, under one configuration, for rows ``mine``."""

    charge: RowCharge
    table: PrecedenceGraph
    configuration: Configuration
    letter: str
    mine: Ints
    _known: dict[tuple[int, bool], tuple[BucketCut, Floats]] = field(default_factory=dict)

    @cached_property
    def _kinds(self) -> Floats:
        """The duration of the backward of every kind of block."""
        return self.charge.pass_times(self.letter, boundary=True)[self.mine]

    def _cut(self, stage: int, boundary: bool) -> tuple[BucketCut, Floats]:
        """The buckets of a stage, and the least delay from the end of a backward to that of its reductions, [rows].

        If blocks wait for parameters, the wait may come after any bucket but the last.
        """
        if self.charge.stages_of_slowest is None:
            stage = self.charge.shape.alike[stage]
        if (stage, boundary) not in self._known:
            policy = self.configuration.policies[self.letter, boundary]
            cut = self.configuration.cut(self.charge.shape.pieces[stage], policy)
            times = self.charge.slowed_times(self.letter, boundary=boundary)[self.mine, stage]
            waits = times - weigh(self._kinds, self.charge.shape.by_stage[[stage]])[:, 0]
            hidden = weigh(self._kinds, cut.behind) + np.maximum(waits, 0.0)[:, None] * cut.behind.any(axis=1)
            lead = (cut.rest - hidden).max(axis=1, initial=-np.inf)
            self._known[stage, boundary] = cut, lead
        return self._known[stage, boundary]

    def ends(self, rank: int, finish: Floats) -> Floats:
        """The ends of one rank's queues, [2, rows]: each reduction waits for its bucket and for its turn.

        Of the second reductions only the last one is counted.
        """
        every = self.configuration.policies[self.letter, False].reduces
        actions, keys, key_of = self.table.reducing(rank, LETTERS.index(self.letter), every=every)
        cuts, leads = zip(*(self._cut(*key) for key in keys), strict=True)
        total = np.array([cut.total for cut in cuts])[key_of]
        later = np.cumsum(np.append(total[1:], 0.0)[::-1])[::-1]
        queued = finish[actions[:, None], self.mine] + np.stack(leads)[key_of] + later[:, None]
        ends = np.maximum(queued.max(axis=0), 0.0)
        return np.stack([ends, ends + cuts[int(key_of[-1])].second])
