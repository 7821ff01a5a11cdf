"""Measured runs of mixtures of experts: tables print a name and a few sizes, the rest is the released config's."""

from __future__ import annotations

import re

from simpar.models.graph import ModelGraph
from simpar.models.hf_config import read
from simpar.validate.cells import Row, Unmodelled, text, whole
from simpar.validate.released import config, entry, recipe_words

_SIZES = {"hidden": "hidden", "n_heads": "heads", "n_experts": "num_experts", "topk": "topk"}


def mixture(row: Row) -> ModelGraph:
    """The released mixture that a row names, with as many layers as the row has. Raises Unmodelled."""
    name = text(row, "model_name")
    known = entry(row)
    if known is None:
        raise Unmodelled(f"mixture whose config is not released ({name})")
    sizes = config(known)
    sizes["n_layers" if known == "dbrx" else "num_hidden_layers"] = whole(row, "n_layers")
    if not _predicts_further(row):
        sizes.pop("num_nextn_predict_layers", None)
    graph = read(sizes, name)
    for column, dim in _SIZES.items():
        if whole(row, column, graph.dims[dim]) != graph.dims[dim]:
            raise Unmodelled(f"{column} differs from the released config")
    return graph


def _predicts_further(row: Row) -> bool:
    """Megatron-Bridge's recipes of DeepSeek-V3 have its prediction layer unless they say otherwise; others leave it."""
    return (
        "megatron-bridge" in text(row, "source").lower() and "w/o mtp" not in text(row, "model_name").lower()
    )


def overlap_words(row: Row) -> str:
    """What a row says of overlap, lower case.

    Where it says nothing: what the model's recipe does; other recipes of mixtures have captured whole iterations and
    hidden their exchange since Megatron-Bridge 26.06, and sent a token once to a rank of an NVL72 rack since 25.11.
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
    """Layers of stages where a model predicts further: recipes fill all but the last, with its two losses, alike.

    Source: NVIDIA Megatron-Bridge, recipes of DeepSeek-V3, pipeline_model_parallel_layout.
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


def expert_plan(row: Row) -> dict[str, object]:
    """The plan's share of a mixture: how experts are spread, capped and overlapped."""
    plan: dict[str, object] = {"ep": whole(row, "ep", 1)}
    words = f"{text(row, 'notes')} {text(row, 'model_name')} {overlap_words(row)}".lower()
    sliced = re.search(r"(?:etp ?= ?|expert tp ?= ?)(\d+)", words)
    if sliced:
        plan["etp"] = int(sliced.group(1))
    elif re.search(r"tags v(?:24\.|25\.0[124])", words):  # experts had tp slices then
        plan["etp"] = whole(row, "tp", 1)
    capped = re.search(r"capacity factor (\d+(?:\.\d+)?)", words)
    if capped or "tokendrop" in words:
        plan["capacity_factor"] = float(capped.group(1)) if capped else 1.0
    if re.search(r"moe all-to-all overlap|ep overlap", words):
        plan["ep_overlap"] = True
    if re.search(r"hybridep|deepep", words):
        plan["token_dispatch"] = "per_rank"
    return plan
