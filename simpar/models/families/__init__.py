"""Families of models, each in a file that declares everything about it; to add one, add a file with ``FAMILIES``.

Older families are in tables: readers in :mod:`simpar.models.hf_config` and beside it, details in ``hf_details``, names
of weights in ``runtime/hf_weights``.
"""

from __future__ import annotations

from simpar.declared import entries
from simpar.models.families.family import ModelFamily


def _listed() -> dict[str, ModelFamily]:
    found: list[ModelFamily] = entries(__name__, __path__, "FAMILIES")
    return {kind: each for each in found for kind in each.kinds}


DECLARED = _listed()
"""Families by ``model_type``."""
