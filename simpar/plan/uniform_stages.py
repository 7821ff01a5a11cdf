"""A uniform plan written as stages: the same layout with a role for every operator, to compare and to start from."""

from __future__ import annotations

from simpar.models.graph import ModelGraph
from simpar.plan.check import stage_layers
from simpar.plan.megatron_roles import megatron_sharding
from simpar.plan.plan import Plan
from simpar.plan.stages import StagePlan


def as_stages(plan: Plan, graph: ModelGraph) -> Plan:
    """The plan with stages of mesh (dp, tp) in Megatron's roles; ``plan`` is resolved and checked.

    Says the same for tensor, sequence, data (ZeRO-1) and pipeline parallelism with one chunk a rank.
    """
    mesh, dp = plan.mesh, int(plan.mesh.dp or 1)
    sharding = megatron_sharding(graph, bool(plan.tensor_parallel.sequence_parallel))
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
