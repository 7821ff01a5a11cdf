"""A row of the published tables in explicit columns: what its labels and notes say becomes cells that simpar reads.

Nothing is predicted here, and nothing that was measured is changed. What a row leaves open, and what its authors
published elsewhere, is filled in by the rules of the modules beside this one; docs/measured.md says which. Labels stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.errors import UserError
from simpar.frameworks.data_sets import documents_of
from simpar.plan.routing import ROUTING_BY_BALANCE
from simpar.units import GIB, MS
from simpar.validation.cells import Row, Unmodelled, measurement, number, read_count, text
from simpar.validation.devices import load_named_profile
from simpar.validation.models import graph_of
from simpar.validation.networks import network_of

from .clusters import devices_of_node, profile_of
from .dense import decoder_columns, is_mixture, sequence, unfused
from .labels import disturbed, throttled
from .mixtures import mixture_columns, recipe_layers
from .recipes import completed
from .released import config, entry, named, unsized
from .row_plan import global_batch, open_settings, plan_of
from .stacks import contest_attention, fused_experts, is_nemo, stack_of
from .words import memory_unit, peak_counts

LABELS = ("model_name", "gpu_type", "notes")
"""Columns that keep what the table has, though authors published it elsewhere."""
REPLACED = ("seq_parallel", "attention_kernel", "overlap_notes", "data_set")
"""Columns in words whose meaning other columns have."""
_PEER = re.compile(r"peer_pred TFLOPS=([0-9.]+)")
_LAYER = re.compile(r"layer-level timing: forward (\d+(?:\.\d+)?) ms, backward (\d+(?:\.\d+)?) ms")


def normalised(row: Row) -> Row:
    """A row of a published table with explicit columns; ``not_modelled`` says why it cannot be a run."""
    cells = {name: value for name, value in row.items() if name not in REPLACED}
    filled, sources = completed(row)
    cells |= {name: value for name, value in filled.items() if name not in (*LABELS, *REPLACED)}
    cells |= {"configured_by": "; ".join(sources) if settings_of(filled) != settings_of(row) else ""}
    cells["disturbed"] = disturbed(row)
    cells |= _measured({**row, "notes": text(filled, "notes")})  # what is measured is the row's own
    try:
        return cells | _run(filled, sources)
    except (Unmodelled, UserError) as reason:
        return cells | {"not_modelled": str(reason).partition("\n")[0]}


def settings_of(row: Row) -> Row:
    """What a row says but for notes and data: what these tell of kernels, peaks and lengths is no setting of a run."""
    return {name: value for name, value in row.items() if name not in ("notes", "data_set")}


def _run(row: Row, sources: tuple[str, ...]) -> dict[str, str]:
    """The columns of what ran. Raises Unmodelled, UserError."""
    model = _model(row)
    graph = graph_of({**row, **model})
    devices = read_count(row, "n_gpus")
    hardware, per_node = _hardware(row, devices)
    plan = plan_of(row, devices, graph)
    layers = recipe_layers(graph, int(str(plan["pp"])) * int(str(plan["vpp"]))) if is_nemo(row) else None
    if layers is not None:
        plan["layers"] = layers
    if graph.is_mixture and text(row, "data_set"):  # a trained router on documents of one kind
        plan |= ROUTING_BY_BALANCE["tuned"]
    batch = global_batch(row, plan, devices)
    stack, changes = stack_of(row)
    changes |= {**fused_experts(graph, stack, plan, changes), **contest_attention(row, plan)}
    cells = model | {
        "hardware": hardware,
        "gpus_per_node": str(per_node),
        "stack": stack,
        "seq_len": text(row, "seq_len") or str(sequence(row)),
        "documents": _documents(row),
        "assumed": ", ".join((*_supposed(row, graph, plan), *sources)),
        **{f"stack.{key}": _cell(value) for key, value in changes.items()},
    }
    if devices > per_node:
        usual = load_named_profile(hardware).scale_out
        network = network_of(text(row, "interconnect"), per_node, usual)
        if network is not None:
            cells["hardware.scale_out.nics_per_node"] = str(network.nics)
            cells["hardware.scale_out.nic_bandwidth"] = repr(network.nic_bandwidth)
    return cells | _plan_cells(row, plan, batch, open_settings(row), mixture=graph.is_mixture)


def _model(row: Row) -> dict[str, str]:
    """The columns of a row's model."""
    if unsized(row):
        return {"model": named(row) or ""}
    return mixture_columns(row) if is_mixture(row) else decoder_columns(row)


def _hardware(row: Row, devices: int) -> tuple[str, int]:
    """Profile and devices per node; a job smaller than a node counts as one node of its size."""
    device, network = text(row, "gpu_type").lower(), text(row, "interconnect").lower()
    name = "hgx-b200-throttled" if throttled(row) else profile_of(device, network)
    per_node = min(read_count(row, "gpus_per_node", devices_of_node(device)), devices)
    if devices % per_node:
        raise Unmodelled("n_gpus is not a multiple of gpus_per_node")
    return name, per_node


def _plan_cells(
    row: Row, plan: Mapping[str, Any], batch: int, open_: tuple[str, ...], *, mixture: bool
) -> dict[str, str]:
    """The columns of a plan. Cells that say the same already stay as they are."""
    values = {**plan, "global_batch_seqs": batch}
    if isinstance(overlap := values.pop("tensor_parallel", None), Mapping):
        values["tp_overlap"] = overlap["overlap"]
    if not mixture:
        values["ep"] = 1
    usual = {"tp": 1, "pp": 1, "cp": 1, "vpp": 1, "ep": 1}
    if "global_batch" in open_ or not text(row, "global_batch_seqs"):
        del values["global_batch_seqs"]  # follows from the microbatches
    cells = {
        name: _cell(value)
        for name, value in values.items()
        if not (_same(row, name, value) or (not text(row, name) and usual.get(name) == value))
    }
    tuned = [name for name in open_ if name != "global_batch"]
    return cells | dict.fromkeys(tuned, "tuned")


def _same(row: Row, name: str, value: Any) -> bool:
    """Whether a cell is this number."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and text(row, name) not in ("",)
        and (_number(text(row, name)) == value)
    )


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _cell(value: Any) -> str:
    """A value as a cell: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


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


def _documents(row: Row) -> str:
    """The lengths of documents: a public data set's, or the mean of short questions and answers for fine-tuning.

    NeMo's documentation uses Dolly and SQuAD, which the mean is of. NeMo Automodel's benchmarks have whole sequences
    (examples/llm_benchmark, MockIterableDataset); so has what only says that samples are packed.
    """
    if stack_of(row)[0] == "automodel":
        return ""
    if data_set := text(row, "data_set"):
        documents = documents_of(data_set)
        assert documents is not None, f"no lengths of {data_set} are known"
        return json.dumps({"mean": documents.mean, "spread": documents.spread})
    words = f"{text(row, 'model_name')} {text(row, 'notes')}".lower()
    return "200" if re.search(r"\(sft\)|\(lora\)|packed sequences", words) else ""


# --- what was measured -----------------------------------------------------------------------------------------


def _measured(row: Row) -> dict[str, str]:
    """The columns of measurements that the words of a row give, or give the unit of."""
    notes = text(row, "notes").lower()
    cells = {
        "status": "oom" if re.search(r"\boom\b|out.of.memory", text(row, "status").lower()) else "ok",
        "peak_mem_counts": peak_counts(row),
        "flop_count": _flop_count(notes),
    }
    if peer := _PEER.search(text(row, "notes")):
        cells["peer_pred_tflops_per_gpu"] = peer[1]
    if layer := _LAYER.search(notes):
        cells["layer_forward_s"], cells["layer_backward_s"] = (repr(float(each) * MS) for each in layer.groups())
    if (unit := memory_unit(row)) != GIB:
        for name in ("peak_mem_gib", "static_mem_gib", "peer_pred_mem_gib"):
            if text(row, name):
                cells[name] = repr(float(text(row, name)) * unit / GIB)
    if step_s := _step_time_s(row):
        cells["iteration_time_s"] = repr(step_s)
    return cells


def _flop_count(notes: str) -> str:
    """What rates count.

    Checked on rows with both time and rate: NeMo until 25.04, dgxc, llm-foundry and Megatron-LM's examples count model
    FLOP with full attention (ratio 1.00), Megatron-Bridge and Megatron-LM's present counter its causal half (1.00),
    papers of 2020 and 2021 also recomputation (1.00).
    """
    if re.search(r"hardware (flop|tflop|utili)", notes):
        return "hardware"
    return "causal" if re.search(r"megatron flop counter|causal half", notes) else "model"


def _step_time_s(row: Row) -> float | None:
    """Seconds of a step from tokens per second and device, where the batch is printed and no time is."""
    try:
        rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
        devices, known = number(row, "n_gpus"), measurement(row, "iteration_time_s")
        if known is None and rate and batch and devices:
            return batch * sequence(row) / (rate * devices)
    except Unmodelled:
        pass  # no length of sequences, or the reason is repeated where the row is predicted
    return None
