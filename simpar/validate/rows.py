"""Measured runs as simulation inputs: a row of a table becomes a model, a cluster and a plan, or a reason why not.

Only the columns of :mod:`simpar.validate.columns` are read, word by word; labels and notes never are. Blank means
unknown: if a plan needs a value that the row lacks, that is a reason, and never a guess. Only settings over which runs
are tuned may stay open (:mod:`simpar.validate.tuned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from simpar.errors import UserError
from simpar.models.graph import ModelGraph
from simpar.models.recompute import FULL, NONE, SELECTIVE, every, of_modules
from simpar.models.training import Documents, Training
from simpar.plan.choices import written
from simpar.plan.plan import Plan
from simpar.plan.schedules import known_name, natural_vpp, usual_schedule
from simpar.profiles import is_file
from simpar.stacks.stack import load_stack
from simpar.units import GB, GIB
from simpar.validate.cells import (
    Row,
    Unmodelled,
    beneath,
    checked,
    measurement,
    number,
    one_of,
    plain,
    text,
    whole,
)
from simpar.validate.columns import PLAN_COLUMNS
from simpar.validate.devices import hardware_of, named_profile
from simpar.validate.models import graph_of

PeakCounts = Literal["allocated", "reserved", "device"]
"""What a peak counts: tensors, memory that the allocator reserves, or all memory used on the device (nvidia-smi)."""
MEGATRONS = frozenset(
    ["megatron", "megatron-sc21", "megatron-22", "megatron-deepspeed", "nemo", "nemo-24", "deepspeed-21"]
)
LOG_FIRST_RANK = frozenset(["nanotron"])
"""Stacks that log the memory of rank 0 only, on the first stage [nanotron, ``logging/base.py: log_memory``]."""
TUNED = "tuned"
"""The word for a setting that is not known because the run was tuned over it."""
FREE_BATCH = "global_batch"
"""The name, among open settings, of a batch that follows from the micro-batch."""
UNNAMED = "an unnamed stack"
USUAL_RECOMPUTE = {"torchtitan": SELECTIVE, "maxtext": FULL, "automodel": FULL}
"""What recipes of stacks recompute where a row does not say."""
OTHERS_OF_PLAN = tuple(name for name in dict.fromkeys(PLAN_COLUMNS.values()) if name not in ("dp", "ep"))
NO, YES = ("no", "off", "false", "0"), ("yes", "on", "true", "1")
_RECOMPUTE = dict.fromkeys(NO, NONE) | dict.fromkeys(YES, FULL) | {"every other layer": every(2)}
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8": "fp8"}
_SHARDING = {
    **{f"{word}{stage}": stage for word in ("", "zero", "stage", "zerostage") for stage in (0, 1, 2, 3)},
    **dict.fromkeys(("ddp", "none", "no", "off", "false"), 0), "distributedoptimizer": 1,
}  # fmt: skip
"""Words for sharding, without what stands between letters, and their ZeRO stages."""


@dataclass(frozen=True)
class Case:
    """One measured run as simulation input.

    ``open`` names settings that its row does not give and a tuner would choose. ``hardware_changes`` and
    ``stack_changes`` replace fields of the profiles, by dotted key; the former those of one node. ``supposed`` lists
    other assumptions.
    """

    graph: ModelGraph
    hardware: str
    num_devices: int
    devices_per_node: int
    training: Training
    plan: Mapping[str, object]
    stack: str
    stack_changes: Mapping[str, object]
    fabric: Mapping[str, float]
    open: tuple[str, ...] = ()
    hardware_changes: Mapping[str, object] = field(default_factory=dict)
    supposed: tuple[str, ...] = ()

    @property
    def first_rank_reports(self) -> bool:
        """Whether its memory is rank 0's, not the fullest rank's."""
        return self.stack in LOG_FIRST_RANK

    @property
    def read_as(self) -> str:
        """What a row's cluster and software were read as, and what was assumed."""
        known = self.stack_changes.get("name")
        nearest = f", the nearest to {known}" if known else ""
        changes = " and ".join(f"{key} {value}" for key, value in self.hardware_changes.items())
        own = f" with {changes}" if changes else ""
        return ", ".join([f"{self.hardware}{own}", f"stack {self.stack}{nearest}", *self.supposed])


@dataclass(frozen=True)
class Measured:
    """The measurements of a row; None for those it does not have.

    ``peak_counts`` says which memory the peak counts.
    """

    step_time_s: float | None
    peak_memory_bytes: float | None
    static_memory_bytes: float | None
    peer_step_time_s: float | None
    peer_memory_bytes: float | None
    fits: bool | None
    peak_counts: PeakCounts = "reserved"


def case(row: Row, on: tuple[str, int] | None = None) -> Case:
    """The simulation input of a row; ``on`` replaces its profile and devices per node.

    Raises Unmodelled with the reason.
    """
    if reason := text(row, "not_modelled"):
        raise Unmodelled(reason)
    row = canonical(row)
    graph, devices = graph_of(row), whole(row, "n_gpus")
    hardware, per_node = on or _hardware(row)
    per_node = min(whole(row, "gpus_per_node", per_node), devices)
    if devices % per_node:
        raise Unmodelled("n_gpus is not a multiple of gpus_per_node")
    stack, stack_changes = _stack(row)
    plan = _plan(row, devices, per_node, stack, mixture=graph.is_mixture)
    profile = named_profile(hardware)
    changes = beneath(row, "hardware").items()
    training = Training(
        seq_len=whole(row, "seq_len"),
        global_batch=_global_batch(row, plan, devices),
        documents=_documents(row),
    )
    return Case(
        graph, hardware, devices, per_node, training, plan, stack, stack_changes, _fabric(row),
        _open(row, plan, mixture=graph.is_mixture),
        {key: checked(profile, key, value, f"hardware.{key}") for key, value in changes},
        (assumed,) if (assumed := text(row, "assumed")) else (),
    )  # fmt: skip


def canonical(row: Row) -> Row:
    """The row with columns of a plan's choices under their own names. Raises Unmodelled for two that differ."""
    found: dict[str, str] = {}
    for column, value in row.items():
        name = PLAN_COLUMNS.get(column, column)
        if (
            name in PLAN_COLUMNS.values()
            and text(found, name) not in ("", text(row, column))
            and text(row, column)
        ):
            raise Unmodelled(f"{column} = {value} and {name} = {found[name]} mean the same; give one")
        found[name] = value if text(row, column) else found.get(name, "")
    return found


# --- hardware and software -------------------------------------------------------------------------------------


def _hardware(row: Row) -> tuple[str, int]:
    """Profile and devices of a node."""
    name = hardware_of(row)
    return name, named_profile(name).devices_per_node


def _stack(row: Row) -> tuple[str, dict[str, Any]]:
    """The stack profile of a row, and fields that replace the profile's.

    A blank one is Megatron's if tensors or stages are split, else FSDP's; no measured run supports it.
    """
    said = text(row, "stack")
    splits = whole(row, "tp", 1) * whole(row, "pp", 1) > 1
    changes: dict[str, Any] = {} if said else {"name": UNNAMED}
    name = said or ("megatron" if splits else "fsdp")
    try:
        stack = load_stack(name if is_file(name) else name.lower())
    except UserError as error:
        raise Unmodelled(str(error).partition("\n")[0]) from None
    if (kernel := text(row, "attention_kernel").lower()) and (
        kernel != "flash" or stack.fusion.attention == "unfused"
    ):
        changes["fusion.attention"] = checked(stack, "fusion.attention", kernel, "attention_kernel")
    for key, value in beneath(row, "stack").items():
        changes[key] = checked(stack, key, value, f"stack.{key}")
    return name if is_file(name) else stack.name, changes


# --- the plan --------------------------------------------------------------------------------------------------


def _plan(row: Row, devices: int, per_node: int, stack: str, *, mixture: bool) -> dict[str, Any]:
    """The plan's fields for a row's run. Raises Unmodelled with the reason."""
    if not text(row, "tp") and not text(row, "pp") and stack in MEGATRONS and devices > 1:
        raise Unmodelled("tp and pp not published")
    tp, pp, cp = whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "cp", 1)
    replicas, rest = divmod(devices, tp * cp * pp)
    if rest:
        raise Unmodelled("tp x cp x pp does not divide n_gpus")
    if whole(row, "dp", replicas) != replicas:
        raise Unmodelled("tp x cp x pp x dp is not n_gpus")
    named = text(row, "schedule").lower()
    schedule = usual_schedule() if named in ("", "none", *NO) else known_name(named) or named
    vpp = 1 if pp == 1 or _is_tuned(row, "vpp") else whole(row, "vpp", _chunks(schedule))
    plan: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "micro_batch": _micro_batch(row, replicas) or 1,
        "recompute": _recompute(row, stack), "precision": _precision(row),
        "schedule": usual_schedule(vpp) if schedule in (usual_schedule(1), usual_schedule(2)) else schedule,
    }  # fmt: skip
    plan |= _sharding(row, replicas * cp, per_node, stack)
    if mixture or whole(row, "ep", 1) > 1:
        plan["ep"] = whole(row, "ep", 1)
    for name in OTHERS_OF_PLAN:
        value = plain(row, name)
        if value is not None and name not in plan and not _is_tuned(row, name):
            plan |= written(name, tuple(value) if isinstance(value, list) else value)
    if tp == 1 and plan.get("sequence_parallel"):
        plan["sequence_parallel"] = False
    try:
        Plan.model_validate(plan)
    except ValidationError as error:
        first = error.errors()[0]
        raise Unmodelled(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}") from None
    return plan


def _is_tuned(row: Row, name: str) -> bool:
    return text(row, name).lower() == TUNED


def _chunks(schedule: str) -> int:
    """Chunks per rank of a schedule where a row does not say; 1 for a name that no schedule has."""
    return (
        natural_vpp(schedule)
        if known_name(schedule) and schedule not in (usual_schedule(1), usual_schedule(2))
        else 1
    )


def _micro_batch(row: Row, replicas: int) -> int | None:
    """Sequences of a microbatch: printed, or the batch over replicas and microbatches; None where it is open."""
    if text(row, "micro_batch") and not _is_tuned(row, "micro_batch"):
        return whole(row, "micro_batch")
    batch, accumulation = number(row, "global_batch_seqs"), number(row, "grad_accum")
    if (
        batch
        and accumulation
        and batch % (replicas * accumulation) == 0
        and not _is_tuned(row, "micro_batch")
    ):
        return int(batch // (replicas * accumulation))
    return None


def _recompute(row: Row, stack: str) -> str:
    word = text(row, "recompute").lower()
    if not word or word == TUNED:
        return NONE if word else USUAL_RECOMPUTE.get(stack, NONE)
    if word.startswith("selective modules:"):
        names = word.partition(":")[2].replace(",", " ").split()
        return of_modules(names)
    return _RECOMPUTE.get(word, word)


def _precision(row: Row) -> str:
    word = text(row, "precision").lower().replace(" ", "_")
    return _PRECISIONS.get(word, word) or "bf16"


def _sharding(row: Row, ranks: int, per_node: int, stack: str) -> dict[str, int]:
    """ZeRO stage and replicas of shards, over the ``ranks`` that share parameters. Raises Unmodelled."""
    if text(row, "zero"):
        return {"zero": int(number(row, "zero") or 0)}
    words = text(row, "zero_stage_or_fsdp").lower()
    plain_word = "".join(each for each in words if each.isalnum())
    kind, degree = plain_word.rstrip("0123456789"), plain_word.lstrip("abcdefghijklmnopqrstuvwxyz")
    if ranks == 1:
        return {"zero": 0}
    if not words:  # today's recipes of Megatron-LM shard the optimizer
        return {"zero": int(stack == "megatron")}
    if plain_word in _SHARDING:
        return {"zero": _SHARDING[plain_word]}
    if kind == "hybridshard":
        return {"zero": 3, "hsdp": max(1, ranks // per_node)}
    if kind != "fsdp":
        raise Unmodelled(
            f"zero_stage_or_fsdp {words!r} is not a known word; allowed: 0 to 3, ZeRO-1, FSDP, FSDP 64, DDP, "
            "distributed optimizer, hybrid shard; or the columns zero and hsdp"
        )
    shards = int(degree or ranks)
    if shards < 1 or ranks % shards:
        raise Unmodelled("FSDP degree does not divide dp")
    return {"zero": 3, "hsdp": ranks // shards}


def _open(row: Row, plan: Mapping[str, Any], *, mixture: bool) -> tuple[str, ...]:
    """Settings that a tuner would choose: those that say so, and the micro-batch and what else is blank with it."""
    tuned = [name for name in dict.fromkeys(PLAN_COLUMNS.values()) if _is_tuned(row, name)]
    replicas = whole(row, "n_gpus") // (plan["tp"] * plan["pp"] * plan["cp"])
    if "micro_batch" not in tuned and _micro_batch(row, replicas) is not None:
        return tuple(tuned)
    if mixture:
        raise Unmodelled("micro_batch not published")  # dispatch depends on the micro-batch
    tuned.append("micro_batch")
    if number(row, "global_batch_seqs") is None and number(row, "grad_accum") is None:
        tuned.append(FREE_BATCH)
    if not text(row, "vpp") and plan["pp"] > 1:
        tuned.append("vpp")
    if not text(row, "recompute") and plan["recompute"] == NONE:
        tuned.append("recompute")
    return tuple(dict.fromkeys(tuned))


def _global_batch(row: Row, plan: Mapping[str, Any], devices: int) -> int:
    """Sequences of a step: as printed, or from the plan's microbatches."""
    if text(row, "global_batch_seqs"):
        return whole(row, "global_batch_seqs")
    once = 1 if plan["pp"] == 1 else None  # without a pipeline, assume one microbatch
    replicas = devices // (plan["tp"] * plan["cp"] * plan["pp"])
    return int(replicas * plan["micro_batch"] * whole(row, "grad_accum", once))


def _documents(row: Row) -> Documents | None:
    """The lengths of documents: their mean in tokens, or fields of ``training.documents`` as JSON."""
    given = plain(row, "documents")
    if given is None:
        return None
    try:
        return Documents.model_validate(given if isinstance(given, Mapping) else {"mean": given})
    except ValidationError as error:
        raise Unmodelled(f"documents = {given!r}: {error.errors()[0]['msg']}") from None


# --- what was measured -----------------------------------------------------------------------------------------

_FABRIC = (
    ("all_reduce", "fabric_allreduce_gbs"),
    ("all_gather", "fabric_allgather_gbs"),
    ("intra_all_reduce", "intra_allreduce_gbs"),
    ("intra_all_gather", "intra_allgather_gbs"),
)


def _fabric(row: Row) -> dict[str, float]:
    """Bus bandwidths measured inside the job in bytes/s: over all ranks, and "intra" within a node.

    They are those of all-reduce; the all-gather tests in such tables copy through lists and read low.
    """
    known = {name: number(row, column) for name, column in _FABRIC}
    return {name: value * GB for name, value in known.items() if value is not None and value > 0}


def measured(row: Row) -> Measured:
    """The measurements of a row, in SI units. Raises Unmodelled for values that cannot be."""

    def memory(name: str) -> float | None:
        value = measurement(row, name)
        return None if value is None else value * GIB

    counts: dict[str, PeakCounts] = {"allocated": "allocated", "reserved": "reserved", "device": "device"}
    return Measured(
        step_time_s=_step_time(row),
        peak_memory_bytes=memory("peak_mem_gib"),
        static_memory_bytes=memory("static_mem_gib"),
        peer_step_time_s=measurement(row, "peer_pred_iteration_time_s"),
        peer_memory_bytes=memory("peer_pred_mem_gib"),
        fits=one_of(row, "status", {"ok": True, "oom": False}, True),
        peak_counts=one_of(row, "peak_mem_counts", counts, "reserved"),
    )


def _step_time(row: Row) -> float | None:
    """Seconds of a step: published, or from tokens per second and device."""
    known = measurement(row, "iteration_time_s")
    if known is not None:
        return known
    rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
    devices, tokens = number(row, "n_gpus"), number(row, "seq_len")
    return batch * tokens / (rate * devices) if rate and batch and devices and tokens else None
