"""Integer programs, solved by HiGHS through scipy without what it prints on its own."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def least(objective: Any, **problem: Any) -> Any:
    """``scipy.optimize.milp``: least linear objective over integers and reals; ``x`` is None where none is allowed."""
    from scipy.optimize import milp

    with _silent():
        return milp(objective, **problem)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing that compiled code writes reaches standard output: HiGHS reports steps of its heuristics there."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what lies in the buffer of C belongs to the solver
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
