"""Registries: entries that the files of a folder declare.

A file says all that anyone asks of what it adds, as entries of a tuple; whoever has the folder finds them. So that a
schedule, an optimizer, a family of models or a collective is one file, and no list of names has to know it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def entries(package: str, path: Iterable[str], attribute: str) -> list[Any]:
    """The entries of all modules of ``package`` that have a tuple ``attribute``, by names of files, then in order.

    ``path`` are the folders of the package (its ``__path__``).
    """
    names = sorted(module.name for module in iter_modules(list(path)))
    modules = [import_module(f"{package}.{name}") for name in names]
    return [entry for module in modules for entry in getattr(module, attribute, ())]
