"""Bytes that come and go on a pipeline rank: activations in flight, workspaces, gathered parameters, gradients.

Everything is a scalar for one layout, or an array over many (:mod:`simpar.cost.peak`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from simpar.cost.activations import BlockActivations, activation_bytes, block_activations
from simpar.cost.memory.allocator import Reservation, reserve
from simpar.cost.stack import Stack
from simpar.models.graph import Block, ModelGraph, is_row_parallel
from simpar.plan.plan import Plan
from simpar.plan.sharding import RankDims

Array = Any


@dataclass(frozen=True)
class PeakMemory:
    """Highest total of one rank; scalars or arrays.

    ``static`` stays all step, ``activations`` are what forwards in flight have saved, ``transient`` the largest
    workspace beside them, ``held`` freed outputs that a communication stream still uses.
    """

    static_bytes: Array
    activations_bytes: Array
    transient_bytes: Array
    held_bytes: Array
    alternates: Array

    @property
    def moving_bytes(self) -> Array:
        """What comes and goes during the step."""
        return self.activations_bytes + self.transient_bytes

    @property
    def allocated_bytes(self) -> Array:
        """Highest number of bytes in tensors."""
        return self.static_bytes + self.moving_bytes

    def exactly(self, moving_bytes: Array) -> PeakMemory:
        """The same rank with the highest total of a simulated step in place of the closed form."""
        return replace(self, activations_bytes=moving_bytes, transient_bytes=0.0)

    def reservation(self, stack: Stack, limit_bytes: Array = np.inf) -> Reservation:
        """What the allocator needs and reserves for this peak, where the device leaves it ``limit_bytes``."""
        return reserve(
            self.static_bytes,
            self.moving_bytes,
            stack.memory.allocator,
            alternates=self.alternates,
            held_bytes=self.held_bytes,
            limit_bytes=limit_bytes,
        )


@dataclass(frozen=True)
class Share:
    """One rank's share: how often it holds each kind of layer, whether it has the ends, and what is in flight.

    ``passes``, where chunks differ: in schedule order, +1 (forward) or -1 (activations released) and the blocks of
    the chunk.
    """

    layers: tuple[tuple[Block, str, Array], ...]
    embedding: Array
    head: Array
    chunks: Array
    in_flight: Array
    head_in_flight: Array
    passes: tuple[tuple[int, tuple[tuple[Block, str], ...]], ...] = ()


@dataclass(frozen=True)
class Scheme:
    """Data parallelism in numbers.

    Widths of gathered parameters (0: none), of gradients before they are reduced or accumulated, and of the
    buffer being reduced; ``units`` whether each block is its own; ``sent`` the width of gradients on their way to the
    host.
    """

    gathered: Array
    gathered_experts: Array
    gradient: Array
    reduced: Array
    units: Array
    sent: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """Bytes of gradients being reduced: a layer's, and beside forwards and backwards of layers and of both ends.

    ``twice``: whether the parameters of an end are there for two passes beside its forward and its backward.
    """

    layer: Array
    forward: Array
    backward: Array
    ends: tuple[Array, Array]
    twice: tuple[tuple[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Moving:
    """Bytes of one rank's passes."""

    graph: ModelGraph
    stage: Share
    dims: RankDims
    plan: Plan
    stack: Stack

    def peak(self, static: Array, scheme: Scheme, *, held: float | Array, alternates: Array) -> PeakMemory:
        """All of it at the worst moment."""
        stage = self.stage
        layers = [(self._sizes(block, recompute), block, count) for block, recompute, count in stage.layers]
        ends = [
            (self._sizes(self.graph.embedding, "none"), stage.embedding),
            (self._sizes(self.graph.head, "none"), stage.head),
        ]
        each = sum((sizes.saved_bytes * count for sizes, _, count in layers), start=0.0) / stage.chunks
        head = ends[1][0].saved_bytes * stage.head
        waiting = self._waiting(layers, scheme, alternates)
        transient = np.maximum(
            self._layers(layers, head, each, (scheme, waiting)),
            self._ends(
                ends,
                layers,
                np.where((stage.chunks == 1) & (scheme.gathered > 0), each, 0.0),
                (scheme, waiting),
            ),
        )
        saved = self._chunked() if stage.passes else self._even(ends, each, head)
        return PeakMemory(
            static_bytes=static,
            activations_bytes=self._left(saved, [sizes for sizes, _, _ in layers] + [ends[1][0]]),
            transient_bytes=transient + self._early(layers) + self._messages(),
            held_bytes=held * self._partial_sums(layers) * stage.in_flight / stage.chunks,
            alternates=alternates,
        )

    def _left(self, saved: Array, blocks: list[BlockActivations]) -> Array:
        """Saved bytes less those on the host: of these the three blocks stay that wait to go or are back already."""
        share = self.plan.offload.offload_activations
        near = 3 * reduce(np.maximum, (sizes.saved_bytes for sizes in blocks))
        return (1.0 - share) * saved + share * np.minimum(saved, near) if share else saved

    def _even(self, ends: list[tuple[BlockActivations, Array]], each: Array, head: Array) -> Array:
        """Saved bytes in flight where all chunks of the rank are alike."""
        stage = self.stage
        embedding = stage.in_flight / stage.chunks * ends[0][0].saved_bytes * stage.embedding
        return stage.in_flight * each + embedding + stage.head_in_flight * head

    def _chunked(self) -> float:
        """Highest sum of saved bytes along the rank's passes."""
        sizes: dict[tuple[str, str], float] = {}
        changes = []
        for sign, blocks in self.stage.passes:
            for block, recompute in blocks:
                if (block.name, recompute) not in sizes:
                    sizes[block.name, recompute] = float(self._sizes(block, recompute).saved_bytes)
            changes.append(sign * sum(sizes[block.name, recompute] for block, recompute in blocks))
        return float(np.cumsum(changes).max(initial=0.0))

    def _sizes(self, block: Block, recompute: str) -> BlockActivations:
        return block_activations(block, self.dims, self.stack, self.plan.numerics, recompute)

    def _early(self, layers: list[tuple[BlockActivations, Block, Array]]) -> Array:
        """What a stage recomputes ahead of its backward: all of one microbatch."""
        if not self.plan.memory.recompute_early:
            return 0.0
        total = sum((sizes.recomputed_bytes * count for sizes, _, count in layers), start=0.0)
        return total / self.stage.chunks

    def _layers(
        self,
        layers: list[tuple[BlockActivations, Block, Array]],
        head: Array,
        each: Array,
        data: tuple[Scheme, Waiting],
    ) -> Array:
        """Workspace of a layer's pass, with gathered parameters, its gradient and those being reduced.

        The loss is over when a layer's backward runs. Where low-precision gradients wait for their accumulation
        until the backward is over, they take the place of one microbatch's activations.
        """
        worst: Array = 0.0
        scheme, waiting = data
        for sizes, block, count in layers:
            parameters, gathered = block.trained_parameters(self.dims.tensor), self._gathered(block, scheme)
            gradients = scheme.units * parameters * scheme.gradient + 2 * parameters * scheme.sent
            again = 0.0 if self.plan.memory.recompute_early else sizes.recomputed_bytes
            backward = again + sizes.backward_workspace_bytes + gradients - head
            forward = sizes.forward_workspace_bytes + waiting.forward
            here = np.maximum(forward, backward + waiting.backward) + 2 * gathered
            worst = np.maximum(worst, np.where(np.asarray(count) > 0, here, 0.0))
        trained = (block.trained_parameters(self.dims.tensor) * count for _, block, count in layers)
        held = sum(trained, start=0.0)
        return np.maximum(worst, (1 - scheme.units) * scheme.gradient * held - each)

    def _waiting(
        self, layers: list[tuple[BlockActivations, Block, Array]], scheme: Scheme, alternates: Array
    ) -> Waiting:
        """Gradients that are being reduced beside passes: at most two, one beside a backward that makes another.

        Those of the pass before are met where passes follow each other: the embedding's is the last of its pass, the
        head's the first, and where a rank holds all layers others have taken their place when they are met again.
        """
        stage, width = self.stage, scheme.units * scheme.reduced
        embedding, head = (
            width * block.trained_parameters(self.dims.tensor) * present
            for block, present in ((self.graph.embedding, stage.embedding), (self.graph.head, stage.head))
        )
        layer = width * reduce(
            np.maximum, (block.trained_parameters(self.dims.tensor) for _, block, _ in layers), 0.0
        )
        several = np.asarray(alternates) & (np.asarray(stage.embedding) * stage.head == 0)
        few = sum((count for _, _, count in layers), start=0.0) <= stage.chunks
        before = np.where(several, np.maximum(embedding, np.where(few, head, 0.0)), 0.0)
        return Waiting(
            layer=layer,
            forward=np.where(alternates, layer + np.maximum(layer, before), 0.0),
            backward=np.maximum(np.maximum(layer, head), before),
            ends=(
                np.where(alternates, embedding + layer, 0.0),
                np.where(several, layer + np.maximum(layer, before), 0.0),
            ),
            twice=((few, alternates), (True, few)),
        )

    def _gathered(self, block: Block, scheme: Scheme) -> Array:
        """Bytes of a block's parameters that are gathered for its pass."""
        experts = block.expert_parameters(self.dims.tensor)
        dense = block.parameters(self.dims.tensor) - experts
        return scheme.gathered * dense + scheme.gathered_experts * experts

    def _ends(
        self,
        ends: list[tuple[BlockActivations, Array]],
        layers: list[tuple[BlockActivations, Block, Array]],
        absent: Array,
        data: tuple[Scheme, Waiting],
    ) -> Array:
        """Workspace of embedding and head, with their gradient, parameters gathered, and gradients being reduced.

        The backward's gather of an end may run beside the forward that still has its own. What the layers of a
        microbatch save is ``absent`` when its embedding runs.
        """
        scheme, waiting = data
        layer = reduce(np.maximum, (self._gathered(block, scheme) for _, block, _ in layers), 0.0)
        worst: Array = 0.0
        blocks = (self.graph.embedding, self.graph.head)
        every = zip(ends, blocks, waiting.ends, waiting.twice, (absent, 0.0), strict=True)
        for (sizes, present), block, others, twice, less in every:
            own = self._gathered(block, scheme)
            gradient = scheme.units * scheme.gradient * block.trained_parameters(self.dims.tensor)
            forward, backward = (np.where(both, np.maximum(own, layer), layer) for both in twice)
            forward = forward + sizes.forward_workspace_bytes + others
            backward = backward + sizes.backward_workspace_bytes + gradient + waiting.layer
            here = np.maximum(forward, backward) + own
            worst = np.maximum(worst, present * (here - less))
        return worst

    def _messages(self) -> Array:
        """A received activation and a received gradient, where there is a pipeline."""
        local = self.dims.sequence
        boundary = local["batch"] * local["seq"] * local["hidden"] * activation_bytes(self.plan.numerics)
        return np.where(np.asarray(self.stage.embedding) * self.stage.head > 0, 0.0, 2.0) * boundary

    def _partial_sums(self, layers: list[tuple[BlockActivations, Block, Array]]) -> Array:
        """Whole-row outputs of row-parallel products of all layers, for one microbatch."""
        local = self.dims.tensor
        row = local["batch"] * local["seq"] * local["hidden"] * activation_bytes(self.plan.numerics)
        parallel = np.where(local["heads"] < self.graph.dims["heads"], row, 0.0)
        outputs = (count * sum(is_row_parallel(op) for op in block.operators) for _, block, count in layers)
        return parallel * sum(outputs, start=0.0)
