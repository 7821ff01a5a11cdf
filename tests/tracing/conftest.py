"""One small decoder, captured once for all tests of what reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

FOLDER = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def llama() -> Iterator[Any]:
    """The Capture of ``traced_models:llama`` at 32 tokens."""
    pytest.importorskip("torch")
    from simpar.tracing.capture import capture
    from simpar.tracing.code import call_user_function

    sys.path.insert(0, FOLDER)
    yield capture("traced_models:llama", 32, partial(call_user_function, "traced_models:llama"))
    sys.path.remove(FOLDER)
