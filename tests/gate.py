"""What of a family of cases runs in the gate; the others are slow, and run before a release."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], gate: Iterable[Any] | int, *, tuples: bool = False) -> list[Any]:
    """Cases for ``parametrize``, of which the named ones, or that many first ones, run in the gate.

    With ``tuples`` each case is one of several arguments.
    """
    listed = list(cases)
    named = listed[:gate] if isinstance(gate, int) else list(gate)
    assert all(each in listed for each in named), "a case that is named is one of them"
    slow = pytest.mark.slow
    return [
        pytest.param(*(each if tuples else [each]), marks=() if each in named else slow) for each in listed
    ]
