"""Hugging Face config.json to ModelGraph, by the family of its model_type."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.dropout import FIELD, with_dropout_said
from simpar.architectures.encoders import leave_out
from simpar.architectures.families import DECLARED
from simpar.architectures.families.unmodelled import OF_OTHER_CODE, UNCAPTURED, UNMODELLED, UNSEEN
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_details import details
from simpar.architectures.transformer import clipped
from simpar.architectures.vision_reading import TEXT_CONFIGS, TOWERS
from simpar.errors import UserError
from simpar.files import allowed, suggest

__all__ = ["TEXT_CONFIGS", "TOWERS", "UNSEEN", "read", "reason_unread"]


def read(config: Mapping[str, Any], name: str = "model") -> ModelGraph:
    """The graph of a config. Raises UserError naming file, field, value and rule."""
    if why := reason_unread(config, name):
        raise UserError(why)
    config = {"model_type": config.get("_class_name"), **config}
    config, left_out = _unwrapped(config)
    family = DECLARED[str(config["model_type"])]
    fields = Config(config, name)
    graph = family.read(fields, name, read) if family.nested else family.read(fields, name)
    graph, said = leave_out(graph, left_out), fields.mapping(FIELD)
    graph = with_dropout_said(replace(graph, details=details(fields, graph, family)), said, name)
    return clipped(graph) if graph.details.caps.projections else graph


def reason_unread(config: Mapping[str, Any], name: str) -> str:
    """Why no declared family reads a config, as a refusal of one line; "" where one does. Raises UserError."""
    if not isinstance(config, Mapping):
        raise UserError(f"{name}: a model config is a mapping with a model_type")
    made_by = config.get("_class_name")
    kind = str(_unwrapped(config)[0].get("model_type") or "")
    if not kind and made_by in DECLARED:
        return ""
    classes = config.get("architectures")
    if classes is not None and not isinstance(classes, list | tuple):
        raise UserError(f"{name}: architectures = {classes!r}: allowed: a list of names of classes")
    other = next((OF_OTHER_CODE[str(each)] for each in classes or () if str(each) in OF_OTHER_CODE), "")
    if kind in UNCAPTURED or other:
        raise UserError(
            f"{name}: {'architectures' if other else 'model_type'} = {classes if other else kind!r}: "
            f"{other or UNCAPTURED[kind]} are neither modelled nor captured; allowed: a model without them, as a "
            "config or as module:function"
        )
    if not kind and made_by:
        read_ones = ", ".join(kind for kind in DECLARED if kind.endswith("DModel"))
        raise UserError(
            f"{name}: _class_name = {made_by!r}: this class of diffusers is not read; allowed: {read_ones}, or a "
            "model_type"
        )
    if kind in UNMODELLED:
        return f"{name}: model_type = {kind!r}: {UNMODELLED[kind]} are not modelled"
    if kind not in DECLARED:
        near = suggest(kind, DECLARED) if kind else allowed(DECLARED)
        return f"{name}: model_type = {kind!r} is of no declared family{near.removesuffix('?')}"
    return ""


TIED = ("tie_word_embeddings",)
"""Fields that count for more beside a language model's section than in it."""


def _unwrapped(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The config, or the part of it for text where that alone is read, and what is said of the rest."""
    family = DECLARED.get(str(config.get("model_type") or ""))
    if family and family.nested:
        return config, ()
    said = [f"text only: {tower} is of no family that is known with it" for tower in TOWERS if config.get(tower)]
    inner = next((each for name in TEXT_CONFIGS if isinstance(each := config.get(name), Mapping)), None)
    if inner is not None and "hidden_size" not in config:
        outside = {name: config[name] for name in TIED if config.get(name) is not None}
        if not said and config.get("model_type") not in (inner.get("model_type"), *DECLARED):
            said = [f"text only: what {config.get('model_type')} has beside its language model is not known"]
        config = {"model_type": config.get("model_type"), **inner, **outside}
    return {name: value for name, value in config.items() if name not in TOWERS}, tuple(said)
