"""Rules that several targets share: each yields what cannot be expressed of a plan, with the reason."""

from collections.abc import Collection, Iterable, Iterator

from simpar.architectures.details import Caps, Scales
from simpar.errors import UserError
from simpar.frameworks.architecture import Architecture
from simpar.frameworks.subject import Loss, Subject, idle_choices
from simpar.plan.choices import BY_STACK

SYNC_EACH = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
"""The Trainer's argument without which FSDP keeps whole gradients until the last of several microbatches."""


def reduces_each(s: Subject) -> bool:
    """Whether sharded gradients of several microbatches are reduced after every one, and do not wait for the last."""
    return "defer_grad_reduce" not in idle_choices(s.plan, s.training) and not s.plan.data_parallel.defer_grad_reduce


def no_axis(s: Subject, axis: str, reason: str) -> Iterator[Loss]:
    """An axis of the mesh that the target does not have."""
    size = getattr(s.plan.mesh, axis)
    if size > 1:
        yield Loss(axis, size, reason, decided_by=(axis,))


def no_lone_shards(s: Subject, instead: str) -> Iterator[Loss]:
    """Replicas of sharded states that are one rank each, which the target runs as ``instead``."""
    data = s.plan.data_parallel
    if data.zero and data.hsdp > 1 and s.dp * s.plan.mesh.cp == data.hsdp:
        yield Loss("hsdp", data.hsdp, f"replicas of one rank shard nothing, and run {instead}: zero 0")


def only_rank_orders(s: Subject, *orders: str) -> Iterator[Loss]:
    """The rank orders that a target can lay out, such as "tp-cp-dp-pp"; axes of size 1 may be anywhere."""
    order = _trimmed(s, s.plan.mesh.order)
    if order not in {_trimmed(s, known.split("-")) for known in orders}:
        allowed = " or ".join(orders)
        yield Loss("rank_order", "-".join(s.plan.mesh.order), f"ranks are laid out {allowed}, fastest first")


def _trimmed(s: Subject, order: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in order if int(getattr(s.plan.mesh, axis) or 1) > 1)


def only_schedules(s: Subject, names: Iterable[str]) -> Iterator[Loss]:
    """The schedules that a target has; without a pipeline any schedule passes (see :func:`no_chunks_alone`)."""
    if s.plan.mesh.pp == 1:
        return
    known = tuple(names)
    if s.plan.schedule not in known:
        reason = f"the target has {', '.join(known) or 'no pipeline'}"
        yield Loss("schedule", s.plan.schedule, reason, decided_by=("schedule", "pp"))


def no_chunks_alone(s: Subject) -> Iterator[Loss]:
    """Chunks of one stage alone, whose microbatches take turns: no framework has them.

    Schedules without chunks are all the same there, gradient accumulation.
    """
    if s.plan.mesh.pp == 1 and s.layout.vpp > 1 and not s.plan.pipeline.stages:
        reason = "one stage runs its microbatches one after the other; chunks need pp above 1"
        yield Loss("schedule", s.plan.schedule, reason)


def chosen_losses(s: Subject, **reasons: str) -> Iterator[Loss]:
    """Fields that are a loss if the plan chose them against its stack's habit."""
    for section in BY_STACK:
        part = getattr(s.plan, section)
        for name, reason in reasons.items():
            if s.chose(name) and hasattr(part, name):
                yield Loss(name, getattr(part, name), reason)


def plain_details(
    s: Subject,
    *,
    ropes: Collection[str] = ("default",),
    fraction: bool = False,
    neighbours: bool = False,
    eps: float | None = None,
) -> Iterator[Loss]:
    """Details of a model that a target of plain decoders cannot express.

    The target scales rotary positions by one of ``ropes``. It rotates a ``fraction`` of a head or only all of it, and
    pairs halves or ``neighbours``. Its norms add ``eps`` (None: any).
    """
    details = s.graph.details
    positions, rope = details.positions, details.positions.rope
    if rope.kind not in ropes:
        yield Loss("rope_scaling", rope.kind, f"the target knows {', '.join(ropes)}")
    if rope.fraction != 1.0 and not fraction:
        yield Loss("partial_rotary_factor", rope.fraction, "heads turn whole")
    if rope.interleaved and not neighbours:
        yield Loss("model", "neighbouring features that turn together", "halves of a head turn together")
    if positions.alibi or positions.windowed not in (None, rope):
        yield Loss("model", "positions by distance or by layer", "all layers have one rotary base")
    if details.scales != Scales() or details.caps != Caps() or details.norm_offset:
        yield Loss("model", "scales, caps or shifted norms", "the target builds plain decoders")
    if eps is not None and details.norm_eps != eps:
        yield Loss("rms_norm_eps", details.norm_eps, f"norms add {eps:g}")


def no_single_process(s: Subject) -> Iterator[Loss]:
    """Targets that start one process per device."""
    if s.plan.data_parallel.kind == "single_process":
        yield Loss("kind", "single_process", "the target runs a process for every device")


def no_replicas_of_shards(s: Subject) -> Iterator[Loss]:
    """Targets without hybrid sharding."""
    data = s.plan.data_parallel
    if data.hsdp > 1:
        yield Loss("hsdp", data.hsdp, "there are no replicas of sharded states")


ROTATIONS = {"all_gather": "allgather", "ring": "alltoall"}
"""Methods of PyTorch's context parallelism, by the plan's ``cp_method``."""


def method_of(word: object, source: str, name: str) -> str:
    """The plan's ``cp_method`` for a word of :data:`ROTATIONS`. Raises UserError naming file, option and value."""
    result = next((ours for ours, theirs in ROTATIONS.items() if theirs == word), None)
    if result is None:
        raise UserError(f"{source}: {name} = {word}: allowed: {', '.join(ROTATIONS.values())}")
    return result


def context_parallel(
    s: Subject, methods: Iterable[str], balances: Iterable[str], *, hybrid: bool, states: bool = False
) -> Iterator[Loss]:
    """Context parallelism that a target has: methods, token assignments, the hybrid with Ulysses, and of ``states``."""
    choice = s.plan.context_parallel
    if s.plan.mesh.cp == 1:
        return
    if s.graph.has_mixers and not states:
        yield Loss("cp", s.plan.mesh.cp, "the target passes no states of state-space layers on")
    for name, value, known in (
        ("cp_method", choice.cp_method, tuple(methods)),
        ("cp_balance", choice.cp_balance, tuple(balances)),
    ):
        if value not in known:
            yield Loss(name, value, f"the target has {', '.join(known)}")
    if choice.cp_method != "ulysses" and s.layout.ulysses_ranks > 1 and not (hybrid and choice.cp_method == "ring"):
        yield Loss("ulysses", s.layout.ulysses_ranks, "the target exchanges heads in all of cp, or not")


def offload_of_shards(s: Subject) -> Iterator[Loss]:
    """Targets that offload as fully_shard does: parameters, gradients and states together, or nothing."""
    offload = s.plan.offload
    for name, value, lost in (
        ("offload_optimizer", offload.offload_optimizer, offload.offload_optimizer != offload.offload_parameters),
        ("offload_parameters", offload.offload_parameters, offload.offload_parameters == "nvme"),
    ):
        if lost or (value != "none" and s.plan.data_parallel.zero < 2):
            yield Loss(name, value, "fully_shard offloads parameters and states of zero 2 and 3 together, to memory")
    if offload.offload_activations:
        yield Loss("offload_activations", offload.offload_activations, "activations stay on the device")


def no_experts(style: Architecture) -> Iterator[Loss]:
    """Targets whose exporter builds only dense models."""
    if style.experts:
        yield Loss("model", f"experts in {sum(style.experts)} layers", "the exporter builds dense models for it")
