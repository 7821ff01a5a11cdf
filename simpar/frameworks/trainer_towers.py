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


BOTH = "freeze_mm_modules"
"""Axolotl's switch for towers and projectors."""
FREEZES = (
    (BOTH, "freeze_vision_tower", "freeze_vit", "freeze_vision", "freeze_vision_model", "freeze_backbone"),
    (BOTH, "freeze_merger", "freeze_projector", "freeze_multi_modal_projector", "freeze_aligner", "freeze_mlp"),
)
TUNES = (
    ("tune_mm_vision", "tune_vision_tower", "tune_vision"),
    ("tune_mm_mlp", "tune_mm_projector", "tune_merger", "tune_mlp"),
)
"""Switches of scripts by which a tower, and its projector, are left as they are, or trained (Qwen-VL, InternVL)."""


def has_tower(model: str | None) -> bool:
    """Whether a shipped model is simulated with a tower of images or sound."""
    return model is not None and any(name.startswith(("vision.", "audio.")) for name in load_model(model).dims)


def switches_of_tower(given: TrainerArguments, switches: Sequence[str], model: str | None) -> tuple[bool, ...]:
    """Whether a trainer trains a model's tower and its projector; () where there are none, or nothing is said.

    ``switches`` are those by which it leaves them as they are, both on where nothing is said. Other scripts have
    switches of their own; of those that say what is trained, one that is not said is off beside another.
    """
    if not has_tower(model):
        return ()
    if switches:
        return tuple(given.on(each) is False for each in switches)
    frozen, tuned = (
        [next((told for key in keys if (told := given.on(key)) is not None), None) for keys in of_parts]
        for of_parts in (FREEZES, TUNES)
    )
    if frozen == tuned == [None, None]:
        return ()
    usual = tuned == [None, None]
    return tuple(
        not is_frozen if is_frozen is not None else is_tuned if is_tuned is not None else usual
        for is_frozen, is_tuned in zip(frozen, tuned, strict=True)
    )


def frozen_parts(are_trained: Sequence[bool]) -> dict[str, Any]:
    """What of a tower a plan freezes where its layers and its projector are trained, or not."""
    parts = zip(("frozen_tower", "frozen_connector"), are_trained, strict=False)
    return {part: True for part, is_trained in parts if not is_trained}


def word_of_tower(are_trained: Sequence[bool]) -> ReadWords:
    """The word for a tower or a projector of which something is trained beside adapters; none if both are left."""
    return ReadWords((), {ADAPTED: True} if any(are_trained) else {})
