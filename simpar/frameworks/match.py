"""Which shipped model has given sizes: files of other tools give sizes, plans name models."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from simpar.architectures.catalogue import find_cached, find_model, load_model, with_sizes
from simpar.architectures.graph import ModelGraph

SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "num_experts", "expert_ffn")
MOST_NAME = 255  # bytes of a name that a file system takes
TELLING = ("hidden", "heads")
DECODER = "decoder"
"""A decoder whose layers all have attention, with heads of keys and values."""


@cache
def _shipped(name: str) -> dict[str, int]:
    return sizes_of(load_model(name))


def sizes_of(graph: ModelGraph) -> dict[str, int]:
    """Sizes of a model by which it is recognised (keys of :data:`SIZES`)."""
    return {
        "layers": sum(kind not in graph.auxiliary for kind in graph.layers),
        **{size: graph.dims.get(size, 0) for size in SIZES[1:]},
    }


TOWER = ("vision", "connector")
"""Scopes of the blocks in front of a language model."""


@cache
def _kind(name: str) -> str:
    return kind_of(load_model(name))


def kind_of(graph: ModelGraph) -> str:
    """What a model is made of: a :data:`DECODER`, one with "latent" attention, the pattern of a hybrid, or "other"."""
    every = [op for block in graph.blocks.values() for op in block.operators]
    if graph.has_state:
        return str(graph.facts.get("pattern", "other"))
    if graph.chooses_keys or any(op.attention and not op.attention.causal for op in every):
        return "other"
    return "latent" if "qk_dim" in graph.dims else DECODER


def models_with(sizes: Mapping[str, int], kind: str = "") -> list[str]:
    """Names of the shipped models with all the given sizes (keys of :data:`SIZES`), in the catalogue's order.

    ``kind`` is what they are made of (:func:`kind_of`); if it is not known, all but hybrids. Models without words
    (diffusion transformers) are none that a launch leaves unnamed. Empty if sizes that tell models apart
    (:data:`TELLING`) are missing.
    """
    if not is_telling(sizes):
        return []
    kinds = (kind,) if kind else (DECODER, "latent", "other")
    return [
        name
        for name in with_sizes(sizes)
        if _shipped(name)["vocab"] > 1
        and all(_shipped(name)[key] == value for key, value in sizes.items())
        and _kind(name) in kinds
    ]


def is_telling(sizes: Mapping[str, int]) -> bool:
    """Whether the given sizes tell models apart."""
    return set(TELLING) <= set(sizes)


def with_rope(names: list[str], theta: float, *, scaled: bool) -> list[str]:
    """The models with a rotary base, and with or without scaled positions; all of them if none matches."""
    ropes = {name: load_model(name).details.positions.rope for name in names}
    same = [n for n, rope in ropes.items() if rope.theta == theta and (rope.kind != "default") == scaled]
    return same or names


def model_note(models: list[str], sizes: Mapping[str, int]) -> str:
    """A note on the model that was found, or not; "" for exactly one."""
    if absent := [name for name in TELLING if name not in sizes]:
        return f"The file does not say the model's {', '.join(absent)}: give --model when the plan is used."
    if not models:
        shape = ", ".join(f"{name} {size}" for name, size in sizes.items())
        return f"No shipped model has {shape}: give --model when the plan is used."
    return f"The sizes are those of {', '.join(models)}; the first is used." if len(models) > 1 else ""


def differing_sizes(graph: ModelGraph, sizes: Mapping[str, int], name: str | None) -> dict[str, tuple[int, int]]:
    """Sizes that a model does not have, by key: the stated size and the model's own.

    ``sizes`` are those a file states. If they do not tell models apart, the sizes of the shipped model that it names
    count as stated, too. A file may count the layers of a vision tower or leave them out.
    """
    named_sizes = {} if name is None or is_telling(sizes) else _shipped(name)
    said, own = {**named_sizes, **sizes}, sizes_of(graph)
    towers = sum(graph.blocks[kind].scope in TOWER for kind in graph.layers)
    if said.get("layers") == own["layers"] - towers:
        own["layers"] -= towers
    return {key: (said[key], own[key]) for key in SIZES if key in said and said[key] != own[key]}


def layers_in(model: str) -> int:
    """Layers of a shipped model, without those that predict further tokens."""
    return _shipped(model)["layers"]


def find_released(text: str, source: str = "") -> str | None:
    """The model of a Hugging Face id: a shipped one, or the config of a local folder or of the hub's local cache.

    Folders are looked up as they are written and beside ``source``. None if there is none; nothing is downloaded.
    """
    if len(text.encode()) > MOST_NAME:
        return None
    for folder in (Path(os.path.expanduser(text)), Path(source).parent / text):
        if (folder / "config.json").is_file():
            return str(folder / "config.json")
    known = find_model(text)
    return known or find_cached(text)
