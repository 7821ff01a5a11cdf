"""Released models behind the names in tables, and what their recipes do if a row does not say."""

from __future__ import annotations

import re
from typing import Any

from simpar.architectures.catalogue import catalogue
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.validation.cells import Row, read_count, text
from simpar.validation.models import override_sizes

_NAMES = (  # pattern of a table's name, name in the catalogue
    (r"deepseek.?v3", "deepseek-v3"), (r"deepseek.?v2.?lite", "deepseek-v2-lite"),
    (r"deepseek.?v2|ds 236b", "deepseek-v2"), (r"deepseek.*16b", "deepseek-moe-16b"), (r"kimi", "kimi-k2"),
    (r"gpt.?oss.?120", "gpt-oss-120b"), (r"gpt.?oss.?20", "gpt-oss-20b"), (r"qwen3.*235", "qwen3-235b-a22b"),
    (r"qwen3.*30", "qwen3-30b-a3b"), (r"qwen2.*57", "qwen2-57b-a14b"), (r"grok", "grok-1"),
    (r"maverick", "llama-4-maverick"), (r"scout", "llama-4-scout"), (r"mixtral.*8x22", "mixtral-8x22b"),
    (r"mixtral.*8x7", "mixtral-8x7b"), (r"olmoe", "olmoe-1b-7b"), (r"glm.?4.5.?air", "glm-4.5-air"),
    (r"glm.?4.5", "glm-4.5"), (r"dbrx", "dbrx"), (r"nemotron.?3.?nano", "nemotron-3-nano"),
    (r"nemotron.?3.?super", "nemotron-3-super"), (r"nemotron.?3.?ultra", "nemotron-3-ultra"),
    (r"nemotron.?h.?56b", "nemotron-h-56b"), (r"qwen2\.5 7b", "qwen2.5-7b"), (r"qwen2\.5 32b", "qwen2.5-32b"),
    (r"gpt3.5b", "gpt3-5b"),
)  # fmt: skip
_PARTIAL_GRAPHS = "dispatcher hybridep; cuda graph transformer_engine attn mamba moe_router moe_preprocess"
_RECIPES = {
    "nemotron-3-nano": _PARTIAL_GRAPHS,
    "nemotron-3-super": _PARTIAL_GRAPHS,
    "nemotron-3-ultra": "dispatcher hybridep",
}
"""How runs of a model overlap, in a table's words [NVIDIA Megatron-Bridge 0.6.2, perf_recipes/nemotronh]."""


def entry(row: Row) -> str | None:
    """The catalogue's name of the model that a row names, None if it is not there."""
    name = text(row, "model_name")
    return next((known for pattern, known in _NAMES if re.search(pattern, name, re.IGNORECASE)), None)


def named(row: Row) -> str | None:
    """The same, or the model in the catalogue whose name differs only in spelling."""
    plain = _plain(text(row, "model_name").partition("(")[0])
    return entry(row) or next((known for known in catalogue() if _plain(known) == plain), None)


def _plain(name: str) -> str:
    """A name without the parts that people spell differently."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def config(name: str) -> dict[str, Any]:
    """A copy of a released config."""
    return dict(catalogue()[name])


def unsized(row: Row) -> ModelGraph | None:
    """The released model of a row without a width; None if the row has one, or if the model is not known.

    It has the row's number of layers, unless its layers follow a pattern.
    """
    sizes = text(row, "hidden") or (text(row, "n_layers") and text(row, "n_experts"))
    known = None if sizes else named(row)
    if known is None:
        return None
    graph = read(override_sizes(row, config(known)), text(row, "model_name"))
    return graph if read_count(row, "n_layers", len(graph.layers)) == len(graph.layers) else None


_SCRIPTS = {"simumax": "no tp/dp overlap; capacity factor 1"}
"""What the published scripts of a source's authors say [MooreThreads/SimuMax, simu_tools/megatron_scripts]."""


def recipe_words(row: Row) -> str:
    """Words about overlap from the scripts of a row's source, or from the recipe of its model."""
    source = text(row, "source").lower()
    scripts = (words for name, words in _SCRIPTS.items() if name in source)
    return next(scripts, _RECIPES.get(entry(row) or "", ""))
