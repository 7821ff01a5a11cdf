"""Ranks that Ray starts, one a worker, as options of LLaMA-Factory and Axolotl say."""

from collections.abc import Mapping
from typing import Any

from simpar.frameworks.reader import USE_RAY
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand
from simpar.frameworks.words import is_off

WORKERS = "ray_num_workers"
SWITCH = "use_ray"
"""The option by which Axolotl does (``cli/train.py``)."""
USUAL_WORKERS = 1
"""Of both (``hparams/training_args.py``; ``utils/schemas/integrations.py``)."""


def replicas_of_ray(
    given: TrainerArguments, trainer: str, command: TrainerCommand | None, values: Mapping[str, Any]
) -> dict[str, int]:
    """The data-parallel ranks of a plan with ``values`` where Ray starts them; nothing where it does not.

    A file of LLaMA-Factory's alone that says how many workers there are is one for Ray; beside a command without the
    variable the number is left to the table of words. Raises UserError for workers that are no multiple of the ranks
    of a replica.
    """
    if trainer == "llama-factory":
        told = given.number(WORKERS)
        switched = told is not None if command is None else not is_off(command.environment.get(USE_RAY) or None)
        if not switched and told is not None:
            given.leave(WORKERS)
    elif trainer == "axolotl":
        told, switched = given.number(WORKERS), bool(given.on(SWITCH))
    else:
        return {}
    if not switched:
        return {}
    ranks = (values.get("tp") or 1) * (values.get("cp") or 1)
    replicas, rest = divmod(told or USUAL_WORKERS, ranks)
    if rest or not replicas:
        raise given.refused(WORKERS if told else SWITCH, f"a multiple of the {ranks} ranks of a replica")
    return {"dp": replicas}
