"""Towers of models that see or hear: what trainers leave as it is of them where nothing is said.

A shipped model with a tower is simulated with it trained as the decoder is, and beside adapters as left alone.
"""

from collections.abc import Mapping, Sequence

from simpar.architectures.catalogue import load_model
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import ReadWords

FROZEN, ADAPTED = "a tower that is left as it is", "a tower with adapters"
"""The words that stand for what a trainer does with a tower."""
OF_TOWERS: Mapping[str, str] = {
    FROZEN: "this trainer leaves the tower or its projector as it is, unless it is told otherwise; both are counted as "
    "trained here: memory and time",
    ADAPTED: "matrices of the tower or its projector are trained beside the decoder's adapters: memory and time",
}
"""What these words could change."""


def has_tower(model: str | None) -> bool:
    """Whether a shipped model is simulated with a tower of images or sound."""
    return model is not None and any(name.startswith(("vision.", "audio.")) for name in load_model(model).dims)


def words_of_tower(given: TrainerArguments, switches: Sequence[str], model: str | None, *, adapts: bool) -> ReadWords:
    """The word for what a trainer does with a model's tower, where that is not simulated; none for all others.

    ``switches`` are those by which it leaves the tower and its projector as they are, all on where nothing is said.
    """
    if not switches or not has_tower(model):
        return ReadWords()
    return word_of_tower([given.on(each) is False for each in switches], adapts=adapts)


def word_of_tower(are_trained: Sequence[bool], *, adapts: bool) -> ReadWords:
    """The word for a tower and its projector, of which some are trained beside the decoder or its adapters."""
    if adapts:
        return ReadWords((), {ADAPTED: True} if any(are_trained) else {})
    return ReadWords((), {} if all(are_trained) else {FROZEN: True})
