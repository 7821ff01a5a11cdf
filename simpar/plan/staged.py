"""Plans whose stages have devices of their own: the uniform plan that repeats a stage, and refused combinations."""

from __future__ import annotations

from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import OPTIMAL, SIMPLE
from simpar.errors import UserError
from simpar.plan.mesh import AXES, Mesh
from simpar.plan.offload import decide_offload
from simpar.plan.optimizers import BY_VALUE, OPTIMIZERS
from simpar.plan.plan import Plan
from simpar.plan.routing import has_sampled_loads
from simpar.plan.schedules import HALF_SCHEDULES
from simpar.plan.sync import replicas_are_independent


def stage_plan(plan: Plan, index: int) -> Plan:
    """The uniform plan whose stages all have the mesh of one stage in Megatron's roles; layers stay those of each."""
    stages = plan.pipeline.stages or ()
    stage, layers = stages[index], tuple(each.layers for each in stages)
    dp, tp = stage.mesh[0], stage.num_devices // stage.mesh[0]
    rows = tp > 1 and plan.tensor_parallel.sequence_parallel
    changed = {
        "micro_batch": plan.micro_batch // dp,
        "mesh": Mesh(tp=tp, dp=dp, pp=len(stages), ep=plan.mesh.ep, etp=plan.mesh.etp),
        "pipeline": plan.pipeline.model_copy(update={"stages": None, "layers": layers}),
        "tensor_parallel": plan.tensor_parallel.model_copy(update={"sequence_parallel": rows}),
        "memory": plan.memory.model_copy(update={"recompute": stage.recompute}),
    }
    plan = plan.model_copy(update=changed)
    return plan.model_copy(update={"offload": decide_offload(plan)})


def has_tensor_ranks(plan: Plan) -> bool:
    """Whether some layers are tensor-parallel in Megatron's roles: under a uniform plan or in a stage of its own."""
    own = (stage for stage in plan.pipeline.stages or () if not stage.sharding)
    return plan.mesh.tp > 1 or any(stage.num_devices > stage.mesh[0] for stage in own)


def refuse_staged(plan: Plan) -> None:
    """Raises UserError for features that stages of their own do not support, and for fields that each stage states.

    ``sequence_parallel`` false is accepted: resolved plans state it where all stages have roles for every operator.
    """
    stages, mesh, data = plan.pipeline.stages or (), plan.mesh, plan.data_parallel
    own, layers = tuple(stage.layers for stage in stages), plan.pipeline.layers
    policy = plan.memory.recompute
    for axis, size in {"tp": 1, "cp": 1, "dp": 1, "pp": len(stages)}.items():
        if getattr(mesh, axis) not in (None, 1, size):
            raise UserError(f"plan.{axis} = {getattr(mesh, axis)}: stages have meshes of their own; allowed: {size}")
    refused: tuple[tuple[object, str, object], ...] = (
        (plan.pipeline.vpp > 1, f"plan.vpp = {plan.pipeline.vpp}: a rank runs one chunk", 1),
        (plan.schedule in HALF_SCHEDULES, f"plan.schedule = {plan.schedule}: has every stage twice", "the others"),
        (plan.runs_slices, "plan.slices: stages run whole sequences", "none"),
        (
            replicas_are_independent(plan),
            f"plan.sync = {data.sync}: stages reduce inside the step",
            "bsp without servers",
        ),
        (data.kind == "single_process", "plan.kind = single_process: supports a single stage", "ddp, fsdp"),
        (
            OPTIMAL in [policy, *(stage.recompute for stage in stages)],
            f"plan.recompute = {OPTIMAL}: is solved for one layout of all stages",
            "any other",
        ),
        (
            has_sampled_loads(plan.experts, plan.mesh.ep),
            "plan.expert_load = sampled: loads of stages are alike",
            "expected",
        ),
        (
            policy != "none" and any(stage.recompute != policy for stage in stages),
            f"plan.recompute = {policy}: every stage states its own",
            "none, or what all of plan.stages say",
        ),
        (
            layers not in (None, own),
            f"plan.layers = {list(layers or ())}: every stage states its own",
            f"none, or the stages' {list(own)}",
        ),
        (
            mesh.order != AXES,
            f"plan.rank_order = {'-'.join(mesh.order)}: stages name their devices in the order of their meshes",
            "-".join(AXES),
        ),
        (
            plan.tensor_parallel.sequence_parallel and not has_tensor_ranks(plan),
            "plan.sequence_parallel = true: no stage without a sharding of its own has tensor-parallel ranks",
            "none, or roles in plan.stages",
        ),
    )
    for is_set, what, others in refused:
        if is_set:
            raise UserError(f"{what}, with plan.stages; allowed: {others}")


def divide_batch(plan: Plan, index: int) -> None:
    """Raises UserError where a microbatch does not divide over the data-parallel ranks of a stage."""
    width = (plan.pipeline.stages or ())[index].mesh[0]
    if plan.micro_batch % width:
        raise UserError(
            f"plan.micro_batch = {plan.micro_batch}: does not divide over the {width} data-parallel ranks of "
            f"plan.stages[{index}]; allowed: multiples of {width}"
        )


def refuse_in_roles(plan: Plan, graph: ModelGraph, cause: str = "a stage has a sharding of its own") -> None:
    """Raises UserError, with ``cause``, for features that stages with roles for every operator do not support."""
    data, numerics = plan.data_parallel, plan.numerics
    modes = {stage.recompute for stage in plan.pipeline.stages or () if stage.sharding}
    modes -= {*SIMPLE}
    refused: tuple[tuple[object, str, object], ...] = (
        (graph.is_mixture, f"{graph.name} routes tokens to experts", "dense models"),
        (graph.has_state, f"{graph.name} has state-space layers", "transformers"),
        (data.kind == "fsdp" or data.zero > 2, f"plan.kind = {data.kind}, zero = {data.zero}", "ddp, zero 0 to 2"),
        (data.hsdp > 1, f"plan.hsdp = {data.hsdp}", 1),
        (plan.offload.is_used, "plan.offload", "none of it"),
        (plan.memory.recompute_early, "plan.recompute_early = true", "false"),
        (modes, f"recompute = {max(modes, default=None)}", "none, selective, full"),
        (
            OPTIMIZERS[numerics.optimizer].by_shape,
            f"plan.optimizer = {numerics.optimizer} has states by the shape of matrices",
            BY_VALUE,
        ),
    )
    for is_set, what, others in refused:
        if is_set:
            raise UserError(f"{what}, with plan.stages: {cause}; allowed there: {others}")
