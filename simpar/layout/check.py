"""Whether a plan is possible: for every combination that is not, an error says in one line why, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd, lcm
from typing import Any

from simpar.architectures.recompute import chosen_layers, of_layer, segment
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.deciders import BY_DEVICES, fill_open_choices
from simpar.layout.layout import Layout
from simpar.plan.choices.pipeline import CUSTOM, MAX_PASSES, check_slices
from simpar.plan.choices.target import Workload, format_divisors
from simpar.plan.choices.tensor_parallel import refuse_tensor_parallel
from simpar.plan.early import check_early
from simpar.plan.offload import check_offload
from simpar.plan.optimizers import BY_VALUE, OPTIMIZERS
from simpar.plan.plan import Plan
from simpar.plan.schedules import EVEN_COSTS, HALF_SCHEDULES, make_schedule
from simpar.plan.schedules.actions import Schedule, from_csv
from simpar.plan.schedules.terapipe import slice_schedule
from simpar.plan.stage_layers import stage_layers
from simpar.plan.staged import divide_batch, refuse_in_roles, refuse_staged, stage_plan
from simpar.plan.stages import check_stages
from simpar.plan.sync import num_replicas, replicas_are_independent


def check(plan: Plan, target: Workload) -> Plan:
    """The plan with dp and the schedule's name filled in. Raises UserError with the first rule it breaks."""
    if plan.pipeline.stages:
        return _check_staged(plan, target)
    _refuse_devices(plan, target)
    plan = fill_open_choices(plan, BY_DEVICES, target)
    for rule in (_tensor, _context, _experts, _batch, _stages, _recompute, check_slices, _schedule, _data):
        rule(plan, target)
    check_offload(plan)
    check_early(plan)
    _whole_matrices(plan)
    return plan


def keeps_rules(plan: Plan, target: Workload, *names: str) -> bool:
    """Whether a resolved plan with its dp keeps the rules ``names`` of :data:`_RULES`."""
    try:
        for name in names:
            _RULES[name](plan, target)
    except UserError:
        return False
    return True


def _check_staged(plan: Plan, target: Workload) -> Plan:
    """The checked plan whose stages have devices of their own; its mesh has pp stages, and ep and etp inside a stage.

    A stage in Megatron's roles is checked as the uniform plan that repeats it.
    """
    refuse_staged(plan)
    stages = plan.pipeline.stages or ()
    check_stages(stages, target.graph, target.world_size, (plan.micro_batch, target.training.seq_len))
    mesh = plan.mesh.model_copy(update={"tp": 1, "cp": 1, "dp": 1, "pp": len(stages)})
    own = {"schedule": plan.schedule, "layers": tuple(stage.layers for stage in stages)}
    pipeline = plan.pipeline.model_copy(update=own)
    plan = plan.model_copy(update={"mesh": mesh, "pipeline": pipeline})
    for rule in (_batch, _stages, _schedule):
        rule(plan, target)
    if any(stage.sharding for stage in stages):
        refuse_in_roles(plan, target.graph)
        _experts(plan, target)
        _context(plan, target)
        check_offload(plan)
    seen: list[Plan] = []
    for index, stage in enumerate(stages):
        if not stage.sharding:
            divide_batch(plan, index)
            if (each := stage_plan(plan, index)) not in seen:
                seen.append(each)
                _check_stage(each, replace(target, world_size=stage.num_devices * len(stages)), index)
    return plan


def _check_stage(plan: Plan, target: Workload, index: int) -> None:
    """Raises UserError where the uniform plan that repeats a stage is impossible."""
    try:
        check(plan, target)
    except UserError as error:
        raise UserError(f"plan.stages[{index}]: {error}") from None


def schedule_of(layout: Layout, training: Training) -> Schedule:
    """The layout's action table: its own CSV, or that of its named schedule for its durations of F, I and W.

    Raises UserError for a table that cannot run or a shape the schedule does not allow.
    """
    table = _whole_table(layout, training)
    return slice_schedule(table, len(layout.slices)) if layout.slices else table


def _whole_table(layout: Layout, training: Training) -> Schedule:
    """The action table of whole microbatches."""
    if layout.actions:
        return from_csv(layout.actions, name=CUSTOM)
    microbatches, pp, vpp = layout.num_microbatches(training.global_batch), layout.mesh.pp, int(layout.vpp)
    return make_schedule(layout.schedule, pp, microbatches, vpp, costs=layout.pass_costs or EVEN_COSTS)


def _recompute(plan: Plan, target: Workload) -> None:
    """A choice layer by layer covers all layers, and layers that are recomputed together are on one stage."""
    policy, count = plan.memory.recompute, len(target.graph.layers)
    if (chosen := chosen_layers(policy)) is None:
        return
    if chosen != count:
        raise UserError(f"plan.recompute = {policy}: chooses for {chosen} layers: allowed: {count}")
    last = -1
    for layers in stage_layers(plan, count):
        first, last = last + 1, last + layers
        for layer in (first, last) if layers else ():
            at, size = segment(of_layer(policy, layer))
            if (layer == first and at) or (layer == last and at != size - 1):
                raise UserError(
                    f"plan.recompute = {policy}: layer {layer} is recomputed with layers of another stage: allowed: "
                    "segments within a stage"
                )


def _refuse_devices(plan: Plan, target: Workload) -> None:
    """Raises UserError unless the mesh has as many ranks as there are devices."""
    mesh, world_size = plan.mesh, target.world_size
    model = mesh.tp * mesh.cp * mesh.pp
    factors = f"tp x cp x pp = {mesh.tp} x {mesh.cp} x {mesh.pp} = {model}"
    if world_size % model:
        raise UserError(f"plan: {factors} does not divide the {world_size} devices; allowed: a divisor")
    left = world_size // model
    if mesh.dp not in (None, left):
        raise UserError(
            f"plan.dp = {mesh.dp}: {factors} on {world_size} devices leaves {left}; allowed: {left}, or no dp"
        )


def _tensor(plan: Plan, target: Workload) -> None:
    sequence_parallel = bool(plan.tensor_parallel.sequence_parallel)
    refuse_tensor_parallel(plan.mesh.tp, target, sequence_parallel=sequence_parallel)


def _context(plan: Plan, target: Workload) -> None:
    """Sequences divide into the chunks of every rank, heads into the Ulysses ranks."""
    cp, choice, seq_len = plan.mesh.cp, plan.context_parallel, target.training.seq_len
    if cp > 1 and target.graph.has_state:
        raise UserError(f"plan.cp = {cp}: {target.graph.name} carries states along the sequence; allowed: 1")
    rows = plan.mesh.tp if plan.tensor_parallel.sequence_parallel else 1
    pieces = lcm(rows, 2 if choice.cp_balance == "zigzag" and choice.cp_method != "ulysses" else 1)
    if cp > 1 and seq_len % (cp * pieces):
        allowed = "1" if seq_len % pieces else format_divisors(seq_len // pieces)
        raise UserError(
            f"plan.cp = {cp}: seq_len = {seq_len} does not divide into {cp} x {pieces} equal pieces "
            f"(tp = {plan.mesh.tp}, cp_balance = {choice.cp_balance}); allowed: {allowed}"
        )
    if choice.cp_method == "ulysses" and plan.ulysses != cp:
        raise UserError(
            f"plan.ulysses = {plan.ulysses}: cp_method ulysses takes all of cp = {cp}; allowed: {cp}, or cp_method "
            "ring or all_gather for the hybrid"
        )
    if cp % plan.ulysses:
        raise UserError(f"plan.ulysses = {plan.ulysses}: does not divide cp = {cp}; allowed: {format_divisors(cp)}")
    heads = target.graph.dims["heads"] // plan.mesh.tp
    kv_heads = max(target.graph.dims["kv_heads"] // plan.mesh.tp, 1)
    if heads % plan.ulysses or (kv_heads % plan.ulysses and plan.ulysses % kv_heads):
        raise UserError(
            f"plan.ulysses = {plan.ulysses}: splits the heads of a rank, which has {heads} ({kv_heads} key-value); "
            f"allowed: {format_divisors(gcd(cp, heads))}"
        )


def _experts(plan: Plan, target: Workload) -> None:
    """Experts divide over ep ranks and their ffn over etp; ep x etp divides the ranks of a stage."""
    mesh, dims, etp = plan.mesh, target.graph.dims, plan.mesh.expert_tensor_parallel
    if not target.graph.is_mixture:
        for axis, size in (("ep", mesh.ep), ("etp", mesh.etp or 1)):
            if size > 1:
                raise UserError(f"plan.{axis} = {size}: {target.graph.name} has no experts; allowed: 1")
        return
    if replicas_are_independent(plan):
        raise UserError(
            f"plan.sync = {plan.data_parallel.sync}: experts are shared among replicas, which therefore step together; "
            "allowed: bsp without servers"
        )
    ranks = mesh.tp * mesh.cp * mesh.replicas
    if dims["experts"] % mesh.ep:
        raise UserError(
            f"plan.ep = {mesh.ep}: does not divide the {dims['experts']} experts; allowed: "
            f"{format_divisors(dims['experts'])}"
        )
    if mesh.tp % etp or dims["expert_ffn"] % etp:
        raise UserError(
            f"plan.etp = {etp}: does not divide tp = {mesh.tp} and the experts' ffn size {dims['expert_ffn']}; "
            f"allowed: {format_divisors(gcd(mesh.tp, dims['expert_ffn']))}"
        )
    if ranks % (mesh.ep * etp):
        raise UserError(
            f"plan.ep = {mesh.ep}: ep x etp = {mesh.ep} x {etp} does not divide the tp x cp x dp = {ranks} ranks of a "
            f"stage; allowed: {format_divisors(gcd(ranks // etp, dims['experts']))}"
        )
    if mesh.tp > 1 and not plan.tensor_parallel.sequence_parallel and (mesh.ep > 1 or etp < mesh.tp):
        raise UserError(
            "plan.sequence_parallel = false: experts with tp > 1 take each token from one rank; allowed: true, or "
            "ep = 1 with etp = tp"
        )


def _batch(plan: Plan, target: Workload) -> None:
    dp, micro_batch, batch = plan.mesh.replicas, plan.micro_batch, target.training.global_batch
    if batch % dp:
        raise UserError(f"plan.dp = {dp}: does not divide global_batch = {batch}; allowed: a divisor of it")
    if batch // dp % micro_batch:
        raise UserError(
            f"plan.micro_batch = {micro_batch}: does not divide the {batch // dp} sequences of a rank "
            f"(global_batch {batch} / dp {dp}); allowed: a divisor of {batch // dp}"
        )


def _stages(plan: Plan, target: Workload) -> None:
    pipeline, pp = plan.pipeline, plan.mesh.pp
    stages, layers = pp * pipeline.vpp, len(target.graph.layers)
    if stages > layers + 2:
        raise UserError(
            f"plan.pp = {pp}: pp x vpp = {pp} x {pipeline.vpp} = {stages} stages for {layers} layers; "
            f"allowed: at most {layers + 2}, with embedding and head in stages of their own"
        )
    given = pipeline.layers
    if given and len(given) != stages:
        raise UserError(f"plan.layers: {len(given)} stages; allowed: one number for each of pp x vpp = {stages}")
    if given and sum(given) != layers:
        raise UserError(f"plan.layers: {sum(given)} layers in all; allowed: the model's {layers}")
    if given and 0 in given[1:-1]:
        raise UserError(f"plan.layers: stage {given.index(0, 1)} has none; allowed: 0 in the first and the last")


def _schedule(plan: Plan, target: Workload) -> None:
    microbatches = plan.num_microbatches(target.training.global_batch)
    stages = plan.mesh.pp * plan.pipeline.vpp
    if stages * microbatches > MAX_PASSES:
        raise UserError(
            f"plan.micro_batch = {plan.micro_batch}: {stages} stages x {microbatches} microbatches; allowed: "
            f"{MAX_PASSES} in all, larger micro-batches or more data parallelism"
        )
    table = schedule_of(Layout.of(plan), target.training)
    passes = microbatches * len(plan.pipeline.slices or (0,))
    shape = {"ranks": plan.mesh.pp, "stages": stages, "microbatches": passes}
    for what, wanted in shape.items():
        number = getattr(table, f"num_{what}")
        if number != wanted:
            raise UserError(f"plan.actions: the action table has {number} {what}; allowed: {wanted}")
    if table.num_mirrored and plan.schedule == CUSTOM:
        raise UserError(
            "plan.actions: microbatches enter at both ends of the pipeline; allowed: at the first rank, or "
            f"plan.schedule = {', '.join(HALF_SCHEDULES)}"
        )
    if table.num_mirrored and replicas_are_independent(plan):
        raise UserError(
            f"plan.sync = {plan.data_parallel.sync}: {plan.schedule} has two copies of every stage, which reduce "
            "inside the step; allowed: bsp without servers"
        )


def _data(plan: Plan, target: Workload) -> None:
    data, mesh = plan.data_parallel, plan.mesh
    width = mesh.gradient_ranks
    if data.kind == "single_process":
        _single_process(plan, target)
    if data.kind == "fsdp" and data.zero < 2 and width > 1:
        raise UserError(f"plan.kind = fsdp with zero = {data.zero}: fsdp shards gradients; allowed: zero 2 or 3")
    if data.hsdp > 1 and not data.zero:
        raise UserError(f"plan.hsdp = {data.hsdp}: makes replicas of sharded states; allowed: with zero 1, 2 or 3")
    if replicas_are_independent(plan) and num_replicas(plan) == 1:
        raise UserError(
            f"plan.sync = {data.sync}: one replica of the states has nobody to cooperate with; allowed: zero 0 "
            "with dp > 1, or hsdp > 1"
        )
    if replicas_are_independent(plan) and mesh.ep > 1:
        raise UserError(
            f"plan.sync = {data.sync}: ep = {mesh.ep} spreads the experts of a step over ranks that would step on "
            "their own; allowed: ep 1"
        )
    if replicas_are_independent(plan) and data.kind == "single_process":
        raise UserError(f"plan.sync = {data.sync}: single_process drives all devices in step; allowed: bsp")
    if width % data.hsdp:
        raise UserError(f"plan.hsdp = {data.hsdp}: does not divide dp = {width}; allowed: a divisor of it")
    copies = mesh.expert_data_parallel
    if target.graph.is_mixture and copies % data.hsdp:
        raise UserError(
            f"plan.hsdp = {data.hsdp}: does not divide the {copies} ranks that hold the same experts; allowed: "
            f"{format_divisors(gcd(width, copies))}"
        )


def _whole_matrices(plan: Plan) -> None:
    """Optimizers with states by the shape of matrices need whole matrices, which parameter servers do not have."""
    optimizer = plan.numerics.optimizer
    if OPTIMIZERS[optimizer].by_shape and replicas_are_independent(plan):
        raise UserError(
            f"plan.optimizer = {optimizer}: its states go by the shape of matrices, which parameter servers cut; "
            f"allowed there: {BY_VALUE}"
        )


def _single_process(plan: Plan, target: Workload) -> None:
    mesh, zero = plan.mesh, plan.data_parallel.zero
    others: dict[str, Any] = {"tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp}
    for axis, size in others.items():
        if size > 1:
            raise UserError(f"plan.{axis} = {size}: single_process is pure data parallelism; allowed: 1")
    if zero:
        raise UserError(f"plan.zero = {zero}: single_process keeps all states on every device; allowed: 0")
    if target.world_size > target.devices_per_node:
        raise UserError(
            f"plan.kind = single_process: {target.world_size} devices; allowed: those of one node, "
            f"{target.devices_per_node}"
        )


_RULES: dict[str, Callable[[Plan, Workload], None]] = {
    "slices": check_slices,
    "context": _context,
    "experts": _experts,
    "data": _data,
    "early": lambda plan, _: check_early(plan),
    "offload": lambda plan, _: check_offload(plan),
    "optimizer": lambda plan, _: _whole_matrices(plan),
}
