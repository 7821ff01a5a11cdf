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
    if why := reason_unread(config, name):
        raise UserError(why)
    config = _unwrapped(config)
    family = DECLARED[str(config["model_type"])]
    fields = Config(config, name)
    graph = family.read(fields, name, read) if family.nested else family.read(fields, name)
    return replace(graph, details=details(fields, graph, family))


def reason_unread(config: Mapping[str, Any], name: str) -> str:
    """Why no declared family reads a config, as a refusal of one line; "" where one does. Raises UserError."""
    if not isinstance(config, Mapping):
        raise UserError(f"{name}: a model config is a mapping with a model_type")
    kind = str(_unwrapped(config).get("model_type") or "")
    if kind in UNMODELLED:
        return f"{name}: model_type = {kind!r}: {UNMODELLED[kind]} are not modelled"
    if kind not in DECLARED:
        return f"{name}: model_type = {kind!r} is not known{suggest(kind, DECLARED) or allowed(DECLARED)}"
    return ""


def _unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config, or the part of it for text where that alone is read; its model_type is that of the whole."""
    family = DECLARED.get(str(config.get("model_type") or ""))
    for wrapper in () if family and family.nested else WRAPPERS:
        inner = config.get(wrapper)
        if isinstance(inner, Mapping) and "hidden_size" not in config:
            config = {"model_type": config.get("model_type"), **inner}
    return config
