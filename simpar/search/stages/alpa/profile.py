"""What every range of blocks takes on every submesh: the table that the inter-operator pass reads.

For a size of microbatch, every logical mesh is solved once for several prices of memory; a range's time and memory are
sums over its blocks, so identical layers cost nothing more. An option is one solution with one recompute choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.cost.activations import block_activations
from simpar.cost.collectives import collective_time_s
from simpar.cost.memory import overhead_bytes
from simpar.cost.sharded import local_time
from simpar.cost.stack import gather_bytes
from simpar.errors import Infeasible
from simpar.hardware.cluster import Cluster
from simpar.models.graph import Block, saved_tensors
from simpar.plan.placement import sharding
from simpar.plan.sharding import RankDims
from simpar.plan.stages import BlockSharding, StagePlan
from simpar.program.blocks.rank_view import Job
from simpar.program.emission.collective_prices import Added
from simpar.program.structure.stage_memory import block_weights, gathered_stream_bytes, stage_dims
from simpar.program.structure.stage_view import StageBlock, StageView
from simpar.program.structure.templates import LOOK_AHEAD
from simpar.search.stages.alpa.build import Chain, build_graph, shardings
from simpar.search.stages.alpa.choices import METRICS, ChoiceGraph, Weighting
from simpar.search.stages.alpa.eliminate import TooWide, eliminate
from simpar.search.stages.alpa.intra_op import solve
from simpar.search.stages.alpa.meshes import logical_meshes
from simpar.search.stages.alpa.pricing import Pricer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PRICES = (0.0, 0.03, 0.2, 1.0, 10.0)
"""Prices of memory to solve for, relative to (seconds of the fastest solution) / (its bytes)."""
TYPICAL_IN_FLIGHT = 4
OVERLAP = 0.8
"""Share of a stage's passes that hides its synchronisation, where the stack overlaps them."""
_FORWARD, _BACKWARD, _SYNC, _UPDATE, _STATIC, _SAVED = range(len(METRICS))


@dataclass(frozen=True)
class Option:
    """One way to run every kind of block on a mesh.

    ``metrics`` float64[METRICS, kinds] with the recompute choice applied; ``workspace`` bytes float64[kinds].
    """

    mesh: tuple[int, ...]
    recompute: str
    metrics: Floats
    workspace: Floats
    sharding: dict[str, BlockSharding]
    communicators: int


@dataclass
class Profile:
    """Options of every submesh size for one size of microbatch.

    ``job`` has that microbatch; ``limit_bytes`` is what a rank may need; ``cluster`` is in its state of training.
    """

    job: Job
    cluster: Cluster
    chain: Chain
    limit_bytes: float
    recompute: Sequence[str] = ("none", "selective", "full")
    options: dict[int, list[Option]] = field(default_factory=dict)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step."""
        return self.job.training.global_batch // self.job.plan.micro_batch

    def add(self, size: int) -> None:
        """Solve all logical meshes of a submesh size."""
        found: list[Option] = []
        for mesh in logical_meshes(size, self.cluster):
            try:
                found += self._solve(mesh)
            except Infeasible:
                continue  # some operator has no legal role on this shape
        self.options[size] = found

    def _solve(self, mesh: tuple[int, ...]) -> list[Option]:
        graph = build_graph(self.job, Pricer(self.cluster, mesh, Added.of(self.job.stack)), self.chain)
        free = Weighting(1.0 / self.num_microbatches, TYPICAL_IN_FLIGHT)
        first = _assignments(graph, [free])[0]
        if not np.isfinite(graph.value(first, free)):
            return []
        unit = graph.value(first, free) / graph.memory(first, free)
        priced = [replace(free, price=price * unit) for price in PRICES[1:]]
        distinct = dict.fromkeys([first, *_assignments(graph, priced)])
        return self._options(graph, list(distinct))

    def _options(self, graph: ChoiceGraph, assignments: Sequence[tuple[int, ...]]) -> list[Option]:
        """One option per assignment and recompute choice that saves memory."""
        found: list[Option] = []
        for assignment in assignments:
            sharding = shardings(graph, self.chain, assignment)
            each = graph.metrics(assignment)
            metrics = np.stack([each[name] for name in self.chain.kinds], axis=1)
            stage = StagePlan(layers=0, first_device=0, mesh=graph.mesh, sharding=sharding)
            view = StageView(self.job, stage, 0)
            gathered, communicators = self._gathered(view)
            for recompute, saved, workspace, again in self._measure(view):
                own = metrics.copy()
                own[_BACKWARD] += own[_FORWARD] * self._recomputed if recompute == "full" else again
                own[_SAVED] = saved
                option = Option(graph.mesh, recompute, own, workspace + gathered, sharding, communicators)
                found.append(option)
        return found

    def _gathered(self, view: StageView) -> tuple[Floats, int]:
        """Bytes of buffers by kind (gathered weights of two blocks, gathered rows of streams), and communicators."""
        buffers, found = self.job.stack.memory.gather_buffers, []
        groups: set[tuple[int, ...]] = set()
        for block in self.chain.kinds.values():
            own = view.block(block)
            weights = block_weights(own)
            size = LOOK_AHEAD * sum(weights.gathered.values()) * gather_bytes(self.job.plan)
            found.append(size + buffers * gathered_stream_bytes(own))
            groups |= {axes for axes in (*weights.kept, *weights.gathered) if axes}
        return np.array(found), sum(size > 1 for size in view.mesh) + len(groups) + 1

    def _measure(self, view: StageView) -> list[tuple[str, Floats, Floats, Floats]]:
        """Per recompute choice: (its name, saved bytes, workspace bytes, seconds run again), by kind."""
        found: list[tuple[str, Floats, Floats, Floats]] = []
        ends: dict[str, tuple[float, float]] = {}
        dims = {name: stage_dims(view.block(block)) for name, block in self.chain.kinds.items()}
        for recompute in self.recompute:
            held = []
            for block, layer in zip(self.chain.kinds.values(), self._recomputed.tolist(), strict=True):
                if layer or block.name not in ends:
                    ends[block.name] = self._held(block, dims[block.name], recompute)
                held.append(ends[block.name])
            saved, workspace = (np.array(part) for part in zip(*held, strict=True))
            if recompute == "selective" and found and saved.sum() > 0.98 * found[0][1].sum():
                continue  # nothing to gain where attention keeps no scores
            again = self._selective(view) if recompute == "selective" else np.zeros(len(saved))
            found.append((recompute, saved, workspace, again))
        return found

    @cached_property
    def _recomputed(self) -> Floats:
        """1 for kinds of layers, 0 for embedding and head, which keep everything."""
        graph = self.job.graph
        ends = (graph.embedding.name, graph.head.name)
        return np.array([float(name not in ends) for name in self.chain.kinds])

    def _held(self, block: Block, dims: RankDims, recompute: str) -> tuple[float, float]:
        """Bytes of one block and microbatch: (saved for backward, what comes on top while a pass runs)."""
        graph, job = self.job.graph, self.job
        own = "none" if block.name in (graph.embedding.name, graph.head.name) else recompute
        held = block_activations(block, dims, job.stack, job.plan.numerics, own)
        backward = float(held.recomputed_bytes) + float(held.backward_workspace_bytes)
        return float(held.saved_bytes), max(float(held.forward_workspace_bytes), backward)

    def room(self, stage: StagePlan, in_flight: int) -> tuple[float, float]:
        """(in-flight weight, bytes) of an integer program over the chain as one stage.

        The program adds what operators save one by one; the weight scales that to what blocks keep as measured on the
        stage's present sharding, and the bytes leave out what workspaces and the allocator's gaps need.
        """
        view, stack = StageView(self.job, stage, 0), self.job.stack
        held = {
            name: self._held(block, stage_dims(view.block(block)), stage.recompute)
            for name, block in self.chain.kinds.items()
        }
        added = {name: saved_bytes(view.block(block)) for name, block in self.chain.kinds.items()}
        counts = self.chain.counts
        measured = sum(counts[name] * saved for name, (saved, _) in held.items())
        listed = sum(counts[name] * size for name, size in added.items())
        buffers, communicators = self._gathered(view)
        habits = stack.memory.allocator
        gaps = float(1.0 + habits.least_gaps(self.num_microbatches > 1))
        outside = overhead_bytes(communicators, stack, self.cluster) + habits.workspace_bytes
        workspace = max(each for _, each in held.values()) + float(buffers.max())
        room = self.limit_bytes - outside - gaps * workspace
        return gaps * in_flight * measured / max(listed, 1.0), room

    def _selective(self, view: StageView) -> Floats:
        """Seconds of the attention that selective recompute runs again, by kind."""
        found = []
        for block, layer in zip(self.chain.kinds.values(), self._recomputed, strict=True):
            times = [view_time(view, block, op.name) for op in block.operators if op.kind == "attention"]
            found.append(layer * sum(times))
        return np.array(found)

    @cached_property
    def _kind_of_block(self) -> Ints:
        number = {name: index for index, name in enumerate(self.chain.kinds)}
        return np.array([number[block.name] for block in self.chain.blocks], dtype=np.int64)

    def ranges(self, size: int) -> tuple[Floats, Ints]:
        """(seconds, most microbatches in flight) of every range under every option: [options, K + 1, K + 1].

        Seconds are infinite and in-flight 0 where a range is empty.
        """
        options = self.options[size]
        blocks = len(self.chain.blocks)
        if not options:
            return np.full((0, blocks + 1, blocks + 1), np.inf), np.zeros(
                (0, blocks + 1, blocks + 1), np.int64
            )
        every = np.stack([option.metrics for option in options])[:, :, self._kind_of_block]
        sums = np.concatenate([np.zeros((*every.shape[:2], 1)), np.cumsum(every, axis=2)], axis=2)
        total = np.moveaxis(sums[:, :, None, :] - sums[:, :, :, None], 1, 0)
        passes = total[_FORWARD] + total[_BACKWARD]
        data = self.job.plan.data_parallel
        hidden = OVERLAP * passes if data.overlap_grad_reduce and data.overlap_param_gather else 0.0
        step = np.maximum(total[_SYNC] - hidden, 0.0) + total[_UPDATE]
        seconds = passes + step / self.num_microbatches
        workspace = np.stack([option.workspace for option in options])[:, self._kind_of_block]
        overhead = [overhead_bytes(option.communicators, self.job.stack, self.cluster) for option in options]
        static = total[_STATIC] + np.array(overhead)[:, None, None]
        flying = self._in_flight(static, total[_SAVED], _range_maximum(workspace))
        empty = np.tril(np.ones((blocks + 1, blocks + 1), dtype=bool))
        seconds[:, empty] = np.inf
        flying[:, empty] = 0
        return seconds, flying

    def _in_flight(self, static: Floats, saved: Floats, workspace: Floats) -> Ints:
        """How many microbatches' activations a rank can keep; ``static`` with what lies outside the allocator."""
        stack = self.job.stack
        habits = stack.memory.allocator
        gaps = float(1.0 + habits.least_gaps(self.num_microbatches > 1))
        moving = (self.limit_bytes - static - habits.workspace_bytes) / gaps - workspace
        return np.floor(np.clip(moving / np.maximum(saved, 1.0), 0.0, 2.0**31)).astype(np.int64)

    def work(self) -> Floats:
        """Device-seconds that a microbatch takes at least on every block: float64[K]."""
        each = [
            size * (option.metrics[_FORWARD] + option.metrics[_BACKWARD])
            for size, options in self.options.items()
            for option in options
        ]
        return np.asarray(np.min(each, axis=0)[self._kind_of_block])

    def times(self, sizes: Sequence[int], max_stages: int) -> Floats:
        """Best seconds of every range by the number of stages from it to the end: float64[S, Q, K + 1, K + 1]."""
        ranges = [self.ranges(size) for size in sizes]
        most = min(max_stages, self.num_microbatches)
        bounded = [flying[(flying > 0) & (flying < most)] for _, flying in ranges]
        levels = min(most, max((int(each.max()) + 1 for each in bounded if len(each)), default=1))
        blocks = len(self.chain.blocks)
        table = np.full((levels, len(sizes), blocks + 1, blocks + 1), np.inf)
        for number, (seconds, flying) in enumerate(ranges):
            for level in range(levels if len(seconds) else 0):
                table[level, number] = np.where(flying > level, seconds, np.inf).min(axis=0)
        return table

    def option(self, size: int, ends: tuple[int, int], in_flight: int) -> Option:
        """The fastest option of a range that keeps so many microbatches in flight."""
        seconds, flying = (part[:, ends[0], ends[1]] for part in self.ranges(size))
        return self.options[size][int(np.argmin(np.where(flying >= in_flight, seconds, np.inf)))]

    def latency(self) -> Floats:
        """Seconds that messages at every boundary add to the first and last microbatch: float64[K + 1]."""
        inside, cluster = self.cluster.profile.devices_per_node, self.cluster
        shape = (2, 1) if cluster.world_size > cluster.domain_size else (1, 2)
        view = StageView(self.job, StagePlan(layers=0, first_device=0, mesh=(1,), sharding={}), 0)
        size = {
            name: float(block.output_elements(view.dims(block))) * view.compute_bytes / inside
            for name, block in self.chain.kinds.items()
        }
        each = [size[block.name] for block in self.chain.blocks[:-1]]
        if cluster.world_size == 1:
            return np.zeros(len(each) + 2)
        return np.concatenate([[0.0], 2 * collective_time_s("send", np.array(each), shape, cluster), [0.0]])


def saved_bytes(view: StageBlock) -> float:
    """What a block's operators save, each by itself, as the graph of choices counts it."""
    width, total = view.stage.job.kernels.activation_bytes, 0.0
    for key, op, what in saved_tensors(view.block):
        if what == "output" and op is not None:
            local = view.local(op)
            total += float(local.rows) * float(local.columns) * width
        elif what == "input" and view.block.name != view.stage.job.graph.embedding.name:
            reader = next(each for each in view.block.operators if key in each.inputs)
            total += (
                view.elements(key, reader) * width / sharding(view.sharding.stream("input"), view.stage.mesh)
            )
    return total


def view_time(view: StageView, block: Block, name: str) -> float:
    """Forward seconds of one operator of a block on a stage."""
    own = view.block(block)
    time = local_time(own.local(block.operator(name)), own.machine)
    return float(time.forward_s) * view.job.stack.launch.kernel_overhead


def _assignments(graph: ChoiceGraph, weightings: Sequence[Weighting]) -> list[tuple[int, ...]]:
    """Best assignments by elimination, or by the integer program where tables would be too large."""
    try:
        return eliminate(graph, weightings)
    except TooWide:
        return [solve(graph, weighting) for weighting in weightings]


def _range_maximum(values: Floats) -> Floats:
    """Largest value of every range k..j-1: float64[options, K + 1, K + 1]."""
    options, blocks = values.shape
    found = np.zeros((options, blocks + 1, blocks + 1))
    for length in range(1, blocks + 1):
        begin = np.arange(blocks + 1 - length)
        found[:, begin, begin + length] = np.maximum(
            found[:, begin, begin + length - 1], values[:, length - 1 :]
        )
    return found
