"""Whether a plan can be: every combination that cannot says why, in one line."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, make_schedule
from simpar.plan.schedules.actions import Schedule, from_csv


@dataclass(frozen=True)
class Target:
    """What a plan is checked against."""

    graph: ModelGraph
    training: Training
    world_size: int
    devices_per_node: int


def check(plan: Plan, target: Target) -> Plan:
    """The plan with dp filled in. Raises UserError with the first rule it breaks."""
    plan = _fill_dp(plan, target.world_size)
    for rule in (_tensor, _batch, _pipeline, _data, _later):
        rule(plan, target)
    return plan


def schedule_of(plan: Plan, training: Training) -> Schedule:
    """The plan's action table: its own CSV, or the named producer's."""
    if plan.pipeline.actions:
        return from_csv(plan.pipeline.actions)
    return make_schedule(
        plan.schedule, plan.mesh.pp, plan.num_microbatches(training.global_batch), plan.pipeline.vpp
    )


def stage_layers(plan: Plan, num_layers: int) -> tuple[int, ...]:
    """Transformer layers of every virtual stage.

    As given, or as even as possible: a remainder goes to the earlier of the stages that hold neither embedding
    nor head, then to the first, then to the last.
    """
    if plan.pipeline.layers:
        return plan.pipeline.layers
    stages = plan.mesh.pp * plan.pipeline.vpp
    base, extra = divmod(num_layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    more = set(order[:extra])
    return tuple(base + (stage in more) for stage in range(stages))


def _fill_dp(plan: Plan, world_size: int) -> Plan:
    mesh = plan.mesh
    model = mesh.tp * mesh.cp * mesh.pp
    if mesh.dp is None:
        if world_size % model:
            raise UserError(
                f"plan: tp x cp x pp = {mesh.tp} x {mesh.cp} x {mesh.pp} = {model} does not divide the world size "
                f"{world_size}"
            )
        return plan.model_copy(update={"mesh": mesh.model_copy(update={"dp": world_size // model})})
    if model * mesh.dp != world_size:
        raise UserError(
            f"plan: tp x cp x dp x pp = {mesh.tp} x {mesh.cp} x {mesh.dp} x {mesh.pp} = {model * mesh.dp}; the world size "
            f"is {world_size}"
        )
    return plan


def _must_divide(what: str, divisor: int, name: str, value: int) -> None:
    if value % divisor:
        raise UserError(f"plan: {what} = {divisor} does not divide {name} = {value}")


def _tensor(plan: Plan, target: Target) -> None:
    tp, dims = plan.mesh.tp, target.graph.dims
    _must_divide("tp", tp, "attention heads", dims["heads"])
    _must_divide("tp", tp, "ffn size", dims["ffn"])
    _must_divide("tp", tp, "hidden size", dims["hidden"])
    if dims["kv_heads"] % tp and tp % dims["kv_heads"]:
        raise UserError(f"plan: tp = {tp} and {dims['kv_heads']} key-value heads; one must divide the other")
    if plan.tensor_parallel.sequence_parallel:
        if tp == 1:
            raise UserError("plan: sequence_parallel = true needs tp > 1, there is nothing to shard over")
        _must_divide("tp (sequence parallel)", tp, "seq_len", target.training.seq_len)


def _batch(plan: Plan, target: Target) -> None:
    share = int(plan.mesh.dp or 1) * plan.micro_batch
    if target.training.global_batch % share:
        raise UserError(
            f"plan: dp x micro_batch = {plan.mesh.dp} x {plan.micro_batch} = {share} does not divide global_batch = "
            f"{target.training.global_batch}"
        )


def _pipeline(plan: Plan, target: Target) -> None:
    pipeline, pp = plan.pipeline, plan.mesh.pp
    stages, layers = pp * pipeline.vpp, len(target.graph.layers)
    if stages > layers + 2:
        raise UserError(
            f"plan: pp x vpp = {pp} x {pipeline.vpp} = {stages} stages for {layers} layers; allowed: at most {layers + 2} "
            "(embedding and head may have a stage of their own)"
        )
    empty = [
        stage for stage, count in enumerate(pipeline.layers or ()) if count == 0 and 0 < stage < stages - 1
    ]
    if empty:
        raise UserError(
            f"plan: layers gives stage {empty[0]} no layer; only the first and the last may have none"
        )
    if pipeline.layers and (len(pipeline.layers) != stages or sum(pipeline.layers) != layers):
        raise UserError(
            f"plan: layers lists {len(pipeline.layers)} stages with {sum(pipeline.layers)} layers; needed: {stages} stages "
            f"with {layers} layers"
        )
    if pipeline.actions:
        table = from_csv(pipeline.actions)
        wanted = plan.num_microbatches(target.training.global_batch)
        if table.num_ranks != pp or table.num_stages != stages or table.num_microbatches != wanted:
            raise UserError(
                f"plan: the action table has {table.num_ranks} ranks, {table.num_stages} stages, {table.num_microbatches} "
                f"microbatches; needed: {pp}, {stages}, {wanted}"
            )
        return
    if plan.schedule not in SCHEDULES:
        make_schedule(plan.schedule, 1, 1)
    schedule_of(plan, target.training)


def _data(plan: Plan, target: Target) -> None:
    data, mesh = plan.data_parallel, plan.mesh
    if data.kind == "single_process":
        if mesh.tp * mesh.pp * mesh.cp > 1 or data.zero:
            raise UserError(
                "plan: single_process data parallelism combines with nothing (tp, pp, cp = 1 and zero = 0)"
            )
        if target.world_size > target.devices_per_node:
            raise UserError(
                f"plan: single_process data parallelism is one process on one node of {target.devices_per_node} devices; "
                f"the world size is {target.world_size}"
            )
    if data.hsdp > 1 and not data.zero:
        raise UserError(f"plan: hsdp = {data.hsdp} replicates sharded states; it needs zero 1, 2 or 3")
    _must_divide("hsdp", data.hsdp, "dp x cp", int(mesh.dp or 1) * mesh.cp)


def _later(plan: Plan, target: Target) -> None:
    if plan.mesh.cp > 1:
        raise UserError(f"plan: cp = {plan.mesh.cp}; context parallelism is not modelled, allowed: 1")
    if plan.mesh.ep > 1:
        raise UserError(f"plan: ep = {plan.mesh.ep}; expert parallelism is not modelled, allowed: 1")
