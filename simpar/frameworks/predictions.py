"""Layers that predict further tokens, where a text has another number of them than the shipped model."""

from dataclasses import replace
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks.match import layers_in
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.megatron_layers_said import (
    SAID,
    predictions_changed,
    predictions_in,
    sizes_left,
    told,
    with_all_said,
)
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords
from simpar.units import number_of


def with_predictions(imported: Imported, model: str, said: Any) -> tuple[Imported, Any]:
    """The plan of a shipped model with as many layers that predict further tokens as a text says.

    Beside it what decides, None if nothing is left: the number, where the model's family cannot have as many or where
    only running would tell.
    """
    asked = said or 0
    if isinstance(asked, int) and asked == predictions_in(load_model(model)):
        return imported, None
    changed = predictions_changed(model, asked) if isinstance(asked, int) else {}
    if not changed:
        return _without_predictions(imported, model, asked), asked or "no layers"
    plan = imported.plan.model_copy(update={"model": None})
    notes = (
        *imported.notes,
        f"{model} with {number_of(asked, 'layer')} that {'predicts' if asked == 1 else 'predict'} further tokens.",
    )
    return replace(imported, plan=plan, config={**config_of(model), **changed}, notes=notes), None


def as_said(imported: Imported, given: Arguments, model: str) -> Imported:
    """The plan of a shipped model that is given by name with sizes and layers as arguments say; the rest decides."""
    config = imported.config or config_of(model)
    result, other = with_all_said(given, config)
    left = sizes_left(given, read_config(result)) if other else set()
    unread = {word: value for word, value in imported.words.unread.items() if word not in map(given.name, {*SAID})}
    unread |= {given.name(flag): " ".join(given.values[flag]) for flag in left}
    imported = replace(imported, words=ReadWords(imported.words.used, unread))
    kept = {flag: own for flag, own in other.items() if flag not in left}
    if not kept:
        return imported
    plan = imported.plan.model_copy(update={"model": None})
    notes = (*imported.notes, given.in_own_words(f"{model} has {told(given, kept)}."))
    return replace(imported, plan=plan, config=result, notes=notes)


BY_TRANSFORMERS = frozenset(("ddp", "huggingface", "deepspeed", "verl"))
"""Stacks whose launches train transformers' models."""


def as_transformers_has_it(imported: Imported) -> Imported:
    """The plan of a shipped model without layers that predict further tokens, which transformers builds of none.

    It passes over their weights [transformers 5.24, models/*/modeling_*.py, ``_keys_to_ignore_on_load_unexpected``].
    Where the model's family cannot be without them, a note says that they are counted.
    """
    plan = imported.plan
    if plan.model is None or plan.stack not in BY_TRANSFORMERS or not predictions_in(load_model(plan.model)):
        return imported
    result, left = with_predictions(imported, plan.model, 0)
    if left is None:
        return result
    note = f"{plan.model} is counted with its layers that predict further tokens, which transformers does not build."
    return replace(imported, notes=(*imported.notes, note))


def _without_predictions(imported: Imported, model: str, asked: Any) -> Imported:
    """The plan without layers that predict further tokens at its end, which the shipped model does not have."""
    stages = imported.plan.pipeline.layers
    if not stages or not isinstance(asked, int) or sum(stages) != layers_in(model) + asked or stages[-1] < asked:
        return imported
    return replace(imported, plan=imported.plan.with_values(layers=(*stages[:-1], stages[-1] - asked)))
