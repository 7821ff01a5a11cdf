"""The time of every range of blocks on every submesh: the input of the inter-operator pass.

For a size of microbatch, every logical mesh is solved once for several prices of memory. Each solution, with each
recompute choice, is an option, whose blocks are priced as in the Program of a single stage. A range's time and memory
are sums over its blocks, so identical layers cost nothing more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.memory.allocator import overhead_bytes
from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.plan.schedules import default_schedule
from simpar.plan.stages import StagePlan
from simpar.planner.stages.alpa.build import Chain, build_graph, shardings
from simpar.planner.stages.alpa.graph import ChoiceGraph, eliminate
from simpar.planner.stages.alpa.meshes import Mesh, logical_meshes
from simpar.planner.stages.alpa.operators import Metric
from simpar.planner.stages.alpa.roles import Pricer
from simpar.planner.stages.cuts import sum_between
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.collective_prices import Prices
from simpar.program.job import TrainingJob
from simpar.program.structure.hooks import LOOK_AHEAD
from simpar.program.structure.pieces import StageBlock
from simpar.program.structure.stage_builder import RolesBuilder, StageView, gathered_stream_bytes
from simpar.program.structure.stages import SegmentPrices
from simpar.units import NS_PER_S, US, Floats, Ints

PRICES = (0.0, 0.03, 0.2, 1.0, 10.0)
"""Prices of filling a device with states and activations, in units of a microbatch on the whole model."""
TYPICAL_IN_FLIGHT = 4
OVERLAP = 0.8
"""The share of a stage's passes that hides its synchronisation, if the stack overlaps them."""
WORKSPACE = len(Metric)


@dataclass(frozen=True)
class Option:
    """One way to run every kind of block: a stage without its cut.

    ``metrics`` is float64[metrics + 1, kinds]; the last row is the bytes of a block's workspace.
    """

    stage: StagePlan
    metrics: Floats
    communicators: int


def with_stages(plan: Plan, stages: tuple[StagePlan, ...], schedule: str | None = None) -> Plan:
    """A plan with other stages, under a schedule or the usual one."""
    schedule = schedule or default_schedule()
    pipeline = plan.pipeline.model_copy(update={"stages": stages, "layers": None, "schedule": schedule})
    mesh = plan.mesh.model_copy(update={"dp": None, "pp": len(stages)})
    memory = plan.memory.model_copy(update={"recompute": "none"})  # every stage has its own
    return plan.model_copy(update={"pipeline": pipeline, "mesh": mesh, "memory": memory})


@dataclass
class Profile:
    """Options of submeshes for one size of microbatch, that of the ``job``.

    ``cluster`` is in its training state, ``prices`` hold for any size, ``limit_bytes`` is the most a rank may need.
    """

    job: TrainingJob
    cluster: Cluster
    prices: Prices
    limit_bytes: float
    recompute: Sequence[str]
    _graphs: dict[Mesh, ChoiceGraph | None] = field(default_factory=dict)
    _known: dict[int, list[Option]] = field(default_factory=dict)
    _ranges: dict[tuple[int, float], tuple[Floats, Ints]] = field(default_factory=dict)

    @cached_property
    def chain(self) -> Chain:
        """Blocks of the model in order."""
        return Chain.of(self.job.graph)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step."""
        return self.job.training.global_batch // int(self.job.layout.micro_batch)

    def graph(self, mesh: Mesh) -> ChoiceGraph | None:
        """The choices of the model on a mesh; None if some operator has no legal role."""
        if mesh not in self._graphs:
            try:
                self._graphs[mesh] = build_graph(self.job, Pricer(self.prices, mesh), self.chain)
            except Infeasible:
                self._graphs[mesh] = None
        return self._graphs[mesh]

    def options(self, size: int) -> list[Option]:
        """Options of a submesh size, over all of its logical meshes."""
        if size not in self._known:
            meshes = logical_meshes(size, self.cluster)
            graphs = [graph for mesh in meshes if (graph := self.graph(mesh)) is not None]
            self._known[size] = [option for graph in graphs for option in self._solve(graph)]
        return self._known[size]

    def _solve(self, graph: ChoiceGraph) -> list[Option]:
        """Options of a mesh: the best shardings at each price of memory, with each recompute choice."""
        share = 1.0 / self.num_microbatches
        free = np.zeros(len(Metric))
        free[[Metric.PASS, Metric.EXPOSED, Metric.SYNC, Metric.UPDATE]] = 1.0, 1.0, share, share
        ((fastest_s, _),) = eliminate(graph, free[None])
        if not np.isfinite(fastest_s):
            return []
        filled = np.zeros(len(Metric))
        filled[[Metric.STATIC, Metric.SAVED]] = 1.0 / self.limit_bytes, TYPICAL_IN_FLIGHT / self.limit_bytes
        solutions = eliminate(graph, np.array([free + price * fastest_s * filled for price in PRICES]))
        distinct = dict.fromkeys(assignment for _, assignment in solutions)
        return [option for assignment in distinct for option in self._options(graph, assignment)]

    def _options(self, graph: ChoiceGraph, assignment: tuple[int, ...]) -> Iterator[Option]:
        """One sharding with every recompute choice that saves memory."""
        job, late_s, pricer = self.job, self.cluster.state.get("member_us", 0.0) * US, graph.pricer
        stage = pricer.stage.model_copy(
            update={"layers": len(job.graph.layers), "sharding": shardings(graph, self.chain, assignment)}
        )
        staged = replace(job, layout=Layout.of(with_stages(job.layout.to_plan(), (stage,))))
        part = RolesBuilder.of(staged, 0, (0,), late_s)
        pricing = SegmentPrices(
            solo=lambda use: pricer.of_use(use).use_ns(use),
            occupied=lambda use: int(pricer.of_use(use).occupied_ns(use.size_bytes, use.count)),
            comm_slowdown=job.stack.overlap.compute_slowdown_while_comm,
        )
        pieces = {piece.block.name: piece for piece in part.pieces[0]}
        priced: dict[StageBlock, Floats] = {}
        most, static = np.inf, np.array(list(graph.static_bytes(assignment).values()))
        for recompute in self.recompute:
            own = [
                replace(pieces[name], recompute=recompute) if name in job.graph.blocks else pieces[name]
                for name in self.chain.kinds
            ]
            saved = sum(part.unit(piece).saved_bytes for piece in own)
            if saved >= most:  # selective gains nothing if attention keeps no scores
                continue
            most = 0.98 * saved
            for piece in own:
                if piece not in priced:
                    priced[piece] = _priced(part, piece, pricing)
            metrics = np.stack([priced[piece] for piece in own], axis=1)
            metrics[Metric.STATIC] = static
            sharded = stage.model_copy(update={"recompute": recompute})
            yield Option(sharded, metrics, part.num_communicators)

    def ranges(self, size: int, share: float = 1.0) -> tuple[Floats, Ints]:
        """(seconds, most microbatches in flight) of every range under every option: [options, K + 1, K + 1] each.

        Within a share of the memory limit. For empty ranges seconds are infinite and the count is 0.
        """
        if (size, share) in self._ranges:
            return self._ranges[size, share]
        options, blocks = self.options(size), len(self.chain.blocks)
        every = np.stack([option.metrics for option in options], axis=1)[:, :, self.chain.kind_of_block]
        total = sum_between(every[:WORKSPACE])
        layout, habits = self.job.layout, self.job.stack.memory.allocator
        hidden = OVERLAP * total[Metric.PASS] if layout.overlap_grad_reduce and layout.overlap_param_gather else 0.0
        step = np.maximum(total[Metric.SYNC] - hidden, 0.0) + total[Metric.UPDATE]
        seconds = total[Metric.PASS] + step / self.num_microbatches
        overhead = [overhead_bytes(option.communicators, self.job.stack, self.cluster) for option in options]
        gaps = float(1.0 + habits.tight_gaps(self.num_microbatches > 1))
        outside = np.array(overhead)[:, None, None] + habits.workspace_bytes
        most = (share * self.limit_bytes - outside - total[Metric.STATIC]) / gaps
        largest = np.triu(np.repeat(every[WORKSPACE][:, None], blocks, axis=1))  # from each block on
        largest = np.pad(np.maximum.accumulate(largest, axis=2), ((0, 0), (0, 1), (1, 0)))
        moving = most - largest
        flying = np.floor(np.clip(moving / np.maximum(total[Metric.SAVED], 1.0), 0.0, 2.0**31)).astype(np.int64)
        empty = np.tril(np.ones((blocks + 1, blocks + 1), dtype=bool))
        self._ranges[size, share] = np.where(empty, np.inf, seconds), np.where(empty, 0, flying)
        return self._ranges[size, share]

    def work(self, sizes: Sequence[int]) -> Floats:
        """The least device-seconds of a microbatch on every block: float64[K]."""
        each = [size * option.metrics[Metric.PASS] for size in sizes for option in self.options(size)]
        return np.asarray(np.min(each, axis=0)[self.chain.kind_of_block])

    def times(self, sizes: Sequence[int], max_stages: int, share: float) -> Floats:
        """Best seconds of every range by the number of stages from it to the end: float64[S, Q, K + 1, K + 1]."""
        ranges = [self.ranges(size, share) for size in sizes]
        most = min(max_stages, self.num_microbatches)
        bounded = [flying[(flying > 0) & (flying < most)] for _, flying in ranges]
        levels = min(most, max((int(each.max()) + 1 for each in bounded if len(each)), default=1))
        return np.array(
            [
                [np.where(flying > level, seconds, np.inf).min(axis=0) for seconds, flying in ranges]
                for level in range(levels)
            ]
        )

    def stage(self, size: int, ends: tuple[int, int], in_flight: int, share: float) -> StagePlan | None:
        """The fastest option of a range of blocks that keeps ``in_flight`` microbatches in flight, as a stage."""
        seconds, flying = (part[:, ends[0], ends[1]] for part in self.ranges(size, share))
        if not (flying >= in_flight).any():
            return None
        option = self.options(size)[int(np.argmin(np.where(flying >= in_flight, seconds, np.inf)))].stage
        layers = min(ends[1], len(self.chain.blocks) - 1) - max(ends[0], 1)
        names = {block.name for block in self.chain.blocks[ends[0] : ends[1]]}
        sharding = {name: each for name, each in option.sharding.items() if name in names}
        return option.model_copy(update={"layers": layers, "sharding": sharding})

    def latency(self) -> Floats:
        """Seconds that messages at every boundary add to the first and last microbatch: float64[K + 1]."""
        inside, cluster = self.cluster.profile.devices_per_node, self.cluster
        shape = (2, 1) if cluster.world_size > cluster.domain_size else (1, 2)
        view = StageView(self.job, Pricer(self.prices, (1,)).stage, 0)
        size = {
            name: float(block.output_elements(view.dims(block))) * view.compute_bytes / inside
            for name, block in self.chain.kinds.items()
        }
        each = [size[block.name] for block in self.chain.blocks[:-1]]
        if cluster.world_size == 1:
            return np.zeros(len(each) + 2)
        return np.concatenate([[0.0], 2 * collective_time_s("send", np.array(each), shape, cluster), [0.0]])


def _priced(part: RolesBuilder, piece: StageBlock, pricing: SegmentPrices) -> Floats:
    """Metrics of a block on a stage without its static bytes, and the bytes of its workspace.

    Weights gathered for every pass are hidden behind as much of the pass as there is. Moves in the first or last
    microbatch only count as synchronisation, anything after the last backward as update.
    """

    def moved_ns(uses: Sequence[CollectiveUse]) -> int:
        return sum(pricing.price(use) for use in uses)

    unit, result = part.unit(piece), np.zeros(WORKSPACE + 1)
    for kind in ("forward", "backward"):
        every, once = (part.sync.policy(kind, boundary=boundary) for boundary in (False, True))
        gathers_ns = moved_ns(every.uses(unit))
        result[Metric.PASS] += max(part.segment(piece, unit, kind, every, pricing).duration_ns, gathers_ns)
        result[Metric.SYNC] += moved_ns(once.uses(unit)) - gathers_ns
    for node in part.sync.tail(unit.parameters):
        result[Metric.UPDATE] += pricing.price(node.collective) if node.collective else node.duration_ns
    result /= NS_PER_S
    result[Metric.SAVED] = unit.saved_bytes
    rows_bytes = gathered_stream_bytes(part.view.block(piece.block)) * part.job.stack.memory.gather_buffers
    gathered_bytes = LOOK_AHEAD * sum(each.arriving(unit) * each.buffer_bytes * unit.at_once for each in every.copies)
    backward_bytes = unit.recomputed_bytes + unit.backward_workspace_bytes
    result[WORKSPACE] = rows_bytes + gathered_bytes + max(unit.forward_workspace_bytes, backward_bytes)
    return result
