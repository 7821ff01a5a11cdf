"""Options with which a trainer's model is loaded: those in a mapping, where its layers are, a checkpoint's dtype."""

import re
from collections.abc import Mapping

from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import MODEL

SECTION = "model_init_kwargs"
_KNOWN = ("torch_dtype", "dtype", "attn_implementation", "device_map", "load_in_4bit", "load_in_8bit")
"""Options of ``from_pretrained`` that arguments have by the same names."""
_IDLE = ("revision", "trust_remote_code", "use_cache", "low_cpu_mem_usage", "cache_dir", "token", "use_safetensors")
"""Options of it without effect on time and memory."""
_OF_FP32 = re.compile(r"gpt-?2|bert|(^|/)(flan-)?t5|starcoder|cerebras", re.IGNORECASE)
"""Models whose checkpoints are fp32, or not of one dtype in all sizes."""


def take_model_options(given: TrainerArguments) -> None:
    """Take options of ``model_init_kwargs`` as arguments, and leave the mapping to the table if it has others.

    A ``device_map`` that names one device (``{"": 0}``, ``cuda:0``) puts layers nowhere else.
    """
    options = given.told(SECTION)
    if isinstance(options, Mapping):
        given.suppose(**{key: options[key] for key in _KNOWN if key in options})
        if set(options) - {*_KNOWN, *_IDLE}:
            given.leave(SECTION)
    elif options is not None:
        given.leave(SECTION)
    place = given.values_.get("device_map")
    if is_one_device(place):
        given.get("device_map")


def is_one_device(place: object) -> bool:
    """Whether a ``device_map`` puts a whole model on one device."""
    if isinstance(place, Mapping):
        return set(place) == {""}
    return isinstance(place, int) or (isinstance(place, str) and re.fullmatch(r"cuda(:\d+)?", place) is not None)


def is_of_checkpoint(given: TrainerArguments, told: str) -> bool:
    """Whether a dtype is said to be that of the checkpoint (``auto``), and this is one of 16 bits."""
    return told == "auto" and _OF_FP32.search(str(given.told(*MODEL))) is None
