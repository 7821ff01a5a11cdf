"""What a family of models declares: how its config is read, and all else that is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simpar.models.config import Family
from simpar.models.details import Details


@dataclass(frozen=True)
class ModelFamily:
    """A family: ``kinds`` are its values of ``model_type``, ``read`` makes a graph of its ``config.json``.

    ``details`` are those of configs that do not say them; ``scaled_by_root``: embeddings are multiplied with the root
    of the hidden size. Its weights have the names of another family, ``weights_like``, but for modules of ``layer`` and
    ``ends``, theirs by ours (:class:`simpar.runtime.hf_weights.Names`). ``tiny`` is a config that has all of it, so
    small that a test trains it.
    """

    kinds: tuple[str, ...]
    read: Family
    details: Details
    tiny: Mapping[str, Any]
    weights_like: str = "llama"
    layer: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    scaled_by_root: bool = False
