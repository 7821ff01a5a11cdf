"""Measured runs of mixtures of experts: tables give a name and a few sizes, the rest comes from the released config."""

from __future__ import annotations

import re
from math import gcd

from simpar.architectures.graph import ModelGraph
from simpar.validation.cells import Row, Unmodelled, number, read_count, text
from simpar.validation.overlaps import expert_overlap, names_plain_exchange
from simpar.validation.rows import FUSED_SORT

from .labels import is_primus
from .released import config, entry, recipe_words
from .words import dense_layers

_OWN_LAYERS = re.compile(r"deepseek.?v4|jamba|mamba|hybrid|next|linear|gshard|switch|bert|t5|gpt", re.IGNORECASE)
"""Names of mixtures whose layers cannot be described by sizes alone."""


def mixture_columns(row: Row) -> dict[str, str]:
    """The columns that make the released mixture of the name of a row, beside its sizes. Raises Unmodelled.

    With any other name it is a decoder like Llama with experts in all layers, if the row gives all sizes.
    """
    known = entry(row)
    if known is None:
        _refuse_unsized(row)
        return {}
    released, columns = config(known), {"model": known}
    if dense := released.get("first_k_dense_replace"):
        of = int(released["num_hidden_layers"])
        count = dense_layers(row, dense, layers=read_count(row, "n_layers", of), of=of)
        columns |= {"model.first_k_dense_replace": str(count)} if count != dense else {}
    if not _predicts_further(row) and "num_nextn_predict_layers" in released:
        columns["model.num_nextn_predict_layers"] = "null"
    return columns


def _refuse_unsized(row: Row) -> None:
    """Raise Unmodelled for a mixture whose layers its sizes do not describe."""
    name = text(row, "model_name")
    if _OWN_LAYERS.search(name):
        raise Unmodelled(f"mixture whose config is not released ({name})")
    columns = ("n_layers", "hidden", "n_heads", "ffn_hidden", "n_experts", "topk")
    if missing := [column for column in columns if number(row, column) is None]:
        raise Unmodelled(f"mixture whose config is not released ({name}), and {missing[0]} not published")


def _predicts_further(row: Row) -> bool:
    """Whether a run had prediction layers: Megatron-Bridge's recipes of DeepSeek-V3 do by default, others do not."""
    return "megatron-bridge" in text(row, "source").lower() and "w/o mtp" not in text(row, "model_name").lower()


def overlap_words(row: Row) -> str:
    """A row's words about overlap, in lower case.

    Without any, those of the model's recipe. Other recipes of mixtures capture whole iterations and hide their token
    exchange since Megatron-Bridge 26.06, and send a token only once to a rank of an NVL72 rack since 25.11.
    """
    words, release = (
        text(row, "overlap_notes").lower() or recipe_words(row),
        re.search(r"container release (\d+\.\d+)", text(row, "notes")),
    )
    if words or not release or not text(row, "n_experts"):
        return words
    if float(release.group(1)) > 26.06:
        return "moe all-to-all overlap; dispatcher hybridep; cuda graph full_iteration"
    racks = re.match(r"gb[23]00", text(row, "gpu_type").lower())
    return "dispatcher hybridep" if racks and float(release.group(1)) >= 25.11 else ""


def recipe_layers(graph: ModelGraph, stages: int) -> tuple[int, ...] | None:
    """Layers of stages for a model that predicts further tokens: recipes fill all stages but the last equally.

    The last stage has both losses. Source: NVIDIA Megatron-Bridge, recipes of DeepSeek-V3,
    pipeline_model_parallel_layout.
    """
    further = sum(name.startswith("prediction") for name in graph.layers)
    if not further or stages == 1:
        return None
    left, layers = len(graph.layers) - further, []
    full = -(-left // stages)
    for _ in range(stages - 1):
        layers.append(min(full, left))
        left -= layers[-1]
    return (*layers, left + further) if all(layers) else None


def usual_ep(num_experts: int, ranks: int, *, spread: bool) -> int:
    """The expert-parallel degree within a stage's ranks, if a row leaves it blank.

    Megatron-LM, torchtitan and FSDP default to 1. Recipes of NeMo and Megatron-Bridge, Automodel and MaxText ``spread``
    experts over as many ranks as divide them evenly, as do 110 of 155 rows that give it.
    """
    return gcd(num_experts, ranks) if spread else 1


def most_ep(printed: int, ranks: int) -> int:
    """The printed expert-parallel degree, or the largest part of it that a stage's ``ranks`` allow."""
    return printed if printed <= ranks else gcd(printed, ranks)


def expert_plan(row: Row, default: int = 1) -> dict[str, object]:
    """The plan's fields for a mixture: expert parallelism (``default`` if blank), capacity, overlap."""
    plan: dict[str, object] = {"ep": read_count(row, "ep", default)}
    words = "; ".join((text(row, "notes"), text(row, "model_name"), overlap_words(row))).lower()
    sliced = re.search(r"(?:etp ?= ?|expert tp ?= ?)(\d+)", words)
    if sliced:
        plan["etp"] = int(sliced.group(1))
    elif re.search(r"tags v(?:24\.|25\.0[124])", words):  # experts were sliced by tp in these releases
        plan["etp"] = read_count(row, "tp", 1)
    capped = re.search(r"capacity factor (\d+(?:\.\d+)?)", words)
    if capped or "tokendrop" in words:
        plan["capacity_factor"] = float(capped.group(1)) if capped else 1.0
    if expert_overlap(words):
        plan["ep_overlap"] = True
    if re.search(r"hybridep|deepep", words) or is_sync_free(words) or _primus_deepep(row):
        plan["token_dispatch"] = "per_node"
    if names_plain_exchange(text(row, "overlap_notes")):
        plan[FUSED_SORT] = False
    return plan


def _primus_deepep(row: Row) -> bool:
    """Whether Primus's config of the model has use_turbo_deepep (examples/megatron/configs/MI355X)."""
    model = text(row, "model_name").lower()
    return is_primus(row) and re.search(r"deepseek.?v3|qwen3.?235b", model) is not None


def is_sync_free(notes: str) -> bool:
    """Whether a flag of Primus keeps the sizes of routed data on the device (from its second stage on)."""
    return re.search(r"turbo_sync_free_moe_stage: [23]", notes) is not None
