"""Families of models, each in a file that declares everything about it; to add one, add a file with ``FAMILIES``."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec

from simpar.architectures.families.family import ModelFamily
from simpar.declared import entries


class Families(Mapping[str, ModelFamily]):
    """Families by ``model_type``: that of a file of this name is known without the others, which are many to load."""

    def __getitem__(self, model_type: str) -> ModelFamily:
        return self._of_its_file(model_type) or self._all[model_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, ModelFamily]:
        return _by_type(entries(__name__, __path__, "FAMILIES"))

    def _of_its_file(self, model_type: str) -> ModelFamily | None:
        if "_all" in vars(self) or not model_type.isidentifier() or not find_spec(module := f"{__name__}.{model_type}"):
            return None
        return _by_type(getattr(import_module(module), "FAMILIES", ())).get(model_type)


def _by_type(families: Iterable[ModelFamily]) -> dict[str, ModelFamily]:
    return {name: family for family in families for name in (family.model_type, *family.aliases)}


DECLARED: Mapping[str, ModelFamily] = Families()
"""Families by ``model_type``."""
