"""Hugging Face config.json to ModelGraph, by the family of its model_type."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families import DECLARED
from simpar.architectures.families.unmodelled import UNMODELLED
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_details import details
from simpar.errors import UserError
from simpar.files import allowed, suggest

WRAPPERS = ("text_config", "language_config", "llm_config")


def read(config: Mapping[str, Any], name: str = "model") -> ModelGraph:
    """The graph of a config. Raises UserError naming file, field, value and rule."""
    if not isinstance(config, Mapping):
        raise UserError(f"{name}: a model config is a mapping with a model_type")
    kind = str(config.get("model_type") or "")
    family = DECLARED.get(kind)
    for wrapper in () if family and family.nested else WRAPPERS:
        inner = config.get(wrapper)
        if isinstance(inner, Mapping) and "hidden_size" not in config:
            config = {"model_type": config.get("model_type"), **inner}
    kind = str(config.get("model_type") or "")
    family = DECLARED.get(kind)
    if kind in UNMODELLED:
        raise UserError(f"{name}: model_type = {kind!r}: {UNMODELLED[kind]} are not modelled")
    if family is None:
        raise UserError(f"{name}: model_type = {kind!r} is not known{suggest(kind, DECLARED) or allowed(DECLARED)}")
    fields = Config(config, name)
    graph = family.read(fields, name, read) if family.nested else family.read(fields, name)
    return replace(graph, details=details(fields, graph, family))
