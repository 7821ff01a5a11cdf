"""One small decoder, captured once for all tests of what reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def llama() -> Iterator[Any]:
    """The Capture of ``traced_models:llama`` at 32 tokens."""
    pytest.importorskip("torch")
    from simpar.tracing.capture import capture

    sys.path.insert(0, FOLDER)
    yield capture("traced_models:llama", 32)
    sys.path.remove(FOLDER)
