"""Where did a measured step go, and what would change it? Traces of real runs beside what is predicted.

``simpar.explain("trace-rank0.json.gz", ...)`` is the front door and works whether or not this package was imported
before: the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from simpar.explain.answer import Explanation, explain
from simpar.explain.page import save_page

__all__ = ["Explanation", "explain", "save_page"]


class _Callable(ModuleType):
    """A package named like the verb that it is for."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _Callable
