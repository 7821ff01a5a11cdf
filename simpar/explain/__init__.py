"""Explains where a measured step went and what would change it: traces of real runs beside the prediction.

``simpar.explain("trace-rank0.json.gz", ...)`` works whether or not this package has been imported, because the package
itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from simpar.explain.answer import Explanation, explain
from simpar.explain.page import save_page

__all__ = ["Explanation", "explain", "save_page"]


class _Callable(ModuleType):
    """A package that can be called like the function it is named after."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _Callable
