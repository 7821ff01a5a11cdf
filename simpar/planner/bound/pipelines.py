"""Pipelines: rows without their data parallelism, bounded by kernels alone, then by passes and messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import DEGREES, PIPELINE
from simpar.plan.sync import replicas_are_independent
from simpar.planner.bound.block_costs import BlockCosts
from simpar.planner.bound.lockstep import place_of
from simpar.planner.bound.paths import Hops, Path, StagePassTimes, Stages, path_bound
from simpar.planner.bound.shapes import PipelineShape, PipelineShapes, weigh
from simpar.planner.space.jobs import RowJobs
from simpar.planner.space.table import are_among, factorize, group_indices, stride
from simpar.program.emission.collective_prices import FREE, Price, Prices
from simpar.units import Flags, Floats, Ints, unique


@dataclass(frozen=True)
class Senders:
    """The kind of the last block of every virtual stage but the last, and whether no gradient returns; numbered."""

    number: int
    kinds: tuple[int, ...]
    resting: tuple[bool, ...]


@dataclass(frozen=True)
class SharedNics:
    """Pipeline ranks that share NICs, for some rows: (which of them, bool[n]; which ranks share, bool[ranks, ranks]).

    What the ranks of one stage put on a NIC together is in the price of each (:mod:`simpar.planner.bound.lockstep`).
    """

    sharing: tuple[tuple[Flags, Flags], ...]

    def total(self, seconds: Floats) -> Floats:
        """Seconds on the links of every rank, [n, ranks, links], with those of other stages on the same NIC."""
        result = seconds.copy()
        for mine, beside in self.sharing:
            result[mine, :, 2:] = beside.astype(np.float64) @ seconds[mine, :, 2:]
        return result

    def least(self, times: Floats) -> Floats:
        """The least of the times of all ranks on a NIC, [n, ranks]."""
        result = times.copy()
        for mine, beside in self.sharing:
            result[mine] = np.where(beside, times[mine, None, :], np.inf).min(axis=2)
        return result


@dataclass
class Pipelines:
    """Distinct pipelines of the rows: ``index`` int64[rows] into the columns ``key``, ``shape`` and ``row``."""

    jobs: RowJobs
    blocks: BlockCosts
    shapes: PipelineShapes
    prices: Prices
    index: Ints
    row: Ints
    _moved: dict[int, Ints] = field(default_factory=dict)
    _sent: dict[tuple[int, bool], tuple[Ints, Floats]] = field(default_factory=dict)
    _shared: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _senders: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], tuple[bool, ...]]] = field(default_factory=dict)
    _distinct: dict[tuple[object, ...], int] = field(default_factory=dict)
    _messages: dict[tuple[object, ...], tuple[list[Price], Floats, Ints]] = field(default_factory=dict)

    @staticmethod
    def of(jobs: RowJobs, prices: Prices) -> Pipelines:
        """Pipelines of all rows."""
        blocks = BlockCosts.of(jobs, prices)
        shapes = PipelineShapes.of(jobs, blocks)
        code = blocks.key * len(shapes.row) + shapes.index
        code = code * len(jobs.rows.domain["order"]) + jobs.rows.code["order"]
        row, index = factorize(code)
        return Pipelines(jobs, blocks, shapes, prices, index, row)

    def of_others(self, jobs: RowJobs) -> Pipelines:
        """Pipelines of other rows, of a problem that differs in constraints only: with these prices and passes."""
        result = Pipelines.of(jobs, self.prices)
        result.blocks.known = self.blocks
        return result

    def moved(self, rows: Ints) -> int:
        """Assigns some rows, alike except in overlap, to the pipeline of their new shape; returns that pipeline."""
        self.shapes.moved(rows)
        for name in ("key", "shape", "_strides", "_meshes"):
            self.__dict__.pop(name, None)
        self.row = np.append(self.row, rows[0])
        self.index[rows] = len(self.row) - 1
        self._moved[len(self.row) - 1] = rows
        return len(self.row) - 1

    def members(self, which: Ints) -> Ints:
        """The rows that have some pipelines, ascending."""
        rows, begins = self._placed
        held: list[NDArray[Any]] = [rows[:0]]
        held += [rows[begins[at] : begins[at + 1]] for at in which[which < len(begins) - 1].tolist()]
        if self._moved:
            held += [self._moved[at] for at in which.tolist() if at in self._moved]
        members = np.concatenate(held).astype(np.int64)
        return unique(members[np.isin(self.index[members], which)]) if self._moved else np.sort(members)

    @cached_property
    def _placed(self) -> tuple[NDArray[np.int32], Ints]:
        """Rows by pipeline, int32[rows], and where those of every pipeline begin, int64[pipelines + 1]; once."""
        rows = np.argsort(self.index, kind="stable").astype(np.int32)
        return rows, np.searchsorted(self.index[rows], np.arange(len(self.row) + 1))

    @cached_property
    def key(self) -> Ints:
        """Key of the passes of every pipeline."""
        return self.blocks.key[self.row]

    @cached_property
    def shape(self) -> Ints:
        """Shape of every pipeline."""
        return self.shapes.index[self.row]

    @property
    def meet(self) -> Flags:
        """Rows in which one rank holds both embedding and head, if these share a trained table."""
        graph = self.jobs.problem.graph
        if not graph.tied_embeddings or graph.embedding.has_no_backward:
            return np.zeros(self.jobs.rows.count, dtype=bool)
        each = [self.shapes[at].meets for at in range(len(self.shapes.row))]
        return np.array(each, dtype=bool)[self.shapes.index]

    def microbatches(self, which: Ints) -> Floats:
        """Microbatches of some pipelines."""
        return np.asarray(self.jobs.rows.at("microbatches", self.row[which]), dtype=np.float64)

    def by_shape(self, which: Ints) -> Iterator[tuple[PipelineShape, Ints]]:
        """Some pipelines in groups of equal shape: the shape, and positions in ``which``."""
        shape = self.shape[which]
        for mine in group_indices(shape):
            yield self.shapes[int(shape[mine[0]])], mine

    def kernels_bound_ns(self) -> tuple[Floats, Floats]:
        """Lower bounds of all pipelines by kernels, and the kernels of their least busy rank, in nanoseconds."""
        result, everything = np.zeros(len(self.row)), np.arange(len(self.row))
        least = np.zeros(len(self.row))
        key, by_shape = self.key, list(self.by_shape(everything))
        tables = self.blocks.kernels_ns({letter for shape, _ in by_shape for letter in shape.letters})
        for shape, mine in by_shape:
            times = {letter: tables[letter][key[mine]] for letter in shape.letters}
            passes = self.passes(shape, mine, times)
            path = path_bound(
                shape, Stages(passes, passes, passes), Hops.none(shape, len(mine)), self.microbatches(mine)
            )
            result[mine] = path.behind()
            least[mine] = self._least(shape, mine, times)
        return result, least

    def _least(self, shape: PipelineShape, which: Ints, times: Mapping[str, Ints | Floats]) -> Floats:
        """Nanoseconds of the rank with the least work, at full speed, [n], from durations by letter, [n, kinds]."""
        passes = self.healthy_passes(shape, times)
        each = shape.by_rank(passes.forward + passes.backward)
        return np.asarray(self.microbatches(which) * each.min(axis=1))

    def asked_bound_ns(self) -> Floats:
        """Weighted kernel time (:attr:`BlockCosts.asked_ns`) of the rank with the least, for every pipeline."""
        least = np.zeros(len(self.row))
        for shape, mine in self.by_shape(np.arange(len(self.row))):
            asked = self.blocks.asked_ns(shape.letters)
            times = {letter: table[self.key[mine]] for letter, table in asked.items()}
            least[mine] = self._least(shape, mine, times)
        return least

    def path(self, shape: PipelineShape, which: Ints, stages: Stages) -> Path:
        """Bounds of pipelines of one shape by their passes and messages."""
        return path_bound(shape, stages, self.hops(shape, which), self.microbatches(which))

    def paths(self, shape: PipelineShape, which: Ints) -> Iterator[Path]:
        """Bounds of pipelines of one shape by their passes with nothing beside them, or by each stream of these."""
        for each in self.blocks.least_ns(self.key[which], shape):
            times, alone = (self.passes(shape, which, one) for one in each)
            yield self.path(shape, which, Stages(times, times, alone))

    def healthy_passes(self, shape: PipelineShape, times: Mapping[str, Ints | Floats]) -> StagePassTimes:
        """Passes of the stages of a shape at full speed, from durations by letter, [n, kinds]."""
        return StagePassTimes.of({one: weigh(times[one], shape.by_stage) for one in shape.letters})

    def passes(self, shape: PipelineShape, which: Ints, times: Mapping[str, Ints | Floats]) -> StagePassTimes:
        """Passes of the stages of some pipelines of a shape, from durations by letter, int64[n, kinds]."""
        return StagePassTimes.of(self.stage_times(shape, which, times))

    def stage_times(self, shape: PipelineShape, which: Ints, times: Mapping[str, Ints | Floats]) -> dict[str, Floats]:
        """Durations of the passes of every stage by letter, [n, stages], from those by kind, [n, kinds]."""
        return self._with_late(shape, which, times, self.slow_stages(shape, which))

    def tabled_times(self, shape: PipelineShape, which: Ints, times: Mapping[str, Ints | Floats]) -> dict[str, Floats]:
        """:meth:`stage_times` for tables, whose passes that run together have durations of their own."""
        return self._with_late(shape, which, times, self.stages_of_slowest(shape, which))

    def _with_late(
        self, shape: PipelineShape, which: Ints, times: Mapping[str, Ints | Floats], slow: Flags | None
    ) -> dict[str, Floats]:
        result = {one: weigh(times[one], shape.by_stage) for one in shape.letters}
        if slow is None:
            return result
        late = {one: weigh(self.least_slow(times[one], one, self.key[which]), shape.by_stage) for one in shape.letters}
        return {one: np.where(slow, late[one], took) for one, took in result.items()}

    @cached_property
    def _slowest(self) -> tuple[int, float] | None:
        """The slowest rank and the factor on its kernels; None if there is none, or if no other rank waits for it."""
        problem, slow = self.jobs.problem, self.jobs.problem.perturbation.slow_ranks
        if not slow or "sync" in self.jobs.rows.domain or replicas_are_independent(problem.base):
            return None
        rank = max(slow, key=lambda one: slow[one])
        return rank, slow[rank]

    @property
    def slowness(self) -> float:
        """The factor on the kernels of the slowest rank that others wait for; 1 without one."""
        return self._slowest[1] if self._slowest else 1.0

    def slow_stages(self, shape: PipelineShape, which: Ints) -> Flags | None:
        """:meth:`stages_of_slowest`, for paths on which every rank runs one pass after the other.

        Also None where passes run together: there each stream is bounded by itself (but in sweeps of tables).
        """
        return None if shape.pairs else self.stages_of_slowest(shape, which)

    def stages_of_slowest(self, shape: PipelineShape, which: Ints) -> Flags | None:
        """Stages that the slowest rank has in the pipelines that it is in, bool[n, stages]; None without one."""
        if self._slowest is None:
            return None
        place = self._slowest[0] // self._strides[which] % shape.num_ranks
        return np.asarray(place[:, None] == np.array(shape.rank_of_stage))

    def least_slow(self, kinds: Ints | Floats, letter: str, keys: Ints) -> Floats:
        """Least durations of passes on the slowest rank, [n, kinds], from those at full speed."""
        return np.asarray(np.maximum(kinds, self.blocks.late_ns(keys, letter)))

    def passes_bound_ns(self, which: Ints) -> Floats:
        """Bounds of some pipelines by their passes and messages."""
        result = np.zeros(len(which))
        for shape, mine in self.by_shape(which):
            for path in self.paths(shape, which[mine]):
                result[mine] = np.maximum(result[mine], path.behind())
                if "recompute_early" in self.jobs.rows.domain:
                    busy = path.ends + self._ahead(shape, which[mine])
                    result[mine] = np.maximum(result[mine], busy.max(axis=1))
        return result

    def _ahead(self, shape: PipelineShape, which: Ints) -> Floats:
        """Recomputation ahead of backwards, [n, ranks]: it may hide in bubbles, but each rank does all of it."""
        if shape.pairs:
            return np.zeros((len(which), shape.num_ranks))
        again = weigh(self.blocks.recompute_ns(self.key[which]), shape.of_ranks)
        return np.asarray(self.microbatches(which)[:, None] * again)

    def hops(self, shape: PipelineShape, which: Ints) -> Hops:
        """Messages of pipelines of one shape."""
        times = self._of_messages(shape, which, True, (2, len(shape.pieces) - 1))
        return Hops(times[:, 0], times[:, 1], self.jobs.problem.stack.overlap.p2p_blocks_compute)

    def drains_s(self, shape: PipelineShape, which: Ints) -> Floats:
        """Seconds that the messages of a microbatch occupy each rank's port and NIC, float64[n, ranks, links]."""
        return self._of_messages(shape, which, False, (shape.num_ranks, len(self.prices.own)))

    def _of_messages(self, shape: PipelineShape, which: Ints, timed: bool, size: tuple[int, int]) -> Floats:
        """Times of messages or seconds on links for pipelines of one shape, float64[n, *size], each made once."""
        if len(shape.pieces) == 1:
            return np.zeros((len(which), *size))
        rows, senders = self.jobs.rows, self._senders_of(shape)
        code = self.key[which] * len(rows.domain["order"]) + rows.code["order"][self.row[which]]
        codes, values = self._sent.get((senders.number, timed), (code[:0], np.zeros((0, *size))))
        new = np.flatnonzero(~are_among(code, codes))
        if len(new):
            new = new[np.unique(code[new], return_index=True)[1]]
            pipes, made = which[new], np.empty((len(new), *size))
            for alike in group_indices((self._meshes if self.blocks.lockstep.happens else self._strides)[pipes]):
                made[alike] = self._send(shape, senders, pipes[alike], timed)
            order = np.argsort(codes := np.append(codes, code[new]))
            codes, values = codes[order], np.concatenate([values, made])[order]
            self._sent[senders.number, timed] = codes, values
        return np.asarray(values[np.searchsorted(codes, code)])

    def _senders_of(self, shape: PipelineShape) -> Senders:
        """What the messages of a shape depend on, and its number among the distinct ones."""
        if shape.pieces not in self._senders:
            kinds = self.blocks.kinds
            of_block = {kind.block.name: at for at, kind in enumerate(kinds)}
            senders = tuple(of_block[kinds[pieces[-1]].block.name] for pieces in shape.pieces[:-1])
            resting = tuple(all(kinds[kind].block.has_no_backward for kind in pieces) for pieces in shape.pieces[:-1])
            self._senders[shape.pieces] = senders, resting
        known = shape.rank_of_stage, *self._senders[shape.pieces]
        return Senders(self._distinct.setdefault(known, len(self._distinct)), *known[1:])

    def _send(self, shape: PipelineShape, senders: Senders, pipes: Ints, timed: bool) -> Floats:
        """The messages of pipelines of one shape and stride; where ranks share links, of one mesh.

        Nanoseconds ahead and back if ``timed``, [n, 2, stages - 1], else seconds on links, [n, ranks, links].
        """
        prices, slopes, index = self._priced(shape, int(pipes[0]))
        size = self.blocks.sent_bytes[self.key[pipes][:, None], np.array(senders.kinds)]
        rests = list(senders.resting)  # nothing goes back to where nothing is trained
        if timed:
            table = np.stack([price.time_ns(size) for price in prices], axis=1)
            times = np.take_along_axis(table, index[None], axis=1).astype(np.float64)
            times[:, 1, rests] = 0.0
            return times
        took = size[:, None, :, None] * slopes[index]  # [n, 2, stages - 1, links]
        took[:, 1, rests] = 0.0
        drains, stages = np.zeros((len(pipes), shape.num_ranks, took.shape[-1])), len(shape.pieces)
        for way, ends in enumerate(((0, 1), (1, 0))):
            for at, first in enumerate(ends):  # outgoing links: the sender's; incoming: the receiver's
                moved = np.zeros((len(pipes), stages, took.shape[-1] // 2))
                moved[:, first : first + stages - 1] = took[:, way, :, at::2]
                for held in shape.stages_of.T:
                    drains[..., at::2] += moved[:, held]
        drains[..., 2:] = self._sharing(int(self._strides[pipes[0]]), shape.num_ranks) @ drains[..., 2:]
        return drains

    def shared_nics(self, shape: PipelineShape, which: Ints) -> SharedNics:
        """Which stages of pipelines of a shape share NICs; none, where what ranks put on them together is not known."""
        strides = self._strides[which]
        if not self.blocks.lockstep.happens:
            return SharedNics(())
        pairs = ((strides == stride, self._sharing(stride, shape.num_ranks) > 0) for stride in unique(strides).tolist())
        return SharedNics(tuple((mine, beside) for mine, beside in pairs if beside.sum() > shape.num_ranks))

    def _sharing(self, stride: int, num_ranks: int) -> Floats:
        """How many ranks of every pipeline rank share each one's NIC, which serves their bytes one after the other.

        float64[num_ranks, num_ranks]. Ranks that are neighbours in a pipeline are ``stride`` apart; pipelines begin at
        the ranks below it, and again behind each ``block`` of ranks. They send alike where both divide domains or are
        divided by them: then the same stages have neighbours in other domains. Elsewhere, and where nodes differ, each
        rank's own messages count alone.
        """
        if (stride, num_ranks) not in self._shared:
            cluster, block = self.prices.cluster, stride * num_ranks
            domain, result = cluster.domain_size, np.eye(num_ranks)
            aligned = all(size % domain == 0 or domain % size == 0 for size in (stride, block))
            if aligned and not cluster.is_mixed and cluster.world_size % block == 0:
                first = (np.arange(0, cluster.world_size, block)[:, None] + np.arange(stride)).ravel()
                ranks = np.arange(num_ranks)[:, None] * stride + first  # [num_ranks, pipelines]
                nic = cluster.nic_tx(ranks.ravel()).reshape(ranks.shape)  # what sends for a rank receives for it
                result = np.array([(nic == own).sum(axis=1) for own in nic[:, 0]], dtype=np.float64)
            self._shared[stride, num_ranks] = result
        return self._shared[stride, num_ranks]

    def _priced(self, shape: PipelineShape, pipe: int) -> tuple[list[Price], Floats, Ints]:
        """Distinct prices of a pipeline's messages, seconds per byte of port and NIC, and each message's price."""
        ranks = np.arange(shape.num_ranks) * self._strides[pipe]
        lockstep = self.blocks.lockstep
        mesh = lockstep.mesh_of(int(self.row[pipe])) if lockstep.happens else None
        cached = shape.rank_of_stage, tuple(ranks[:2].tolist()), mesh and place_of(mesh)
        if cached not in self._messages:
            at = ranks[np.array(shape.rank_of_stage)]
            pairs = np.concatenate([np.stack([at[:-1], at[1:]], 1), np.stack([at[1:], at[:-1]], 1)])
            cluster = self.prices.cluster
            moved = pairs - pairs.min(axis=1, keepdims=True) // cluster.domain_size * cluster.domain_size
            alike = pairs if mesh else moved
            _, first, index = np.unique(alike, axis=0, return_index=True, return_inverse=True)
            prices = [self.prices.of("send", pair) if pair[0] != pair[1] else FREE for pair in pairs[first]]
            placed = pairs[first] if cluster.leaves_bind else moved[first]
            slopes = [price.slopes_s(self.prices.ends(*pair)) for price, pair in zip(prices, placed, strict=True)]
            if mesh:
                beside = zip(prices, pairs[first], strict=True)
                prices = [lockstep.message(price, pair, mesh) for price, pair in beside]
            self._messages[cached] = prices, np.array(slopes), index.reshape(2, -1)
        return self._messages[cached]

    @cached_property
    def _strides(self) -> Ints:
        """The distance between neighbouring ranks, int64[pipelines]."""
        return stride(self.jobs.rows.subset(self.row), PIPELINE)

    @cached_property
    def _meshes(self) -> Ints:
        """A number for the mesh of every pipeline."""
        return self.jobs.rows.subset(self.row).number((*DEGREES, "etp", "order"))
