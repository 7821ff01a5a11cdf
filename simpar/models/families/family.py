"""What a family of models declares: the reader of its config, its details, names of its weights, a tiny config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simpar.models.config import Family
from simpar.models.details import Details


@dataclass(frozen=True)
class ModelFamily:
    """A family: ``kinds`` are its values of ``model_type``, ``read`` makes a graph of its ``config.json``.

    ``details`` are defaults for configs that do not state them; ``scaled_by_root``: embeddings are multiplied by the
    root of the hidden size. Its weights have the names of another family, ``weights_like``, except for the modules in
    ``layer`` and ``ends`` (simpar's name -> the family's, see :class:`simpar.runtime.hf_weights.Names`). ``tiny`` is a
    config with all features of the family, small enough to be trained in a test.
    """

    kinds: tuple[str, ...]
    read: Family
    details: Details
    tiny: Mapping[str, Any]
    weights_like: str = "llama"
    layer: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    scaled_by_root: bool = False
