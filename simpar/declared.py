"""Registries: entries that the files of a folder declare.

A file declares everything about what it adds as entries of a tuple, and the package of its folder collects them. To
add a schedule, an optimizer, a family of models or a collective is therefore to add one file, without a list of names.
"""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def entries(package: str, path: Iterable[str], attribute: str) -> list[Any]:
    """The entries of the tuples ``attribute`` in the modules of ``package``, ordered by file name.

    ``path`` are the folders of the package (its ``__path__``).
    """
    names = sorted(module.name for module in iter_modules(list(path)))
    modules = [import_module(f"{package}.{name}") for name in names]
    return [entry for module in modules for entry in getattr(module, attribute, ())]
