"""Families of models, each in a file that declares everything about it; to add one, add a file with ``FAMILIES``."""

from simpar.architectures.families.family import ModelFamily
from simpar.declared import entries


def _listed() -> dict[str, ModelFamily]:
    declared: list[ModelFamily] = entries(__name__, __path__, "FAMILIES")
    return {name: family for family in declared for name in (family.model_type, *family.aliases)}


DECLARED = _listed()
"""Families by ``model_type``."""
