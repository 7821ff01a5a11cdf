"""What a block under roles of its own holds: weights and who shares their states, activations, workspaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.sharded import local_weights, sliced
from simpar.models.graph import Block, Dims, Operator
from simpar.plan.placement import States, sharding
from simpar.plan.sharding import RankDims
from simpar.plan.slices import sized_names
from simpar.program.structure.stage_view import StageBlock


@dataclass(frozen=True)
class Weights:
    """Parameters of one rank for one block, by the axes over which their gradients are summed.

    ``kept`` stay whole between uses and only share optimizer states; ``gathered`` are sharded and gathered for
    every pass. Keys are axes, () for parameters that nobody shares.
    """

    kept: dict[tuple[int, ...], float] = field(default_factory=dict)
    gathered: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All parameters that the rank works with."""
        return sum(self.kept.values()) + sum(self.gathered.values())

    def without(self, axes: tuple[int, ...], count: float) -> Weights:
        """The same less parameters that another block of the stage already holds."""
        return Weights({**self.kept, axes: self.kept.get(axes, 0.0) - count}, self.gathered)


def block_weights(view: StageBlock) -> Weights:
    """Weights of a block. Vectors of a block are summed over the axes that share out the batch only."""
    weights = Weights()
    for op in view.block.operators:
        if not op.weights:
            continue
        matrices, vectors = (float(count) for count in local_weights(op, view.dims, view.by(op)))
        table = weights.gathered if op.name in view.sharding.gathered else weights.kept
        rows, batch = view.axes(op, "batch", "sequence"), view.axes(op, "batch")
        table[rows] = table.get(rows, 0.0) + matrices
        weights.kept[batch] = weights.kept.get(batch, 0.0) + vectors
    for table in (weights.kept, weights.gathered):
        for axes in [axes for axes, count in table.items() if not count]:
            del table[axes]
    return weights


def num_shards(axes: tuple[int, ...], mesh: tuple[int, ...]) -> int:
    """Ranks along some axes."""
    return prod(mesh[axis] for axis in axes)


@dataclass(frozen=True)
class _StageDims(RankDims):
    """Dims of one rank, operator by operator, as activations are measured with."""

    own: Mapping[str, Dims] = field(default_factory=dict)

    def of_block(self, _block: Block) -> RankDims:
        """They are already those of the block."""
        return self

    def of(self, op: Operator) -> Dims:
        """Dims of the operator's output."""
        return self.own[op.name]


def activations(view: StageBlock, recompute: str = "none") -> BlockActivations:
    """Saved and transient bytes of one microbatch on one rank."""
    job = view.stage.job
    return block_activations(view.block, stage_dims(view), job.stack, job.plan.numerics, recompute)


def stage_dims(view: StageBlock) -> RankDims:
    """Dims of a block on one rank: of the stream between blocks, of the products inside, of every output."""
    own = {
        op.name: {**view.dims, **_rows(view, view.writes(op)), **_divided(view, op)}
        for op in view.block.operators
    }
    inner: dict[str, int] = {}
    for op in view.block.operators:
        inner |= {name: size for name, size in _divided(view, op).items() if name != "hidden"}
    product = next((op for op in view.block.operators if op.kind == "matmul"), view.block.operators[0])
    tensor = {**view.dims, **_rows(view, view.reads(product)), **inner}
    stream = {**view.dims, **_rows(view, view.sharding.stream("input"))}
    return _StageDims(tensor, stream, own=own)


def _rows(view: StageBlock, states: States) -> dict[str, int]:
    """Batch and sequence of a tensor in some states on one rank."""
    shares = {"B": 1, "S": 1}
    for state, size in zip(states, view.stage.mesh, strict=True):
        if state in shares:
            shares[state] *= size
    batch, seq = view.dims["batch"] // shares["B"], view.dims["seq"] // shares["S"]
    return {"batch": max(int(batch), 1), "seq": max(int(seq), 1)}


def _divided(view: StageBlock, op: Operator) -> dict[str, int]:
    """Column dims of an operator that its roles divide."""
    by = view.by(op)["columns"]
    if by == 1:
        return {}
    local = view.local(op)
    found = {}
    for name in sized_names(op.columns):
        if name in ("heads", "kv_heads"):
            found[name] = int(local.dims[name])
        elif name:
            found[name] = int(sliced(name, int(view.dims[name]), by))
    return found


def gathered_stream_bytes(view: StageBlock) -> float:
    """Bytes of the stream in front of a block with whole sequences, 0 where it is not kept in slices of them."""
    states = view.sharding.stream("input")
    if "S" not in states:
        return 0.0
    shares = sharding(["B" if state == "B" else "R" for state in states], view.stage.mesh)
    whole = float(view.dims["batch"] * view.dims["seq"] * view.dims["hidden"])
    return whole / shares * view.stage.compute_bytes
