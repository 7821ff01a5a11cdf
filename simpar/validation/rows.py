"""Measured runs as simulation inputs: a row of a table becomes a model, a cluster and a plan, or a reason why not.

Only the columns of :mod:`simpar.validation.columns` are read, word by word; labels and notes never are. Blank means
unknown: if a plan needs a value that the row lacks, that is a reason, and never a guess. Only settings over which runs
are tuned may stay open (:mod:`simpar.validation.tuned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Documents, Training
from simpar.errors import UserError
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
from simpar.validation.devices import hardware_of, load_named_profile
from simpar.validation.models import graph_of
from simpar.validation.row_plan import canonical, global_batch, open_settings, plan_of

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
    changes = values_with_prefix(row, "hardware").items()
    training = Training(
        seq_len=read_count(row, "seq_len"), global_batch=global_batch(row, plan, devices), documents=_documents(row)
    )
    return Case(
        graph, hardware, devices, per_node, training, plan, stack, stack_changes, _fabric(row),
        open_settings(row, plan, mixture=graph.is_mixture),
        {key: check_value(profile, key, value, f"hardware.{key}") for key, value in changes},
        (assumed,) if (assumed := text(row, "assumed")) else (),
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
        raise Unmodelled(str(error).partition("\n")[0]) from None
    kernel = text(row, "attention_kernel").lower()
    if kernel and (kernel != "flash" or stack.fusion.attention == "unfused"):
        changes["fusion.attention"] = check_value(stack, "fusion.attention", kernel, "attention_kernel")
    for key, value in values_with_prefix(row, "stack").items():
        changes[key] = check_value(stack, key, value, f"stack.{key}")
    return name if is_file(name) else stack.name, changes


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


def _step_time(row: Row) -> float | None:
    """Seconds of a step: published, or from tokens per second and device."""
    known = measurement(row, "iteration_time_s")
    if known is not None:
        return known
    rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
    devices, tokens = number(row, "n_gpus"), number(row, "seq_len")
    return batch * tokens / (rate * devices) if rate and batch and devices and tokens else None
