"""What of a family of cases runs in the gate; the others are slow, and run before a release."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings


def some(cases: Iterable[Any], gate: Iterable[Any] | int, *, tuples: bool = False) -> list[Any]:
    """Cases for ``parametrize``, of which the named ones, or that many first ones, run in the gate.

    With ``tuples`` each case is one of several arguments.
    """
    listed = list(cases)
    named = listed[:gate] if isinstance(gate, int) else list(gate)
    assert all(each in listed for each in named), "a case that is named is one of them"
    slow = pytest.mark.slow
    return [pytest.param(*(each if tuples else [each]), marks=() if each in named else slow) for each in listed]


def assert_law(law: Callable[..., None], examples: int, **drawn: Any) -> None:
    """Assert a law for that many examples of what is drawn for its arguments: few in the gate, many when slow."""
    settings(max_examples=examples, deadline=None)(given(**drawn)(law))()
