"""What a block under roles of its own holds: weights and who shares their states, activations, workspaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.sharded import local_weights, sliced
from simpar.models.graph import Block, Dims, Operator
from simpar.plan.placement import States, sharding
from simpar.plan.sharding import RankDims
from simpar.plan.slices import sized_names
from simpar.program.structure.stage_view import StageBlock

Axes = tuple[int, ...]


def block_weights(view: StageBlock) -> dict[tuple[Axes, bool], float]:
    """Parameters of one rank for a block by the axes over which their gradients are summed, and whether gathered.

    Gathered ones are sharded and gathered for every pass, others stay whole. Vectors are summed over the axes that
    share out the batch only, and stay.
    """
    found: dict[tuple[Axes, bool], float] = {}
    for op in (op for op in view.block.operators if op.weights):
        matrices, vectors = (float(count) for count in local_weights(op, view.dims, view.by(op)))
        rows, batch = view.axes(op, "batch", "sequence"), view.axes(op, "batch")
        gathered = bool(rows) and op.name in view.sharding.gathered
        for key, count in (((rows, gathered), matrices), ((batch, False), vectors)):
            found[key] = found.get(key, 0.0) + count
    return {key: count for key, count in found.items() if count}


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
    shares = int(sharding(["B" if state == "B" else "R" for state in states], view.stage.mesh))
    whole = float(view.dims["batch"] * view.dims["seq"] * view.dims["hidden"])
    return whole / shares * view.stage.compute_bytes
