"""The plan's action table over stages with meshes of their own, whose devices and tensor layouts may differ.

Every stage runs its rows of the table in order. Activations and gradients use separate process groups, so that messages
of a kind stay in order on every pair of devices; a receiver takes them in the order in which the table sends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.plan.placement import States
from simpar.plan.schedules.actions import Schedule
from simpar.plan.stages import stage_blocks
from simpar.runtime.decoder import Decoder
from simpar.runtime.measure import Clock
from simpar.runtime.placed import StageLoss, find_stored
from simpar.runtime.ranks import StageRanks
from simpar.runtime.resharding import StoredParts, joint, pieces, slice_within


@dataclass
class Channel:
    """The way of a tensor from one stage's devices to another's, as one rank of either stage sees it.

    ``parts`` are the slices of a local tensor by the rank that they go to or come from; ``shape`` is that of the
    received tensor.
    """

    parts: list[tuple[int, tuple[slice, ...]]]
    shape: tuple[int, ...]
    group: Any
    under_way: list[tuple[Any, Tensor]] = field(default_factory=list)

    @staticmethod
    def of(source: StoredParts, target: StoredParts, rank: int, group: Any) -> Channel:
        """The channel of a rank on either side."""
        sends = source.stage.holds(rank)
        mine = source.box(rank) if sends else target.box(rank)
        parts = [
            (piece.receiver if sends else piece.sender, slice_within(piece.box, mine))
            for piece in pieces(source, target)
            if rank in (piece.sender, piece.receiver)
        ]
        return Channel(parts, tuple(end - begin for begin, end in mine), group)

    def send(self, x: Tensor) -> None:
        """Start to send this rank's part."""
        self.under_way = [each for each in self.under_way if not each[0].is_completed()]
        for receiver, where in self.parts:
            part = x[where].contiguous()
            self.under_way.append((dist.isend(part, receiver, group=self.group), part))

    def receive(self, like: Tensor) -> Tensor:
        """The part that this rank needs, in the dtype and on the device of ``like``."""
        result, arriving = like.new_empty(self.shape), []
        for sender, where in self.parts:
            part = torch.empty_like(result[where], memory_format=torch.contiguous_format)
            arriving.append((dist.irecv(part, sender, group=self.group), part, where))
        for work, part, where in arriving:
            work.wait()
            result[where] = part
        return result

    def settle(self) -> None:
        """Wait until everything has been sent."""
        for work, _ in self.under_way:
            work.wait()
        self.under_way = []


@dataclass(frozen=True)
class End:
    """One end of a stage: the states of its stream, those that cross, and its channels to and from a neighbour.

    ``order`` are the microbatches in the order in which the neighbour sends them.
    """

    states: States
    crossing: States
    out: Channel
    back: Channel
    order: tuple[int, ...]


@dataclass
class StagePipeline:
    """One rank of a pipeline whose stages have meshes of their own."""

    schedule: Schedule
    module: Decoder
    ranks: StageRanks
    loss: StageLoss
    like: Tensor
    before: End | None
    behind: End | None
    clock: Clock = field(default_factory=lambda: Clock(torch.device("cpu")))

    def step(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Forward and backward of all microbatches of int64[batch, seq]; their losses on the last stage."""
        run = _RunningStep(
            self, tokens.chunk(self.schedule.num_microbatches), targets.chunk(self.schedule.num_microbatches)
        )
        act = {"F": run.forward, "B": run.backward, "I": run.input_gradient, "W": run.weight_gradient}
        letters, _, microbatches = self.schedule.letters(self.ranks.index)
        for letter, microbatch in zip(letters, microbatches.tolist(), strict=True):
            act[letter](microbatch)
        for end in (self.before, self.behind):
            if end is not None:
                end.out.settle()
        return run.losses

    def measure(self, clock: Clock) -> None:
        """Record the stage's own work; the rest of a step is messages and waiting."""
        self.clock = clock


@dataclass
class _RunningStep:
    """A step in progress: what is kept of every microbatch between its passes."""

    pipeline: StagePipeline
    tokens: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    losses: list[Tensor] = field(default_factory=list)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    split: dict[int, Any] = field(default_factory=dict)
    early: dict[str, dict[int, Tensor]] = field(default_factory=lambda: {"out": {}, "back": {}})
    orders: dict[str, Iterator[int]] = field(default_factory=dict)

    def forward(self, microbatch: int) -> None:
        """One microbatch through the stage."""
        pipe, here = self.pipeline, self.pipeline.ranks.here_mesh
        given = self._take(pipe.before, microbatch) if pipe.before else self.tokens[microbatch]
        with pipe.clock.phase("forward"):
            x = given
            if pipe.before is not None:
                given.requires_grad_()
                x = here.change(given, pipe.before.crossing, pipe.before.states)
            made = pipe.module(x)
            if pipe.behind is not None:
                made = here.change(made, pipe.behind.states, pipe.behind.crossing)
                made = made.clone() if made._is_view() else made  # torch detaches it in place after I
            else:
                loss = pipe.loss(made, self.targets[microbatch]) / pipe.schedule.num_microbatches
                self.losses.append(loss.detach())
                made = loss / pipe.loss.slices
        if pipe.behind is not None:
            pipe.behind.out.send(made.detach())
        self.kept[microbatch] = (given, made)

    def backward(self, microbatch: int) -> None:
        """Gradients of a microbatch's input and of all weights."""
        given, made = self.kept.pop(microbatch)
        gradient = self._gradient(microbatch)
        with self.pipeline.clock.phase("backward"):
            torch.autograd.backward(made, gradient)
        self._hand_back(given.grad)

    def input_gradient(self, microbatch: int) -> None:
        """The gradient of a microbatch's input; the first stage leaves everything to :meth:`weight_gradient`."""
        given, made = self.kept.pop(microbatch)
        gradient = self._gradient(microbatch)
        if self.pipeline.before is None:
            self.split[microbatch] = (made, gradient)
            return
        with self.pipeline.clock.phase("backward"):
            gradients = None if gradient is None else [gradient]
            result, groups = stage_backward_input([made], gradients, [given], self.pipeline.module.parameters())
        self.split[microbatch] = groups
        self._hand_back(result[0])

    def weight_gradient(self, microbatch: int) -> None:
        """The gradients of weights that :meth:`input_gradient` left."""
        left = self.split.pop(microbatch)
        with self.pipeline.clock.phase("backward"):
            if self.pipeline.before is None:
                torch.autograd.backward(*left)
            else:
                stage_backward_weight(self.pipeline.module.parameters(), left)

    def _gradient(self, microbatch: int) -> Tensor | None:
        """The gradient of the stage's output; None for the loss."""
        return self._take(self.pipeline.behind, microbatch) if self.pipeline.behind else None

    def _hand_back(self, gradient: Tensor | None) -> None:
        if self.pipeline.before is not None:
            assert gradient is not None, "a stage depends on what it was given"
            self.pipeline.before.out.send(gradient)

    def _take(self, end: End, microbatch: int) -> Tensor:
        """The neighbour's message for a microbatch; messages that arrive before it are put aside."""
        side = "out" if end is self.pipeline.behind else "back"
        order = self.orders.setdefault(side, iter(end.order))
        while microbatch not in self.early[side]:
            self.early[side][next(order)] = end.back.receive(self.pipeline.like)
        return self.early[side].pop(microbatch)


def make_pipeline(
    module: Decoder, graph: ModelGraph, training: Training, schedule: Schedule, ranks: StageRanks, like: Tensor
) -> StagePipeline:
    """The pipeline of this rank; activations have the dtype and device of ``like``."""
    whole = (training.global_batch // schedule.num_microbatches, training.seq_len, graph.dims["hidden"])
    before = _end(graph, ranks, schedule, ranks.index - 1, whole) if ranks.index else None
    behind = _end(graph, ranks, schedule, ranks.index, whole) if ranks.index < len(ranks.stages) - 1 else None
    return StagePipeline(schedule, module, ranks, StageLoss(graph, ranks.here_mesh), like, before, behind)


def _end(graph: ModelGraph, ranks: StageRanks, schedule: Schedule, lower: int, shape: tuple[int, int, int]) -> End:
    """The end of this rank's stage at the boundary after stage ``lower``."""
    stages = (ranks.stages[lower], ranks.stages[lower + 1])
    blocks = stage_blocks(ranks.stages, graph)[lower : lower + 2]
    states = (
        stages[0].sharding[blocks[0][-1].name].stream("output"),
        stages[1].sharding[blocks[1][0].name].stream("input"),
    )
    crossing = joint(stages, states, shape)
    held = [StoredParts.of(stage, each, shape) for stage, each in zip(stages, crossing, strict=True)]
    forward = Channel.of(held[0], held[1], ranks.rank, ranks.ways[0])
    backward = Channel.of(held[1], held[0], ranks.rank, ranks.ways[1])
    mine = int(lower < ranks.index)
    letters, _, microbatches = schedule.letters(lower if mine else lower + 1)
    sent = ("F",) if mine else ("B", "I")
    order = tuple(m for letter, m in zip(letters, microbatches.tolist(), strict=True) if letter in sent)
    out, back = (backward, forward) if mine else (forward, backward)
    return End(states[mine], crossing[mine], out, back, order)


@dataclass(frozen=True)
class TiedEmbeddings:
    """Both copies of a tied table, on the first and the last stage, whose devices shard it differently."""

    up: Channel
    down: Channel
    first: bool

    @staticmethod
    def of(graph: ModelGraph, ranks: StageRanks) -> TiedEmbeddings | None:
        """The copies of tied embeddings on two stages; None if this rank has none."""
        last = len(ranks.stages) - 1
        if not graph.tied_embeddings or ranks.index not in (0, last) or not last:
            return None
        shape = (graph.dims["vocab"], graph.dims["hidden"])
        table, output = graph.embedding.operators[0], graph.head.operator("lm_head")
        held = find_stored(ranks.stages[0], graph.embedding, table, shape)
        twin = find_stored(ranks.stages[last], graph.head, output, shape)
        up = Channel.of(twin, held, ranks.rank, ranks.ways[1])
        return TiedEmbeddings(up, Channel.of(held, twin, ranks.rank, ranks.ways[0]), ranks.index == 0)

    def __call__(self, gradient: Tensor) -> None:
        """Sum the gradients of both copies, in place."""
        if self.first:
            gradient.add_(self.up.receive(gradient))
            self.down.send(gradient)
            self.down.settle()
        else:
            self.up.send(gradient)
            self.up.settle()  # do not overwrite what is being sent: one sum may arrive before another part has left
            gradient.copy_(self.down.receive(gradient))
