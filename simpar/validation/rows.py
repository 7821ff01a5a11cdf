"""Measured runs as simulation inputs: a row of a table becomes a model, a cluster and a plan, or a reason why not.

Only the columns of :mod:`simpar.validation.columns` are read, word by word; labels and notes never are. Blank means
unknown: if a plan needs a value that the row lacks, that is a reason, and never a guess. Only settings over which runs
are tuned may stay open (:mod:`simpar.validation.open_settings`).
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from pydantic import ValidationError

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import FULL, NONE, SELECTIVE, of_modules, policy_of_every
from simpar.architectures.training import Documents, Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.deepspeed_states import states_of_deepspeed
from simpar.hardware.profile import ClusterProfile
from simpar.plan.choices import to_file_value
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, default_schedule, natural_vpp, schedule_named
from simpar.precisions import LONG_NAMES
from simpar.profiles import is_file
from simpar.stacks.stack import load_stack
from simpar.units import GB, GIB
from simpar.validation.cells import (
    Row,
    Unmodelled,
    check_value,
    measurement,
    number,
    plain,
    read_count,
    read_word,
    text,
    values_with_prefix,
)
from simpar.validation.columns import PLAN_COLUMNS
from simpar.validation.devices import hardware_of, load_named_profile, unread_of_network
from simpar.validation.models import graph_of
from simpar.validation.networks import network_of, sockets_of
from simpar.validation.overlaps import expert_overlap, names_plain_exchange
from simpar.validation.sharding import read_sharding
from simpar.validation.stacks import is_of_profile, nearest_stack

# The plan of a measured run from the columns of its row.
MEGATRONS = frozenset(
    ["megatron", "megatron-sc21", "megatron-22", "megatron-deepspeed", "nemo", "nemo-24", "deepspeed-21"]
)
TUNED = "tuned"
"""The word for a setting that is not known because the run was tuned over it."""
FREE_BATCH = "global_batch"
"""The name, among open settings, of a batch that follows from the micro-batch."""
USUAL_RECOMPUTE = {"torchtitan": SELECTIVE, "maxtext": FULL, "automodel": FULL}
"""What recipes of stacks recompute where a row does not say."""
FUSED_SORT = "fused_permutation"
"""Megatron Core sorts routed tokens by Python unless told otherwise; rows with the all-to-all alone are read so."""
OTHERS_OF_PLAN = tuple(name for name in dict.fromkeys(PLAN_COLUMNS.values()) if name not in ("dp", "ep"))
NO, YES = ("no", "off", "false", "0"), ("yes", "on", "true", "1")
MINIMAL = of_modules(["core_attn", "layernorm"])
"""MaxText's remat policy of that name keeps all products with weights."""
_RECOMPUTE = (
    {"minimal": MINIMAL}
    | dict.fromkeys(NO, NONE)
    | dict.fromkeys(YES, FULL)
    | {"every other layer": policy_of_every(2)}
)
_NF4 = ("nf4", "qlora", "bnb_4bit")
"""Words for frozen weights in 4 bits, beside which products are in bf16."""
_UPDATES = {f"adamw_torch{end}": kernels for end, kernels in (("", "foreach"), ("_fused", "fused"))}
"""transformers' names of torch's AdamW, and its kernels on CUDA."""
_PRECISIONS = {**LONG_NAMES, "float8": "fp8"}


def canonical(row: Row) -> Row:
    """The row with columns of a plan's choices under their own names. Raises Unmodelled for two that differ."""
    result: dict[str, str] = {}
    for column, value in row.items():
        name = PLAN_COLUMNS.get(column, column)
        if name in PLAN_COLUMNS.values() and text(result, name) not in ("", text(row, column)) and text(row, column):
            raise Unmodelled(f"{column} = {value} and {name} = {result[name]} mean the same; give one")
        result[name] = value if text(row, column) else result.get(name, "")
    return result


def plan_of(row: Row, devices: int, per_node: int, stack: str, *, mixture: bool) -> dict[str, Any]:
    """The plan's fields for a row's run. Raises Unmodelled with the reason."""
    if not text(row, "tp") and not text(row, "pp") and stack in MEGATRONS and devices > 1:
        raise Unmodelled("tp and pp not published")
    tp, pp, cp = read_count(row, "tp", 1), read_count(row, "pp", 1), read_count(row, "cp", 1)
    replicas, rest = divmod(devices, tp * cp * pp)
    if rest:
        raise Unmodelled(f"tp x cp x pp = {tp * cp * pp} does not divide n_gpus = {devices}")
    if read_count(row, "dp", replicas) != replicas:
        raise Unmodelled(f"tp x cp x pp x dp is not n_gpus: {tp * cp * pp * read_count(row, 'dp')} and {devices}")
    schedule, vpp = _schedule(row, pp)
    plan: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "micro_batch": _micro_batch(row, replicas) or 1,
        "recompute": _recompute(row, stack), "schedule": schedule,
    } | _precision(row)  # fmt: skip
    plan |= _sharding(row, replicas * cp, per_node, stack)
    if mixture or read_count(row, "ep", 1) > 1:
        plan["ep"] = read_count(row, "ep", 1)
        if (beside := expert_overlap(text(row, "overlap_notes"))) is not None:
            plan["ep_overlap"] = beside
        if stack in MEGATRONS and names_plain_exchange(text(row, "overlap_notes")) and not text(row, FUSED_SORT):
            plan[FUSED_SORT] = False
    if kernels := _UPDATES.get(text(row, "optimizer").lower()):
        plan |= {"optimizer": "adamw", "optimizer_kernels": kernels}
    for name in OTHERS_OF_PLAN:
        value = plain(row, name)
        if value is not None and name not in plan and not _is_tuned(row, name):
            plan |= to_file_value(name, tuple(value) if isinstance(value, list) else value)
    if tp == 1 and plan.get("sequence_parallel"):
        plan["sequence_parallel"] = False
    try:
        Plan.model_validate(plan)
    except ValidationError as error:
        first = error.errors()[0]
        raise Unmodelled(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {files.wording(first)}") from None
    return plan


def _is_tuned(row: Row, name: str) -> bool:
    return text(row, name).lower() == TUNED


def _schedule(row: Row, pp: int) -> tuple[str, int]:
    """The schedule of a row and its chunks per rank; the usual one has as many chunks as the row says, by any name."""
    word = text(row, "schedule").lower()
    name = default_schedule() if word in ("", NONE, *NO) else schedule_named(word) or word
    known = SCHEDULES.get(name)
    chunks = natural_vpp(name) if known and not known.usual else 1
    vpp = 1 if pp == 1 or _is_tuned(row, "vpp") else read_count(row, "vpp", chunks)
    return default_schedule(vpp) if known and known.usual else name, vpp


def _micro_batch(row: Row, replicas: int) -> int | None:
    """Sequences of a microbatch: printed, or the batch over replicas and microbatches; None where it is open."""
    if text(row, "micro_batch") and not _is_tuned(row, "micro_batch"):
        return read_count(row, "micro_batch")
    batch, accumulation = number(row, "global_batch_seqs"), number(row, "grad_accum")
    if _is_tuned(row, "micro_batch") or not batch or not accumulation or batch % (replicas * accumulation):
        return None
    return int(batch // (replicas * accumulation))


def _recompute(row: Row, stack: str) -> str:
    word = text(row, "recompute").lower()
    if not word or word == TUNED:
        return NONE if word else USUAL_RECOMPUTE.get(stack, NONE)
    if word.startswith("selective modules:"):
        names = word.partition(":")[2].replace(",", " ").split()
        return of_modules(names)
    return _RECOMPUTE.get(word, word)


def _precision(row: Row) -> dict[str, str]:
    """Precision of products, and dtype of frozen weights where a word names that. Raises Unmodelled."""
    word = text(row, "precision").lower().replace(" ", "_")
    if word not in _NF4:
        return {"precision": _PRECISIONS.get(word, word) or "bf16"}
    if not text(row, "lora_rank") and not read_count(row, "frozen_layers", 0):
        raise Unmodelled(f"precision {word} is of frozen weights: lora_rank not published")
    return {"precision": "bf16", "frozen_dtype": "nf4"}


def _sharding(row: Row, ranks: int, per_node: int, stack: str) -> dict[str, Any]:
    """ZeRO stage and replicas of shards, over the ``ranks`` that share parameters. Raises Unmodelled."""
    if text(row, "zero"):
        return {"zero": plain(row, "zero")}
    cell = text(row, "zero_stage_or_fsdp")
    usual = "ZeRO-1" if stack == "megatron" else "ZeRO-0"  # today's recipes of Megatron-LM shard the optimizer
    sharding = read_sharding(
        cell or usual, ranks, per_node=per_node, domain=lambda: load_named_profile(hardware_of(row)).domain_size
    )
    if sharding is None:
        raise Unmodelled(
            f"zero_stage_or_fsdp {cell!r} is not a known word; allowed: 0 to 3, ZeRO-1, FSDP, FSDP 64, DDP, "
            "distributed optimizer, hybrid shard; or the columns zero and hsdp"
        )
    replicas = plain(row, "hsdp")
    if replicas is not None and replicas != sharding.get("hsdp", replicas):
        raise Unmodelled(f"hsdp = {replicas} and zero_stage_or_fsdp = {cell} have different replicas")
    return states_of_deepspeed(sharding, text(row, "precision"), stack)


def open_settings(row: Row, plan: Mapping[str, Any], *, mixture: bool) -> tuple[str, ...]:
    """Settings that a tuner would choose: those that say so, and the micro-batch and what else is blank with it."""
    tuned = [name for name in dict.fromkeys(PLAN_COLUMNS.values()) if _is_tuned(row, name)]
    replicas = read_count(row, "n_gpus") // (plan["tp"] * plan["pp"] * plan["cp"])
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


def global_batch(row: Row, plan: Mapping[str, Any], devices: int) -> int:
    """Sequences of a step: as printed, or from the plan's microbatches."""
    if text(row, "global_batch_seqs"):
        return read_count(row, "global_batch_seqs")
    once = 1 if plan["pp"] == 1 else None  # without a pipeline, assume one microbatch
    replicas = devices // (plan["tp"] * plan["cp"] * plan["pp"])
    return int(replicas * plan["micro_batch"] * read_count(row, "grad_accum", once))


PeakCounts = Literal["allocated", "reserved", "device"]
"""What a peak counts: tensors, memory that the allocator reserves, or all memory used on the device (nvidia-smi)."""
LOG_FIRST_RANK = frozenset(["nanotron"])
"""Stacks that log the memory of rank 0 only, on the first stage [nanotron, ``logging/base.py: log_memory``]."""
UNNAMED = "an unnamed stack"


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
class Measurements:
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
    graph, devices = graph_of(row), read_count(row, "n_gpus")
    hardware, per_node = on or _hardware(row)
    per_node = min(read_count(row, "gpus_per_node", per_node), devices)
    if devices % per_node:
        raise Unmodelled("n_gpus is not a multiple of gpus_per_node")
    stack, stack_changes = _stack(row)
    plan = plan_of(row, devices, per_node, stack, mixture=graph.is_mixture)
    profile = load_named_profile(hardware)
    changes = _network(row, profile, devices, per_node) | values_with_prefix(row, "hardware")
    training = Training(
        seq_len=read_count(row, "seq_len"), global_batch=global_batch(row, plan, devices), documents=_documents(row)
    )
    return Case(
        graph, hardware, devices, per_node, training, plan, stack, stack_changes, _fabric(row),
        open_settings(row, plan, mixture=graph.is_mixture),
        {key: check_value(profile, key, value, f"hardware.{key}") for key, value in changes.items()},
        _supposed(row),
    )  # fmt: skip


# --- hardware and software -------------------------------------------------------------------------------------


def _hardware(row: Row) -> tuple[str, int]:
    """Profile and devices of a node."""
    name = hardware_of(row)
    return name, load_named_profile(name).devices_per_node


def _stack(row: Row) -> tuple[str, dict[str, Any]]:
    """The stack profile of a row, and fields that replace the profile's.

    A blank one is Megatron's if tensors or stages are split, else FSDP's; no measured run supports it.
    """
    splits = read_count(row, "tp", 1) * read_count(row, "pp", 1) > 1
    name = text(row, "stack") or ("megatron" if splits else "fsdp")
    changes: dict[str, Any] = {} if text(row, "stack") else {"name": UNNAMED}
    try:
        stack = load_stack(name if is_file(name) else name.lower())
    except UserError as error:
        misspelt = name.isalpha() and bool(files.suggest(name, files.bundled("stacks")))
        nearest = None if misspelt or is_file(name) or "@" in name else nearest_stack(name.lower())
        if nearest is None:
            raise Unmodelled(str(error).partition("\n")[0]) from None
        stack, changes = load_stack(nearest), {} if is_of_profile(nearest) else {"name": name.lower()}
    kernel = text(row, "attention_kernel").lower()
    if kernel and (kernel != "flash" or stack.fusion.attention == "unfused"):
        changes["fusion.attention"] = check_value(stack, "fusion.attention", kernel, "attention_kernel")
    for key, value in values_with_prefix(row, "stack").items():
        changes[key] = check_value(stack, key, value, f"stack.{key}")
    return name if is_file(name) else stack.name, changes


def _network(row: Row, profile: ClusterProfile, devices: int, per_node: int) -> dict[str, Any]:
    """Fields of the profile that the words for the network between nodes replace: NICs a node, and the rate of each."""
    given = network_of(text(row, "interconnect"), per_node, profile.scale_out) if devices > per_node else None
    if given is None or text(row, "hardware") or sockets_of(text(row, "interconnect")):
        return {}
    return {"scale_out.nics_per_node": given.nics, "scale_out.nic_bandwidth": given.nic_bandwidth}


def _supposed(row: Row) -> tuple[str, ...]:
    """What was assumed of a row, by its author and here, and words that were not used."""
    result = [text(row, "assumed")] if text(row, "assumed") else []
    if not text(row, "hardware") and (unread := unread_of_network(row)):
        result.append(f"of interconnect not read: {' '.join(unread)}")
    words = text(row, "overlap_notes")
    if names_plain_exchange(words):
        result.append("routed tokens sorted as by default, without a fused kernel")
    elif words and expert_overlap(words) is None:
        result.append(f"of overlap_notes not read: {words}")
    return tuple(result)


def _documents(row: Row) -> Documents | None:
    """The lengths of documents: their mean in tokens, or fields of ``training.documents`` as JSON."""
    given = plain(row, "documents")
    if given is None:
        return None
    try:
        return Documents.model_validate(given if isinstance(given, Mapping) else {"mean": given})
    except ValidationError as error:
        raise Unmodelled(f"documents = {given!r}: {files.wording(error.errors()[0])}") from None


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


def read_measurements(row: Row) -> Measurements:
    """The measurements of a row, in SI units. Raises Unmodelled for values that cannot be."""

    def memory(name: str) -> float | None:
        value = measurement(row, name)
        return None if value is None else value * GIB

    counts: dict[str, PeakCounts] = {"allocated": "allocated", "reserved": "reserved", "device": "device"}
    return Measurements(
        step_time_s=_step_time(row),
        peak_memory_bytes=memory("peak_mem_gib"),
        static_memory_bytes=memory("static_mem_gib"),
        peer_step_time_s=measurement(row, "peer_pred_iteration_time_s"),
        peer_memory_bytes=memory("peer_pred_mem_gib"),
        fits=read_word(row, "status", {"ok": True, "oom": False}, True),
        peak_counts=read_word(row, "peak_mem_counts", counts, "reserved"),
    )


ROUNDED = 0.1
"""Share by which a printed time and a printed rate may differ."""


def _step_time(row: Row) -> float | None:
    """Seconds of a step: published, or from tokens per second and device. Raises Unmodelled where they contradict."""
    known = measurement(row, "iteration_time_s")
    rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
    devices, tokens = number(row, "n_gpus"), number(row, "seq_len")
    by_rate = batch * tokens / (rate * devices) if rate and batch and devices and tokens else None
    if known and by_rate and abs(by_rate / known - 1) > ROUNDED:
        raise Unmodelled(
            f"iteration_time_s = {known:g} and tokens_per_s_per_gpu = {rate:g}, which is {by_rate:.4g} s, contradict "
            "each other"
        )
    return known or by_rate
