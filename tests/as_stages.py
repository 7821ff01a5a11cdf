"""A uniform plan written as stages with meshes of their own."""

from __future__ import annotations

from simpar.architectures.graph import ModelGraph
from simpar.layout.layout import Layout
from simpar.plan.megatron_roles import megatron_sharding
from simpar.plan.plan import Plan
from simpar.plan.stages import StagePlan


def as_stages(plan: Plan, graph: ModelGraph, *, roles: bool = True) -> Plan:
    """The plan with stages of mesh (dp, tp); ``plan`` must be resolved and checked.

    With ``roles`` every operator has its role, which expresses the same tensor, sequence, data and pipeline parallelism
    of dense models; without, stages are in Megatron's roles, for any model. Both have one chunk per rank.
    """
    mesh, dp = plan.mesh, plan.mesh.replicas
    sequence_parallel = bool(plan.tensor_parallel.sequence_parallel)
    sharding = megatron_sharding(graph, sequence_parallel) if roles else {}
    stages = tuple(
        StagePlan(
            layers=count, first_device=index * dp * mesh.tp, mesh=(dp, mesh.tp), sharding=sharding,
            recompute=plan.memory.recompute,
        )
        for index, count in enumerate(Layout.of(plan).stage_layers(len(graph.layers)))
    )  # fmt: skip
    changed = {
        "micro_batch": plan.micro_batch * dp,
        "mesh": mesh.model_copy(update={"tp": 1, "dp": None}),
        "pipeline": plan.pipeline.model_copy(update={"stages": stages, "layers": None}),
        "tensor_parallel": plan.tensor_parallel.model_copy(
            update={"sequence_parallel": None if roles else sequence_parallel}
        ),
        "memory": plan.memory.model_copy(update={"recompute": "none"}),
    }
    return plan.model_copy(update=changed)
