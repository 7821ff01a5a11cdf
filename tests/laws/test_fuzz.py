"""The first cases of the fuzzer: results that obey laws or refusals in words, nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz.py"))


@pytest.mark.parametrize("seed", range(24))
def test_every_case_is_a_lawful_result_or_a_refusal(seed: int) -> None:
    """Sums, signs, MFU <= HFU <= 1, exposed <= busy, static <= peak; engines, folding and faster links agree."""
    kind, findings = FUZZ["outcome"](seed)
    assert kind in ("result", "refused", "invalid")
    assert not findings
