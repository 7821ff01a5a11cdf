"""Functions that make tiny models of transformers, one for every config of ``tests.runtime.tiny_models`` by its name.

They are what a user writes: ``AutoModelForCausalLM.from_config`` and nothing else. Dashes of names are underscores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers

from tests.runtime.tiny_models import MODELS

NAMES = {name.replace("-", "_"): name for name in MODELS}


def config_of(name: str) -> Any:
    """The configuration of a model, with the defaults of its class."""
    return transformers.AutoConfig.for_model(name.split("-")[0], **MODELS[name])


def made(name: str) -> Any:
    """The model as its library makes it."""
    return transformers.AutoModelForCausalLM.from_config(config_of(name))


def __getattr__(name: str) -> Callable[[], Any]:
    """The maker of one model."""
    if name not in NAMES:
        raise AttributeError(name)
    return partial(made, NAMES[name])
