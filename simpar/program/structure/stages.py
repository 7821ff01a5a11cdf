"""Stages: the blocks that a pipeline rank holds, their bytes and parameters, and the templates of its actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from simpar.architectures.graph import Block, Dims, evaluate, is_row_parallel
from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.memory.allocator import held_outputs_bytes
from simpar.cost.memory.static import held_memory
from simpar.cost.memory.terms import HeldBlocks, StaticMemory, Term
from simpar.cost.memory.widths import narrows_frozen
from simpar.cost.optimizers import Matrix, lay_out_matrices, matrix_exchange
from simpar.dataclass import dataclass
from simpar.layout.sharding import before_tensor_parallelism
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.schedules.actions import LETTERS, B, F, W
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.experts import SLICES
from simpar.program.blocks.phases import COMPUTE, TENSOR, CollectiveUse, Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import Priced, Segment, make_segment, slowed_beside
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.job import TrainingJob
from simpar.program.structure.early_recompute import live, with_early_recompute
from simpar.program.structure.hooks import BlockBytes, SyncPolicy
from simpar.program.structure.pairs import AHEAD, Pass, merge_phases, pair_template
from simpar.program.structure.pieces import StageBlock, virtual_stage_pieces
from simpar.program.structure.synchronisation import DENSE, ENCODER, EXPERTS, Synchronisation
from simpar.program.structure.templates import GATHER, Template, TemplateNode, backward_template, forward_template
from simpar.units import Ints, to_ns

if TYPE_CHECKING:
    from simpar.program.structure.stage_builder import StageView

Key = tuple[str, int, int]
BOUNDARY, OPENS = 1, 2
"""Flags of a pass, which add up. BOUNDARY: it is the first forward of its stage, before which parameters may be
gathered, or the last backward of its stage or run, behind which gradients are reduced. OPENS: it is the first backward
of a run."""
FLAGS = 4
HELD_UP = 0.75
"""A host counts as held up where the device takes less than this part of the host's time. The margin is a quarter,
because the cost of late members is known to about that (from which jobs of the Playbook hold freed outputs)."""
PASSES = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}


def flags_of(code: Ints, stage: Ints, *, by_runs: bool) -> Ints:
    """Flags of a rank's actions, int64[n] like their ``code`` and ``stage``.

    The boundary of a virtual stage is its first forward and its last pass of each backward type (B, I, W). With
    ``by_runs``, gradients of a stage are made in runs that end where those of another stage follow; each run has a
    first and a last pass, whatever forwards come between.
    """
    kind, result = stage * len(LETTERS) + code, np.zeros(len(code), dtype=np.int64)
    first, last = (np.unique(column, return_index=True)[1] for column in (kind, kind[::-1]))
    result[first[code[first] == F]] = BOUNDARY
    last = len(code) - 1 - last
    result[last[code[last] != F]] = BOUNDARY
    if by_runs:
        makes = np.flatnonzero((code == B) | (code == W))
        changes = np.flatnonzero(np.diff(stage[makes]))
        result[makes] = 0
        result[makes[np.append(changes, -1)]] = BOUNDARY
        result[makes[np.append(0, changes + 1)]] += OPENS
    return result


@dataclass
class SegmentPrices:
    """Solo durations of collectives for one rank class, its speed, and the segments made with them.

    ``solo`` and ``occupied`` give nanoseconds of a collective: its duration, and how long it slows kernels beside it.
    ``asked`` are the durations asked for so far.
    """

    solo: Callable[[CollectiveUse], int]
    occupied: Callable[[CollectiveUse], int]
    slowdown: float = 1.0
    comm_slowdown: float = 1.0
    segments: dict[tuple[object, ...], Segment] = field(default_factory=dict)
    asked: dict[CollectiveUse, int] = field(default_factory=dict)

    def price(self, use: CollectiveUse) -> int:
        """Nanoseconds of a collective alone."""
        if use not in self.asked:
            self.asked[use] = self.solo(use)
        return self.asked[use]

    def contention(self, phase: Phase, uses: Iterable[CollectiveUse]) -> float:
        """Factor on the kernels of a phase beside its block's own data-parallel collectives."""
        excess = self.comm_slowdown - 1.0
        compute_ns = float(to_ns(sum(step.duration_s for step in phase.steps)))
        if excess <= 0 or compute_ns <= 0:
            return 1.0
        busy_ns = 0
        for use in uses:
            self.price(use)  # notes the price, on which the occupied time depends
            busy_ns += self.occupied(use)
        return float(slowed_beside(excess, busy_ns, compute_ns))


@dataclass(frozen=True)
class ActionBuilder(ABC):
    """Builds action templates from pieces; costs of equal pieces are computed once.

    The first rank class decides in which order pairs of passes are merged, for all classes. What a rank runs and holds
    for a block is up to its view: of a uniform plan or of a stage in Megatron's roles on a mesh of its own
    (:class:`StageBuilder`), or of a stage whose operators have roles of their own
    (:class:`simpar.program.structure.stage_builder.RolesBuilder`). ``waiting_bytes`` are, by pipeline rank, messages
    from and to an encoder in the bubbles that wait to be read.
    """

    view: RankView | StageView
    rank_of_stage: tuple[int, ...]
    waiting_bytes: tuple[float, ...] = ()
    _steps: dict[tuple[str, str], BlockSteps] = field(init=False, default_factory=dict)
    _units: dict[tuple[str, str], BlockBytes] = field(init=False, default_factory=dict)
    _units_of: dict[int, list[BlockBytes]] = field(init=False, default_factory=dict)
    _pairs: dict[tuple[object, ...], tuple[Phase, float]] = field(init=False, default_factory=dict)
    _trained_of: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)

    @property
    def job(self) -> TrainingJob:
        """The job as its ranks run it."""
        return self.view.job

    def on(self, device: int) -> Self:
        """The same builder on the kind of device with that index in the cluster."""
        return replace(self, view=replace(self.view, job=self.job.on(device)))

    @property
    @abstractmethod
    def sync(self) -> Synchronisation:
        """The replicas of its parameters, and how they synchronise."""

    @abstractmethod
    def _make_steps(self, piece: StageBlock) -> BlockSteps:
        """Phases of a piece."""

    @abstractmethod
    def _activations(self, piece: StageBlock) -> BlockActivations:
        """Saved and transient bytes of a piece."""

    @abstractmethod
    def _by_kind(self, blocks: Sequence[Block]) -> dict[str, float]:
        """Number of trained parameters of blocks on one rank, by the kind of ranks that hold copies of them."""

    def _frozen(self, _block: Block) -> dict[str, float]:
        """Bytes of a block's frozen parameters over those of the compute dtype, by the kind of ranks with copies."""
        return {}

    def _at_once(self, _block: Block) -> float:
        """Share of a block's parameters that is whole at a time."""
        return 1.0

    @property
    @abstractmethod
    def tied(self) -> tuple[str, float]:
        """(Kind, parameters on one rank) of a trained table that embedding and head share."""

    @property
    @abstractmethod
    def table_elements(self) -> float:
        """Parameters on one rank of the table that embedding and head share, on a stage that holds one of these."""

    def matrices(self, _pipeline_rank: int) -> tuple[Matrix, ...]:
        """The matrices that the plan's matrix optimizer updates on a pipeline rank; none for other optimizers."""
        return ()

    def matrix_moves(self, _pipeline_rank: int) -> tuple[TemplateNode, ...]:
        """Collectives by which tensor-parallel ranks come to these matrices."""
        return ()

    @abstractmethod
    def static_memory(self, pipeline_rank: int) -> StaticMemory:
        """The account of memory that a pipeline rank holds whatever pass runs."""

    @abstractmethod
    def _partial_sum_bytes(self, pipeline_rank: int) -> float:
        """The largest output of a row-parallel product of a rank's layers, for one microbatch."""

    def held_outputs_bytes(self, pipeline_rank: int, *, held_up: bool = False) -> float:
        """Bytes of row-parallel outputs, freed but not yet released; ``held_up``: the device waits for its host."""
        job, size_bytes = self.job, self._partial_sum_bytes(pipeline_rank)
        return held_outputs_bytes(job.layout, job.training, job.stack, pipeline_rank, size_bytes, held_up=held_up)

    def waits_for_host(self, stage: int, price: Priced) -> bool:
        """Whether both passes of a layer take the host clearly longer than the device, under prices of collectives."""
        layers = len(self.job.graph.layers)
        piece = next((piece for piece in self.pieces[stage] if 0 <= piece.layer < layers), None)
        if piece is None:
            return False
        steps = self.steps(piece)
        phases = (steps.forward, steps.backward)
        device_ns = sum(make_segment(replace(phase, issue_s=0.0), price).duration_ns for phase in phases)
        return bool(device_ns < HELD_UP * to_ns(sum(float(phase.issue_s) for phase in phases)))

    @cached_property
    def num_communicators(self) -> int:
        """Kinds of groups that a rank communicates in."""
        return int(self.job.layout.communicators)

    @cached_property
    def pieces(self) -> tuple[tuple[StageBlock, ...], ...]:
        """Blocks of every virtual stage."""
        return virtual_stage_pieces(self.job)

    @cached_property
    def first_layers(self) -> Ints:
        """The first layer of every virtual stage, int64[stages]; 0 without any."""
        return np.array([max(some[0].layer, 0) if some else 0 for some in self.pieces], dtype=np.int64)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For every virtual stage, the first one that holds the same blocks, recomputed in the same way."""
        known: dict[tuple[tuple[str, str, bool], ...], int] = {}
        return tuple(
            known.setdefault(tuple((*p.kind, p.layer < 0) for p in pieces), stage)
            for stage, pieces in enumerate(self.pieces)
        )

    def steps(self, piece: StageBlock) -> BlockSteps:
        """Phases of a piece, shared by all layers with the same block and recompute choice."""
        if piece.kind not in self._steps:
            self._steps[piece.kind] = self._make_steps(piece)
        return self._steps[piece.kind]

    def unit(self, piece: StageBlock, *, first: int = 0) -> BlockBytes:
        """Bytes that a piece holds and moves on one rank; its layer is counted from ``first``."""
        if piece.kind not in self._units:
            block = piece.block
            saved, again, ahead, back = map(float, astuple(self._activations(piece)))
            held = self._moved(block), self._frozen(block), block.has_no_backward, self._at_once(block)
            self._units[piece.kind] = BlockBytes(piece.layer, block.name, saved, again, ahead, back, *held)
        # the embedding keeps its negative layer
        layer = piece.layer - first if piece.layer >= 0 else piece.layer
        return replace(self._units[piece.kind], layer=layer)

    def template(self, key: Key, pricing: SegmentPrices) -> Template:
        """Template of an action: letter F, B, I or W, virtual stage, and flags.

        Layers are counted from ``first_layers``, so that stages that are ``alike`` have the same templates.
        """
        letter, stage, flags = key
        kind, pieces = PASSES[letter], self.pieces[stage]
        if stage not in self._units_of:
            first = int(self.first_layers[stage])
            self._units_of[stage] = [self.unit(piece, first=first) for piece in pieces]
        units, sync = self._units_of[stage], self._policy(kind, flags)
        distinct = {piece.kind: (piece, unit) for piece, unit in zip(pieces, units, strict=True)}

        def segments(kind: str, sync: SyncPolicy) -> list[Segment]:
            made = {key: self.segment(*each, kind, sync, pricing) for key, each in distinct.items()}
            return [made[piece.kind] for piece in pieces]

        if kind == "forward":
            return forward_template(units, segments(kind, sync), sync)
        if not self.job.layout.recompute_early or kind == "weight_gradient":
            return backward_template(kind, units, segments(kind, sync), sync)
        result = backward_template(kind, live(units), segments(kind, sync), sync)
        return with_early_recompute(kind, result, units, segments("again", SyncPolicy()))

    def pair(self, forward: Key, backward: Key, pricing: SegmentPrices) -> Template | None:
        """Template of the forward of one stage and the backward (B or I) of another that run together.

        Each is (letter, stage, flags). None where the passes gather parameters, or reduce or hold whole gradients: they
        then run one after the other.
        """
        kinds = [PASSES[letter] for letter, _, _ in (forward, backward)]
        policies = [self._policy(kind, flags) for kind, (_, _, flags) in zip(kinds, (forward, backward), strict=True)]
        if any(policy.gathers or policy.reduces or policy.holds for policy in policies):
            return None
        pieces = (self.pieces[forward[1]], self.pieces[backward[1]][::-1])
        passes = [
            Pass(
                kind,
                tuple(self.unit(piece) for piece in some),
                tuple(self.segment(p, self.unit(p), kind, policy, pricing) for p in some),
            )
            for kind, some, policy in zip(kinds, pieces, policies, strict=True)
        ]
        together = [self._pair_segment(ahead, back, kinds[1], pricing) for ahead, back in zip(*pieces, strict=False)]
        return pair_template(passes[0], passes[1], together)

    def _policy(self, kind: str, flags: int) -> SyncPolicy:
        return self.sync.policy(kind, boundary=bool(flags & BOUNDARY), opens=bool(flags & OPENS))

    def _pair_segment(self, ahead: StageBlock, back: StageBlock, kind: str, pricing: SegmentPrices) -> Segment:
        key: tuple[object, ...] = (*ahead.kind, *back.kind, kind)
        if key not in self._pairs:
            own: Phase = getattr(self.steps(back), kind)
            self._pairs[key] = merge_phases(self.steps(ahead).forward, own, pricing.price)
        phase, share = self._pairs[key]
        key = (*key, ahead.layer)
        if key not in pricing.segments:
            steps = tuple(replace(s, layer=ahead.layer) if s.layer == AHEAD else s for s in phase.steps)
            slowdown = pricing.slowdown * self.job.stack.launch.kernel_overhead
            slowdown *= 1.0 + max(pricing.comm_slowdown - 1.0, 0.0) * share
            pricing.segments[key] = make_segment(replace(phase, steps=steps), pricing.price, slowdown=slowdown)
        return pricing.segments[key]

    def segment(
        self, piece: StageBlock, unit: BlockBytes, kind: str, sync: SyncPolicy, pricing: SegmentPrices
    ) -> Segment:
        """A pass over one block, slowed by its data-parallel collectives, which run beside it."""
        asked = (*piece.kind, kind, sync)
        if asked in pricing.segments:
            return pricing.segments[asked]
        phase: Phase = getattr(self.steps(piece), kind)
        if self.sync.single_process:  # the lock of its interpreter serialises the launches of all devices
            phase = replace(phase, issue_s=phase.issue_s * self.sync.width)
        slowdown = pricing.slowdown * self.job.stack.launch.kernel_overhead
        slowdown *= pricing.contention(phase, sync.uses(unit))
        key = (*piece.kind, kind, slowdown)
        if key not in pricing.segments:
            pricing.segments[key] = make_segment(phase, pricing.price, slowdown=slowdown)
        pricing.segments[asked] = pricing.segments[key]
        return pricing.segments[asked]

    def held(self, pipeline_rank: int) -> list[StageBlock]:
        """Pieces of all virtual stages of a pipeline rank; of an encoder in the bubbles, on every rank."""
        shared = 0 if self.job.layout.encoder_layers else -1
        stages = [at for at, rank in enumerate(self.rank_of_stage) if rank == pipeline_rank or at == shared]
        return [piece for stage in stages for piece in self.pieces[stage]]

    def parameters_of_rank(self, pipeline_rank: int) -> dict[str, float]:
        """Parameters of all virtual stages of a pipeline rank before sharding, by the kind of ranks with copies.

        A tied output projection counts for nothing on the rank that holds the embedding.
        """
        blocks = [piece.block for piece in self.held(pipeline_rank)]
        held, graph = self._by_kind(blocks), self.job.graph
        kind, count = self.tied
        if count and graph.embedding in blocks and graph.head in blocks:
            held[kind] -= count
        return held

    def frozen_of_rank(self, pipeline_rank: int) -> dict[str, float]:
        """Frozen weights of a pipeline rank before sharding, as :meth:`parameters_of_rank`.

        They are counted in elements of the compute dtype: one in 4 bits is a quarter of one in 16. A tied table that is
        frozen counts once.
        """
        blocks, graph = [piece.block for piece in self.held(pipeline_rank)], self.job.graph
        each = [self._frozen(block) for block in blocks]
        result = {kind: sum(one.get(kind, 0.0) for one in each) for kind in (DENSE, EXPERTS, ENCODER)}
        if graph.tied_embeddings and graph.embedding.has_no_backward and {graph.embedding, graph.head} <= set(blocks):
            result[DENSE] -= self._frozen(graph.embedding)[DENSE]
        return result

    def _moved(self, block: Block) -> dict[str, float]:
        """Parameters that data parallelism gathers and reduces for a block.

        Where embedding and head are on one rank, a tied table is in the flat buckets once, with the embedding; fully
        sharded units gather it for every use.
        """
        result = self._by_kind([block])
        kind, count = self.tied
        meet = self.rank_of_stage[:1] == self.rank_of_stage[-1:] and not self.sync.per_unit
        if count and meet and block.name == self.job.graph.head.name:
            result[kind] -= count
        return result


@dataclass(frozen=True)
class StageBuilder(ActionBuilder):
    """Ranks that one view serves: all of a uniform plan, or those of a stage in Megatron's roles."""

    view: RankView
    _static: dict[tuple[object, ...], StaticMemory] = field(init=False, default_factory=dict)

    @cached_property
    def sync(self) -> Synchronisation:
        """The replicas of its parameters, as the plan has them."""
        return Synchronisation.of(self.job)

    def _make_steps(self, piece: StageBlock) -> BlockSteps:
        return block_steps(RankBlock.of(piece.block, self.view), recompute=piece.recompute)

    def _activations(self, piece: StageBlock) -> BlockActivations:
        job = self.job
        return block_activations(piece.block, self.view.dims, job.stack, job.layout, piece.recompute)

    def _frozen(self, block: Block) -> dict[str, float]:
        width = self.sync.compute_bytes
        dense, experts = block.frozen_bytes(self.view.tensor, width, narrowed=narrows_frozen(self.job.layout))
        if block.name in self.shared_blocks:
            return {ENCODER: float(dense) / width}
        return {DENSE: float(dense) / width, EXPERTS: float(experts) / width}

    def _at_once(self, block: Block) -> float:
        return float(block.largest_share(self.view.tensor)) if self.job.stack.buckets.by_weight else 1.0

    def _by_kind(self, blocks: Sequence[Block]) -> dict[str, float]:
        each = [(block, *self._trained(block)) for block in blocks]
        experts = sum(of_experts for _, _, of_experts in each)
        shared = sum(parameters for block, parameters, _ in each if block.name in self.shared_blocks)
        return {
            DENSE: sum(parameters for _, parameters, _ in each) - experts - shared,
            EXPERTS: experts,
            ENCODER: shared,
        }

    def _trained(self, block: Block) -> tuple[float, float]:
        """Trained parameters of a block on a rank, and those of experts among them."""
        if block.name not in self._trained_of:
            dims = self.view.tensor
            self._trained_of[block.name] = float(block.trained_parameters(dims)), float(block.trained_experts(dims))
        return self._trained_of[block.name]

    @cached_property
    def shared_blocks(self) -> frozenset[str]:
        """Names of the blocks that all pipeline ranks hold: those of an encoder in the bubbles."""
        return frozenset(self.job.graph.layers[: self.job.layout.encoder_layers])

    @cached_property
    def tied(self) -> tuple[str, float]:
        """Kind and parameters on one rank of a table that embedding and head share and that is trained."""
        graph = self.job.graph
        if not graph.tied_embeddings or graph.embedding.has_no_backward:
            return DENSE, 0.0
        return DENSE, float(evaluate(graph.head.operator("lm_head").weights[0].size, self.view.tensor))

    def matrices(self, pipeline_rank: int) -> tuple[Matrix, ...]:
        """The matrices of all blocks of the rank, if the plan has a matrix optimizer."""
        if not OPTIMIZERS[self.job.layout.optimizer].by_matrix:
            return ()
        return tuple(lay_out_matrices(*self._divided(pipeline_rank)))

    def matrix_moves(self, pipeline_rank: int) -> tuple[TemplateNode, ...]:
        """How tensor-parallel ranks come to the matrices that they update, one call for each that the rank owns."""
        if not OPTIMIZERS[self.job.layout.optimizer].by_matrix:
            return ()
        op, moved = matrix_exchange(*self._divided(pipeline_rank), self.job.layout)
        nodes: list[TemplateNode] = []
        for each in self.sync.replicas:
            size, calls = moved.get(each.kind == EXPERTS, (0.0, 0.0))
            if calls:
                count = max(1, round(calls / each.shards))
                group = SLICES if each.kind == EXPERTS else TENSOR
                use = CollectiveUse(group, op, size / each.shards / count, count)
                node = TemplateNode("tp", f"{op} matrices", (COMPUTE, GATHER), collective=use)
                nodes += [node] * (2 if op == "all_to_all" else 1)  # momentum there, updates back
        return tuple(nodes)

    def _divided(self, pipeline_rank: int) -> tuple[list[Block], Dims, Dims, str | None]:
        """Blocks of a pipeline rank, its dims, those before tensor parallelism, and how it works on matrices."""
        blocks, local = [piece.block for piece in self.held(pipeline_rank)], self.view.tensor
        return blocks, local, before_tensor_parallelism(self.job.graph, local), self.job.layout.matrix_layout

    @property
    def table_elements(self) -> float:
        """Parameters on one rank of the table that embedding and head share."""
        return float(self.view.table_elements)

    def static_memory(self, pipeline_rank: int) -> StaticMemory:
        """Bytes that a pipeline rank holds between steps."""
        job, pieces = self.job, self.held(pipeline_rank)
        known, count = {p.block.name: p.block for p in pieces}, Counter(p.block.name for p in pieces)
        ends = tuple(count[end.name] for end in (job.graph.embedding, job.graph.head))
        alike = (*count.items(), *ends)
        if alike not in self._static:
            counted = tuple((block, count[name]) for name, block in known.items())
            held = HeldBlocks(counted, ends[0], ends[1], self.shared_blocks, job.num_microbatches)
            self._static[alike] = held_memory(
                job.graph, held, self.view.tensor, job.layout, job.stack, job.kernels.device
            )
        if not self.waiting_bytes:
            return self._static[alike]
        waiting = Term("transient", "what comes from and to the encoder and waits", self.waiting_bytes[pipeline_rank])
        return StaticMemory((*self._static[alike].terms, waiting))

    def _partial_sum_bytes(self, pipeline_rank: int) -> float:
        graph, dims = self.job.graph, self.view.tensor
        if dims["heads"] == graph.dims["heads"]:
            return 0.0
        blocks = (p.block for p in self.held(pipeline_rank) if 0 <= p.layer < len(graph.layers))
        sums = any(is_row_parallel(op) for block in blocks for op in block.operators)
        return sums * float(dims["batch"] * dims["seq"] * dims["hidden"] * self.view.compute_bytes)
