"""Options with which a trainer's model is loaded: those in a mapping, where its layers are, a checkpoint's dtype."""

import re
from collections.abc import Mapping

from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import MODEL

CHECKPOINTING = (
    "gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing", "grad_checkpoint",
    "grad_checkpointing", "use_grad_checkpoint", "enable_gradient_checkpointing",
)  # fmt: skip
"""Switches of recomputation, by the names that versions and scripts give them."""
SECTION = "model_init_kwargs"
_KNOWN = ("torch_dtype", "dtype", "attn_implementation", "device_map", "load_in_4bit", "load_in_8bit")
"""Options of ``from_pretrained`` that arguments have by the same names."""
_IDLE = ("revision", "trust_remote_code", "use_cache", "low_cpu_mem_usage", "cache_dir", "token", "use_safetensors")
"""Options of it without effect on time and memory."""
_OF_CHECKPOINTING = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
_OF_TORCH = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug")
"""Options of torch's checkpointing without effect on what is kept."""
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
    if given.values_.get("half_precision_backend") in ("auto", "cuda_amp"):
        given.get("half_precision_backend")
    if str(given.values_.get("torch_compile")).lower() == "auto":  # Axolotl's: where torch is new enough
        given.leave("torch_compile")
    place = given.values_.get("device_map")
    if is_one_device(place):
        given.get("device_map")


def offloads_checkpoints(given: TrainerArguments) -> bool:
    """Whether saved activations wait on the host (``{"offload": true}``, transformers 5).

    Options that checkpoint some layers alone are left to the table.
    """
    away = False
    if str(given.told(*CHECKPOINTING)).lower().startswith("offload_"):  # to disk
        given.leave(*CHECKPOINTING)
    for name in _OF_CHECKPOINTING:
        options = given.told(name)
        if not isinstance(options, Mapping):
            continue
        away = away or bool(options.get("offload"))
        if options.get("every_n_layers") not in (None, 1) or set(options) - {*_OF_TORCH, "offload", "every_n_layers"}:
            given.leave(name)
    return away


def is_one_device(place: object) -> bool:
    """Whether a ``device_map`` puts a whole model on one device."""
    if isinstance(place, Mapping):
        return set(place) == {""}
    return isinstance(place, int) or (isinstance(place, str) and re.fullmatch(r"cuda(:\d+)?", place) is not None)


def is_of_checkpoint(given: TrainerArguments, told: str) -> bool:
    """Whether a dtype is said to be that of the checkpoint (``auto``), and this is one of 16 bits."""
    return told == "auto" and _OF_FP32.search(str(given.told(*MODEL))) is None
