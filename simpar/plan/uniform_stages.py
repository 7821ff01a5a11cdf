"""A uniform plan written as stages: the same layout with a role for every operator, to compare and to start from."""

from __future__ import annotations

from simpar.models.graph import Block, ModelGraph, Operator, is_column_parallel, is_row_parallel
from simpar.plan.check import stage_layers
from simpar.plan.plan import Plan
from simpar.plan.stages import BlockSharding, StagePlan


def as_stages(plan: Plan, graph: ModelGraph) -> Plan:
    """The plan with stages of mesh (dp, tp) in Megatron's roles; ``plan`` is resolved and checked.

    Says the same for tensor, sequence, data (ZeRO-1) and pipeline parallelism with one chunk a rank.
    """
    mesh, dp = plan.mesh, int(plan.mesh.dp or 1)
    stream = "sequence" if plan.tensor_parallel.sequence_parallel else "replicate"
    blocks = (graph.embedding, *graph.blocks.values(), graph.head)
    sharding = {block.name: _megatron(block, stream, graph) for block in blocks}
    stages = tuple(
        StagePlan(
            layers=count, first_device=index * dp * mesh.tp, mesh=(dp, mesh.tp), sharding=sharding,
            recompute=plan.memory.recompute,
        )
        for index, count in enumerate(stage_layers(plan, len(graph.layers)))
    )  # fmt: skip
    changed = {
        "micro_batch": plan.micro_batch * dp,
        "mesh": mesh.model_copy(update={"tp": 1, "dp": None}),
        "pipeline": plan.pipeline.model_copy(update={"stages": stages, "layers": None}),
        "tensor_parallel": plan.tensor_parallel.model_copy(update={"sequence_parallel": None}),
        "memory": plan.memory.model_copy(update={"recompute": "none"}),
    }
    return plan.model_copy(update=changed)


def _megatron(block: Block, stream: str, graph: ModelGraph) -> BlockSharding:
    ends = "replicate" if block is graph.head else stream
    return BlockSharding(
        input=("batch", stream),
        output=("batch", ends),
        operators={op.name: ("batch", _role(op, stream)) for op in block.operators},
        memory=("batch", stream),
    )


def _role(op: Operator, stream: str) -> str:
    """Heads, ffn and vocabulary are shared out, the stream between them as it is."""
    if op.kind == "matmul":
        return "column" if is_column_parallel(op) else "row" if is_row_parallel(op) else "replicate"
    inside = {"attention": "heads", "embedding": "vocabulary", "loss": "vocabulary"}
    if op.kind in inside:
        return inside[op.kind]
    return stream if op.region == "sequence" else "features"
