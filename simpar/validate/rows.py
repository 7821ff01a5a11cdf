"""Measured runs as simulation inputs: a row of a table becomes a model, a cluster and a plan, or a reason why not.

The columns are the same for every table; free text is read through the few patterns below and nowhere else. Blank means
unknown: if a plan needs a value that the row lacks, that is a reason, and never a guess. Only the micro-batch, and with
it virtual stages and recomputation, may stay open, because runs were tuned over them (``simpar.validate.tuned``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simpar.hardware.catalogue import load_cluster
from simpar.models.graph import ModelGraph
from simpar.models.training import Documents, Training
from simpar.units import GB
from simpar.validate.cells import Row, Unmodelled, measurement, number, text, throttled, whole
from simpar.validate.clusters import devices_of_node, profile_of
from simpar.validate.dense import is_mixture, model, sequence, unfused
from simpar.validate.mixtures import (
    mixture,
    recipe_layers,
)
from simpar.validate.networks import Network, network_of
from simpar.validate.recipes import completed
from simpar.validate.released import config, entry, unsized
from simpar.validate.row_plan import global_batch, open_settings, plan_of
from simpar.validate.stacks import contest_attention, fused_experts, is_nemo, stack_of
from simpar.validate.words import (
    LOG_FIRST_RANK,
    PeakCounts,
    memory_unit,
    peak_counts,
)


@dataclass(frozen=True)
class Case:
    """One measured run as simulation input.

    ``open`` names settings that its row does not give and a tuner would choose. ``network`` is that of the row's words,
    if it differs from the profile's. ``supposed`` lists other assumptions from words, or from missing words.
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
    network: Network | None = None
    supposed: tuple[str, ...] = ()

    @property
    def first_rank_reports(self) -> bool:
        """Whether its memory is rank 0's, not the fullest rank's."""
        return self.stack in LOG_FIRST_RANK

    @property
    def read_as(self) -> str:
        """What a row's words for its cluster, software and model were read as."""
        known = self.stack_changes.get("name")
        nearest = f", the nearest to {known}" if known else ""
        network = f" with {self.network.words} a node" if self.network else ""
        return ", ".join([f"{self.hardware}{network}", f"stack {self.stack}{nearest}", *self.supposed])


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

    Blanks are filled from what the row's authors published elsewhere (:mod:`simpar.validate.recipes`). Raises
    Unmodelled with the reason.
    """
    row, filled = completed(row)
    graph = unsized(row) or (mixture(row) if is_mixture(row) else model(row))
    devices = whole(row, "n_gpus")
    hardware, per_node = _hardware(row, devices, on)
    plan = plan_of(row, devices, graph)
    layers = recipe_layers(graph, int(str(plan["pp"])) * int(str(plan["vpp"]))) if is_nemo(row) else None
    if layers is not None:
        plan["layers"] = layers
    training = Training(
        seq_len=sequence(row), global_batch=global_batch(row, plan, devices), documents=_documents(row)
    )
    stack, changes = stack_of(row)
    changes |= {**fused_experts(graph, stack, plan, changes), **contest_attention(row, plan)}
    network = None
    if devices > per_node:
        network = network_of(text(row, "interconnect"), per_node, load_cluster(hardware).profile.scale_out)
    return Case(
        graph, hardware, devices, per_node, training, plan, stack, changes, _fabric(row), open_settings(row), network,
        (*_supposed(row, graph, plan), *filled),
    )  # fmt: skip


def _supposed(row: Row, graph: ModelGraph, plan: Mapping[str, object]) -> tuple[str, ...]:
    """Assumptions in words for readers of a table: about gradients, experts and layers."""
    found = []
    said = {"added up": plan.get("grad_dtype"), "reduced": plan.get("reduce_dtype")}
    if dtypes := [f"{how} in {dtype}" for how, dtype in said.items() if dtype]:
        found.append(f"gradients {' and '.join(dtypes)}")
    if plan.get("frozen_dtype") == "fp8":
        found.append(f"frozen weights{' and attention' if contest_attention(row, plan) else ''} in 8 bits")
    if plan["recompute"] == "full" and not text(row, "recompute"):
        found.append("all layers recomputed")
    if not text(row, "stack") and not text(row, "attention_kernel") and unfused(row):
        found.append("attention not fused")
    if graph.is_mixture and number(row, "ep") != plan["ep"]:
        found.append(f"experts over {plan['ep']} ranks")
    dense = sum(name == "layer" for name in graph.layers)
    known = entry(row)
    if graph.is_mixture and known and dense != config(known).get("first_k_dense_replace", dense):
        found.append(f"{dense} of {len(graph.layers)} layers without experts")
    counts = peak_counts(row)
    if number(row, "peak_mem_gib") is not None:
        found.append("memory of the device" if counts == "device" else f"memory {counts}")
    return tuple(found)


def _documents(row: Row) -> Documents | None:
    """The lengths of documents: short questions and answers for fine-tuning (as in Dolly and SQuAD), else one text.

    NeMo's documentation uses these data sets. NeMo Automodel's benchmarks have whole sequences (examples/llm_benchmark,
    MockIterableDataset).
    """
    if stack_of(row)[0] == "automodel":
        return None
    words = f"{text(row, 'model_name')} {text(row, 'notes')}".lower()
    return Documents(mean=200) if re.search(r"\(sft\)|\(lora\)|packed sequences", words) else None


# --- the cluster -----------------------------------------------------------------------------------------------


def _hardware(row: Row, devices: int, on: tuple[str, int] | None) -> tuple[str, int]:
    """Profile and devices per node; a job smaller than a node counts as one node of its size."""
    device = text(row, "gpu_type").lower()
    name, usual = on or (named_hardware(row), devices_of_node(device))
    per_node = min(whole(row, "gpus_per_node", usual), devices)
    if devices % per_node:
        raise Unmodelled("n_gpus is not a multiple of gpus_per_node")
    return name, per_node


def named_hardware(row: Row) -> str:
    """The cluster profile for a row's words. Raises Unmodelled."""
    row, _ = completed(row)
    device, network = text(row, "gpu_type").lower(), text(row, "interconnect").lower()
    return "hgx-b200-throttled" if throttled(row) else profile_of(device, network)


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
    found = {}
    for name, column in _FABRIC:
        value = number(row, column)
        if value is not None and value > 0:
            found[name] = value * GB
    return found


# --- what was measured -----------------------------------------------------------------------------------------


def measured(row: Row) -> Measured:
    """The measurements of a row, in SI units. Raises Unmodelled for values that cannot be."""

    def memory(name: str) -> float | None:
        value = measurement(row, name)
        return None if value is None else value * memory_unit(row)

    return Measured(
        step_time_s=_step_time(row),
        peak_memory_bytes=memory("peak_mem_gib"),
        static_memory_bytes=memory("static_mem_gib"),
        peer_step_time_s=measurement(row, "peer_pred_iteration_time_s"),
        peer_memory_bytes=memory("peer_pred_mem_gib"),
        fits=re.search(r"\boom\b|out.of.memory", text(row, "status").lower()) is None,
        peak_counts=peak_counts(row),
    )


def _step_time(row: Row) -> float | None:
    """Seconds of a step: published, or from tokens per second and device."""
    known = measurement(row, "iteration_time_s")
    if known is not None:
        return known
    rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
    devices = number(row, "n_gpus")
    if rate and batch and devices and (number(row, "seq_len") or text(row, "stack") == "torchtitan"):
        return batch * sequence(row) / (rate * devices)
    return None
