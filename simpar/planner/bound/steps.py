"""Bounds of whole steps, row by row: the pipeline's path with data parallelism, optimizer and embedding sums on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any

import numpy as np

from simpar.cost.collectives import host
from simpar.cost.offload import update_bytes
from simpar.cost.optimizers import share_products_s
from simpar.dataclass import dataclass
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.optimizers import OPTIMIZERS
from simpar.planner.bound.batches import RowBatch
from simpar.planner.bound.data_parallel import Configuration, Configurations
from simpar.planner.bound.paths import StagePassTimes, Stages
from simpar.planner.bound.pipelines import Pipelines, SharedNics
from simpar.planner.bound.shapes import PipelineShape, weigh
from simpar.planner.space.table import group_indices
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from simpar.units import NS_PER_S, Flags, Floats, Ints, to_ns, unique

ROUNDING_MARGIN = 0.999
"""Safety factor of bounds by links: the rates of shared links are rounded to whole numbers."""
GATHERS, REDUCES, BOTH = slice(0, 1), slice(1, 2), slice(0, 2)


@dataclass
class StepBounds:
    """Bounds of rows by everything that is known without the schedule's table."""

    pipelines: Pipelines
    configurations: Configurations

    def of(self, rows: Ints) -> Floats:
        """Lower bounds of the steps of some rows in nanoseconds, float64[len(rows)]."""
        result, batch = np.zeros(len(rows)), RowBatch(self, rows)
        for shape, mine in self.pipelines.by_shape(self.pipelines.index[rows]):
            result[mine] = self._of_shape(RowCharge(batch, shape, mine))
        return result

    def _of_shape(self, charge: RowCharge) -> Floats:
        shape, pipelines = charge.shape, self.pipelines.index[charge.rows]
        tail, bounds = (charge.tail(), [charge.linked_ns().max(axis=1), charge.crowded().max(axis=1)])
        for times, alone in self.pipelines.blocks.least_ns(charge.keys, shape):
            path = self.pipelines.path(shape, pipelines, charge.stages(times, alone))
            bounds.append(charge.opening_delay_ns(alone["F"]) + path.behind(tail))
        return np.asarray(np.maximum.reduce(bounds))


@dataclass(frozen=True)
class RowCharge:
    """Arithmetic on the rows ``mine`` of a batch, which share a shape; all arrays are float64[n, ...] nanoseconds."""

    batch: RowBatch
    shape: PipelineShape
    mine: Ints
    _slowed: dict[tuple[str, bool], Floats] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], Floats] = field(default_factory=dict)

    @property
    def bounds(self) -> StepBounds:
        """The bounds that all rows share."""
        return self.batch.bounds

    @property
    def rows(self) -> Ints:
        """Rows of the space."""
        return self.batch.rows[self.mine]

    @property
    def closing(self) -> str:
        """The letter of the passes that complete gradients."""
        return "W" if self.shape.splits else "B"

    @property
    def keys(self) -> Ints:
        """Key of the passes of every row."""
        return self.batch.key[self.mine]

    def by_configuration(self) -> Iterator[tuple[Configuration, Ints]]:
        """Groups rows by configuration."""
        configuration = self.batch.configuration[self.mine]
        for rows in group_indices(configuration):
            yield self.batch.configurations[int(configuration[rows[0]])], rows

    def each(self, name: Any, value: Callable[[Configuration], Any]) -> Any:
        """A function of a configuration, evaluated for every row."""
        return self.batch.each(name, value)[self.batch.configuration[self.mine]]

    def moves(self, name: str, letter: str, *, boundary: bool) -> Floats:
        """A field of Moves for the passes of a letter, [n, kinds]."""
        return self.batch.moves(name, letter, boundary=boundary)[self.batch.configuration[self.mine]]

    @cached_property
    def reshard(self) -> Flags:
        """Whether parameters are freed after every use."""
        return np.asarray(self.each("reshard", lambda one: one.policies["F", True].reshard))

    @cached_property
    def per_unit(self) -> Flags:
        """Whether blocks are gathered and reduced one by one."""
        return np.asarray(self.each("per_unit", lambda one: one.sync.per_unit))

    def pass_times(self, letter: str, *, boundary: bool) -> Floats:
        """Durations of passes by kind, slowed by data-parallel communication beside them, [n, kinds]."""
        return self.batch.pass_times(self.mine, letter, boundary=boundary)

    def slowed_times(self, letter: str, *, boundary: bool) -> Floats:
        """Durations of passes by stage, slowed by data-parallel communication beside them, [n, stages]."""
        known = letter, boundary
        if known not in self._slowed:
            kinds = self.pass_times(letter, boundary=boundary)
            self._slowed[known] = self._with_late(kinds, letter, boundary, self.stages_of_slowest)
        return self._slowed[known]

    def stages(self, times: Mapping[str, Ints], alone: Mapping[str, Ints]) -> Stages:
        """Durations of the passes of every stage, which wait for gathers inside them if parameters are freed.

        By letter, [n, kinds]: a pass takes at least ``times`` of its rank, and at least ``alone`` from start to end.
        """
        usual, ends = (self._passes(times, boundary) for boundary in (False, True))
        return Stages(usual, ends, ends if alone is times else self._passes(alone, True))

    def _passes(self, times: Mapping[str, Ints], boundary: bool) -> StagePassTimes:
        return StagePassTimes.of(
            {one: self.stage_times(times[one], one, boundary=boundary) for one in self.shape.letters}
        )

    def stage_times(self, kinds: Ints | Floats, letter: str, *, boundary: bool) -> Floats:
        """:meth:`healthy_times`, and those of the slowest rank where it has a stage."""
        pipelines = self.bounds.pipelines
        slow = pipelines.slow_stages(self.shape, pipelines.index[self.rows])
        return self._with_late(kinds, letter, boundary, slow)

    @cached_property
    def stages_of_slowest(self) -> Flags | None:
        """Stages that the slowest rank has, bool[n, stages]; None without such a rank."""
        pipelines = self.bounds.pipelines
        return pipelines.stages_of_slowest(self.shape, pipelines.index[self.rows])

    def _with_late(self, kinds: Ints | Floats, letter: str, boundary: bool, slow: Flags | None) -> Floats:
        result = self.healthy_times(kinds, letter, boundary=boundary)
        if slow is None:
            return result
        late = self.bounds.pipelines.least_slow(kinds, letter, self.keys)
        return np.where(slow, self.healthy_times(late, letter, boundary=boundary), result)

    def healthy_times(self, kinds: Ints | Floats, letter: str, *, boundary: bool) -> Floats:
        """Durations of the passes of every stage, [n, stages], of blocks that take ``kinds`` [n, kinds].

        Gathers run at most two blocks ahead, and a block waits for the reduction of the block two before it. So between
        the first and the last block of a pass there run the third and later gathers, all reductions but the last two,
        and everything inside the blocks between.
        """
        distinct, like = self.shape.distinct  # d stages that differ in their blocks; [stages] which of them each is
        times = weigh(kinds, self.shape.by_stage[distinct])  # [n, d]: blocks one after the other, nothing waited for
        gather = self.moves("gather", letter, boundary=boundary) * self.reshard[:, None]
        if not gather.any():
            return times[:, like]
        first, last, later, between, earlier = self.shape.windows[letter == "F"]
        # [n, d, links]: seconds that what must run between the first and the last block takes of each link
        linked = self._inside(letter, between) + self._copied(letter, later, boundary, GATHERS)
        linked += self._copied(letter, earlier, boundary, REDUCES) * self.per_unit[:, None, None]
        used = ROUNDING_MARGIN * NS_PER_S * linked.max(axis=2, initial=0.0)
        # t(stage) >= t(first) + t(last) + max(gathers of blocks 3.., work of the busiest link between them)
        window = np.maximum(weigh(gather, later), used)
        several = later.any(axis=1) & any_nonzero(gather)
        return np.where(several, np.maximum(times, weigh(kinds, first + last) + window), times)[:, like]

    def opening_delay_ns(self, kinds: Ints | Floats) -> Floats:
        """The least delay of a rank's passes behind the pipeline's path, [n], of blocks that take ``kinds`` [n, kinds].

        On a slow first stage less of the gathers is left when its kernels end.
        """
        result, pipelines = self._opening_ns(kinds), self.bounds.pipelines
        if (slow := pipelines.slow_stages(self.shape, pipelines.index[self.rows])) is None:
            return result
        return np.where(slow[:, 0], self._opening_ns(pipelines.least_slow(kinds, "F", self.keys)), result)

    def _opening_ns(self, kinds: Ints | Floats) -> Floats:
        """:meth:`opening_delay_ns` for one speed of the first stage.

        All of them wait for the first gather of the first stage, and no forward of blocks that take ``kinds`` [n,
        kinds] ends before its parameters are there.
        """
        gather = self.moves("gather", "F", boundary=True)
        first = self.shape.pieces[0]
        both = np.stack([weigh(each, self.shape.by_stage[:1])[:, 0] for each in (gather, kinds)])
        # both[0], both[1] [n]: G = gathers of all blocks of stage 0, T = their kernels. The last block follows all
        # gathers, so stage 0 ends no earlier than G + t(last); the path already counts T: delay = G + t(last) - T.
        # Where parameters are freed, stage_times has counted the gathers behind the first one already.
        late = both[0] + kinds[:, first[-1]] - both[1]
        opened = np.maximum(gather[:, first[0]], np.where(self.reshard, 0.0, late))
        return np.asarray(opened * (both[0] > 0))

    @cached_property
    def parameters(self) -> dict[str, Floats]:
        """Parameters of every rank by who holds copies, [n, ranks]; a projection tied to its embedding counts once."""
        blocks, counts = self.bounds.pipelines.blocks, self.shape.of_ranks
        dense, experts = (weigh(each[self.keys], counts) for each in (blocks.dense, blocks.experts))
        dense[:, 0] -= self._meet * blocks.projection[self.keys]
        return {DENSE: dense, EXPERTS: experts}

    @cached_property
    def _meet(self) -> Flags:
        """Whether rank 0 holds a tied table as both embedding and head, [n]."""
        return self.bounds.configurations.meet[self.rows]

    @cached_property
    def late(self) -> Floats:
        """Reductions after the last backward, if none ran beside it, [n, ranks]."""
        return self._behind("late_reductions")

    @cached_property
    def embedding(self) -> Floats:
        """The all-reduce of tied embedding gradients on the first and last rank, [n]."""
        return np.asarray(self.each("embedding", lambda one: one.embedding_ns), dtype=np.float64)

    @cached_property
    def optimizer(self) -> Floats:
        """The update and the gather after it, [n, ranks]."""
        parts = {kind: self.each(("shards", kind), partial(_shards, kind=kind)) for kind in self.parameters}
        # [n, ranks]: parameters whose states a rank updates, P / shards, summed over dense and experts
        share = sum(held / parts[kind][:, None] for kind, held in self.parameters.items())
        share = np.where(self.each("alone", lambda one: one.sync.single_process)[:, None], 0.0, share)
        seconds, which = np.zeros_like(share), self.batch.alike_updates[self.batch.configuration[self.mine]]
        for at in unique(which).tolist():
            sync, mine = self.batch.configurations[at].sync, np.flatnonzero(which == at)
            products_s = self._products_s(sync.job.layout, parts, mine)
            seconds[mine] = to_ns(sync.update_s(share[mine]) + products_s)
        seconds = np.where(share > 0, seconds, 0.0)  # a single process updates on the first device only
        # device and host update their parts at the same time: the longer of the two
        seconds = np.maximum(seconds, share * self.each("on host", self._on_host_ns)[:, None])
        return np.asarray(seconds + self._behind("late_gathers"))

    def _products_s(self, numerics: DecidedNumerics, parts: Mapping[str, Floats], mine: Ints) -> Floats | float:
        """Seconds of the matrix products of a matrix optimizer, [len(mine), ranks]: whole matrices, shared out."""
        if not OPTIMIZERS[numerics.optimizer].by_matrix:
            return 0.0
        counts = self.shape.of_ranks  # [ranks, kinds]: blocks of each kind that a rank holds
        # [n, kinds, (dense, experts), (all matrices of a block, its dearest matrix)]
        table = self.bounds.pipelines.blocks.products_s[numerics.optimizer][self.keys[mine]]
        result = np.zeros((len(mine), len(counts)))
        for expert, kind in enumerate((DENSE, EXPERTS)):
            whole_s, each_s = table[:, :, expert, 0], table[:, None, :, expert, 1]
            dearest_s = (each_s * (counts > 0)).max(axis=2)
            result += share_products_s(weigh(whole_s, counts), dearest_s, parts[kind][mine][:, None])
        return result

    def _on_host_ns(self, configuration: Configuration) -> float:
        """Nanoseconds per parameter that updates of one stage's ranks take of their host's memory bandwidth.

        Neighbours in a node that differ only in tensor or context rank (or in data-parallel rank, if that axis comes
        before the pipeline) update at the same time, unless some ranks are slow.
        """
        job, blocks = configuration.sync.job, self.bounds.pipelines.blocks
        layout = job.layout
        if not layout.host_share or layout.offload_delayed:
            return 0.0
        cluster, mesh = blocks.prices.cluster, layout.mesh
        beside = mesh.tp * mesh.cp * (mesh.replicas if mesh.order.index("dp") < mesh.order.index("pp") else 1)
        if blocks.jobs.problem.perturbation.slow_ranks:
            beside = 1
        alone_s = host.line("host_update", 0, cluster).seconds_per_byte * update_bytes(layout, job.stack)
        at_once = min(beside, cluster.profile.devices_per_node)
        return float(ROUNDING_MARGIN * at_once * layout.host_share * alone_s * NS_PER_S)

    def _behind(self, name: str) -> Floats:
        """Collectives after the last pass of ranks; ``name`` is a method of :class:`Synchronisation`."""
        result = np.zeros((len(self.mine), self.shape.num_ranks))
        for configuration, rows, uses in self._uses_behind(name):
            result[rows] = configuration.occupied_ns(uses)
        return result

    def _drained_behind(self, name: str) -> Floats:
        """Seconds that collectives after the last pass of ranks occupy the links of each, [n, ranks, links]."""
        result = np.zeros((len(self.mine), self.shape.num_ranks, len(self.bounds.pipelines.prices.own)))
        for configuration, rows, uses in self._uses_behind(name):
            result[rows] = configuration.drained_s(uses)
        return result

    def _uses_behind(self, name: str) -> Iterator[tuple[Configuration, Ints, Sequence[CollectiveUse]]]:
        """The collectives after the last pass by configuration, and its rows; sizes are float64[1, ranks]."""
        none = {kind: np.zeros(1) for kind in self.parameters}
        moves = self.each(name, lambda one: bool(getattr(one.sync, name)(none)))
        for configuration, rows in self.by_configuration() if moves.any() else ():
            if moves[rows[0]]:
                held = {kind: each[rows[:1]] for kind, each in self.parameters.items()}
                yield configuration, rows, getattr(configuration.sync, name)(held)

    @cached_property
    def update(self) -> Floats:
        """Everything after a rank's last pass except the collectives that ran beside it, [n, ranks]."""
        result = self.late + self.optimizer
        if self.shape.rank_of_stage[-1]:
            result[:, [0, self.shape.rank_of_stage[-1]]] += self.embedding[:, None]
        return result

    def ended(self, ready: Floats, again: Floats) -> Floats:
        """When the steps of ranks end, [n, ranks].

        ``ready`` is the end of their passes and first reductions, ``again`` that of their second reductions. Tied
        embeddings are summed when both ends of the pipeline are ready.
        """
        # end = max(first reductions (+ sum of embeddings), second reductions) + optimizer; the sum starts when both
        # ends of the pipeline are ready, so both finish at max(ends) + t(sum)
        reduced, last = ready + self.late, self.shape.rank_of_stage[-1]
        tied = np.flatnonzero(self.embedding > 0)
        if last and len(tied):
            ends = np.ix_(tied, np.array([0, last]))
            reduced[ends] = (reduced[ends].max(axis=1) + self.embedding[tied])[:, None]
        return np.maximum(reduced, again) + self.optimizer

    def tail(self) -> Floats:
        """The least time after a rank's last pass, [n, ranks]: the rest of the reductions beside it, and the update.

        At least the last block's reduction is left. Embeddings are summed after the first reduction and beside the
        second.
        """
        first, both = (self.moves(name, self.closing, boundary=True) for name in ("first", "both"))
        # [n, ranks] each: what is left behind the pass that completes the last gradients. With W passes apart this may
        # be any stage of the rank, so the least of them; else it is the backward of the rank's first stage.
        if self.shape.splits:
            placed = list(zip(self.shape.pieces, self.shape.rank_of_stage, strict=True))
            held = [[pieces[0] for pieces, rank in placed if rank == r] for r in range(self.shape.num_ranks)]
            left, later = (np.stack([times[:, each].min(axis=1) for each in held], axis=1) for times in (first, both))
        else:
            opened = [self.shape.pieces[stage][0] for stage in self.shape.first_stage]
            left, later = first[:, opened], both[:, opened]
        return np.maximum(left + self.update, later + self.optimizer)

    def _moved(self, kind: str, counts: Floats) -> Floats:
        """Parameters that data parallelism moves for numbers of blocks that the shape keeps, [n, len(counts)]."""
        blocks, known = self.bounds.pipelines.blocks, (kind, id(counts))
        if known not in self._numbers:
            numbers = weigh((blocks.experts if kind == EXPERTS else blocks.dense)[self.keys], counts)
            if kind == DENSE:
                once = np.where(self._meet & ~self.per_unit, blocks.projection[self.keys], 0.0)
                numbers -= once[:, None] * counts[:, blocks.head]
            self._numbers[known] = numbers
        return self._numbers[known]

    def linked_ns(self) -> Floats:
        """Bounds of the step by each rank's links, [n, ranks], if all ranks' groups lay like those of rank 0.

        A NIC carries what all stages with ranks behind it send. Whichever of them sends the last byte, what that stage
        has left follows: its late reductions and its update, of which embeddings may be summed beside other reductions.
        """
        seconds, beside = self._linked_s, self._beside
        late, again = (beside.total(self._drained_behind(name)) for name in ("late_reductions", "late_gathers"))
        bounds = [
            busiest_ns(seconds) + beside.least(self.late + self.optimizer),
            busiest_ns(seconds + late) + beside.least(self.optimizer),
            busiest_ns(seconds + late + again),
            busiest_ns(seconds[..., :2]) + self.late + self.optimizer,
        ]
        return np.asarray(np.maximum.reduce(bounds))

    def released_ns(self, begun: Floats) -> Floats:
        """Bounds by NICs of what follows the last backwards, which begin at ``begun`` [n, ranks]; [n, ranks].

        A NIC carries none of it before the first stage behind it begins its last backward, and whichever stage sends
        the last byte, what that one has left follows.
        """
        beside, counts = self._beside, self.shape.of_ranks
        closing = (self._copied(one, counts, True, REDUCES) for one in self.shape.letters if one in "BW")
        late, again = (beside.total(self._drained_behind(name)) for name in ("late_reductions", "late_gathers"))
        reduced = beside.total(np.minimum.reduce(list(closing)))
        bounds = [
            busiest_ns(reduced) + beside.least(self.late + self.optimizer),
            busiest_ns(reduced + late) + beside.least(self.optimizer),
            busiest_ns(reduced + late + again),
        ]
        return np.asarray(beside.least(begun) + np.maximum.reduce(bounds))

    @cached_property
    def _beside(self) -> SharedNics:
        """Stages that share NICs."""
        pipelines = self.bounds.pipelines
        return pipelines.shared_nics(self.shape, pipelines.index[self.rows])

    @cached_property
    def _linked_s(self) -> Floats:
        """Seconds that all passes and messages of a step take of each rank's links, [n, ranks, links].

        They are gathers, reductions, messages and the collectives inside passes. If a table has both whole and split
        backwards, the lesser of the two counts.
        """
        pipelines, counts = self.bounds.pipelines, self.shape.of_ranks
        which = pipelines.index[self.rows]
        inside = {letter: self._inside(letter, counts) for letter in self.shape.letters}
        # [n, ranks, links]: seconds per byte x bytes. A link serves its bytes one after the other, whatever overlaps,
        # so the step takes at least their sum: m messages (``drains_s``) and m passes of every letter
        seconds = self._over_passes(lambda one, boundary: inside[one] + self._copied(one, counts, boundary))
        messages = pipelines.microbatches(which)[:, None, None] * pipelines.drains_s(self.shape, which)
        return np.asarray(self._beside.total(seconds) + messages)

    def crowded(self) -> Floats:
        """Time of gathers and reductions on the busiest link of the most crowded rank of each stage, [n, ranks].

        Zero if all ranks are as crowded as rank 0, which :meth:`linked_ns` covers.
        """
        if not self.each("crowded", lambda one: bool(one.crowded)).any():
            return np.zeros((len(self.mine), self.shape.num_ranks))
        return busiest_ns(self._over_passes(self._crowded))

    def _over_passes(self, each: Callable[[str, bool], Floats]) -> Floats:
        """Sums ``each(letter, boundary)``, seconds on links, over a step: 1 boundary pass, m - 1 others."""
        result, several = (
            np.zeros(1),
            self.bounds.pipelines.microbatches(self.bounds.pipelines.index[self.rows]) - 1.0,
        )
        for boundary, times in ((True, np.ones(1)), (False, several)):
            passes = StagePassTimes.of({one: each(one, boundary) for one in self.shape.letters})
            result = result + times[:, None, None] * (passes.forward + passes.backward)
        return result

    def _crowded(self, letter: str, boundary: bool) -> Floats:
        """Seconds that gathers and reductions of a pass take of the links of crowded ranks, [n, ranks, links]."""
        counts = self.shape.of_ranks
        distinct, which = np.unique(self.batch.configuration[self.mine], return_inverse=True)
        each = (self.batch.configurations[at] for at in distinct.tolist())
        held = [one.most_loaded_s(letter, self.shape.num_ranks, boundary=boundary) for one in each]
        slopes = np.stack(held)[which]  # [n, (dense, experts), ranks, links]: seconds per parameter moved
        moved = (self._moved(kind, counts)[..., None] for kind in (DENSE, EXPERTS))
        return np.asarray(sum(size * slopes[:, at] for at, size in enumerate(moved)))

    def _inside(self, letter: str, counts: Floats) -> Floats:
        """Seconds that collectives inside blocks occupy each link of rank 0, [n, len(counts), links]."""
        return weigh(self.batch.inside(letter)[self.mine].swapaxes(1, 2), counts).swapaxes(1, 2)

    def _copied(self, letter: str, counts: Floats, boundary: bool, parts: slice = BOTH) -> Floats:
        """Seconds that gathers and reductions of blocks occupy each link of rank 0, [n, len(counts), links]."""
        name = "slopes", letter, boundary
        slopes = self.each(name, lambda one: one.slopes_s(letter, boundary=boundary))[:, :, parts].sum(axis=2)
        result = np.zeros((len(self.mine), len(counts), slopes.shape[-1]))
        # slopes [n, (dense, experts), links] seconds per parameter; moved [n, len(counts)] parameters
        for at, kind in enumerate((DENSE, EXPERTS)):
            if slopes[:, at].any():
                result += self._moved(kind, counts)[..., None] * slopes[:, None, at]
        return result


def busiest_ns(seconds: Floats) -> Floats:
    """Nanoseconds of the busiest of some links, [n, ranks], from seconds on each, [n, ranks, links]."""
    return np.asarray(ROUNDING_MARGIN * NS_PER_S * seconds.max(axis=2))


def any_nonzero(values: Floats) -> Flags:
    """Rows with any value that is not zero, bool[n, 1]."""
    return np.asarray(values.any(axis=1))[:, None]


def _shards(configuration: Configuration, kind: str) -> float:
    """The number of ranks over which one copy of the optimizer states is sharded."""
    return float(next((one.shards for one in configuration.sync.replicas if one.kind == kind), 1))
