"""Towers of models that see or hear: what trainers leave as it is of them where nothing is said."""

from collections.abc import Mapping, Sequence
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import ReadWords

ADAPTED = "a tower with adapters"
"""The word that stands for what a trainer does with a tower beside adapters, which leave it alone here."""
OF_TOWERS: Mapping[str, str] = {
    ADAPTED: "matrices of the tower or its projector are trained beside the decoder's adapters: memory and time"
}
"""What it could change."""


def has_tower(model: str | None) -> bool:
    """Whether a shipped model is simulated with a tower of images or sound."""
    return model is not None and any(name.startswith(("vision.", "audio.")) for name in load_model(model).dims)


def switches_of_tower(given: TrainerArguments, switches: Sequence[str], model: str | None) -> tuple[bool, ...]:
    """Whether a trainer trains a model's tower and its projector; () where there are none.

    ``switches`` are those by which it leaves them as they are, both on where nothing is said.
    """
    return tuple(given.on(each) is False for each in switches) if has_tower(model) else ()


def frozen_parts(are_trained: Sequence[bool]) -> dict[str, Any]:
    """What of a tower a plan freezes where its layers and its projector are trained, or not."""
    parts = zip(("frozen_tower", "frozen_connector"), are_trained, strict=False)
    return {part: True for part, is_trained in parts if not is_trained}


def word_of_tower(are_trained: Sequence[bool]) -> ReadWords:
    """The word for a tower or a projector of which something is trained beside adapters; none if both are left."""
    return ReadWords((), {ADAPTED: True} if any(are_trained) else {})
