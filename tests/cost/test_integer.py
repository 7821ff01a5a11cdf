"""Integer programs: solved, and silent."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from simpar.cost import integer
from simpar.cost.integer import least


def test_a_knapsack() -> None:
    """Worth 6, 5, 4 of weights 5, 4, 3 in 7: the last two."""
    from scipy.optimize import Bounds, LinearConstraint

    found = least(
        -np.array([6.0, 5.0, 4.0]),
        constraints=LinearConstraint(np.array([[5.0, 4.0, 3.0]]), -np.inf, 7.0),
        integrality=np.ones(3),
        bounds=Bounds(0, 1),
    )
    assert np.rint(found.x).tolist() == [0, 1, 1]


def test_what_compiled_code_prints_is_dropped(capfd) -> None:  # type: ignore[no-untyped-def]
    """Also what waits in the buffer of C, while our own words before and behind come through."""
    os.write(1, b"before ")
    with integer._silent():
        os.write(1, b"unbuffered ")
        ctypes.CDLL(None).puts(b"buffered")
    os.write(1, b"behind")
    assert capfd.readouterr().out == "before behind"
