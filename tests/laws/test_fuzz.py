"""The first cases of the fuzzer: results that obey laws or refusals in words, nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import simpar
from simpar.report.result import Result

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz.py"))


@pytest.mark.parametrize("seed", range(24))
def test_every_case_is_a_lawful_result_or_a_refusal(seed: int) -> None:
    """Sums, signs, MFU <= HFU <= 1, exposed <= busy, static <= peak; engines, folding and faster links agree."""
    kind, findings = FUZZ["outcome"](seed)
    assert kind in ("result", "refused", "invalid")
    assert not findings


def _more_static(result: Result) -> Result:
    """States larger than everything together."""
    memory = result.memory
    more = memory.model_copy(update={"static_memory_bytes": 2 * memory.peak_memory_bytes})
    return replace(result, memory=more)


def _more_exposed(result: Result) -> Result:
    """Communication exposed for longer than it runs."""
    changed = {
        kind: each.model_copy(update={"exposed_s": 2 * each.busy_s + 1.0})
        for kind, each in result.communication.items()
    }
    return replace(result, communication=changed)


@pytest.mark.parametrize(
    ("defect", "said"),
    [(_more_static, "above the peak"), (_more_exposed, "above busy")],
    ids=["static", "exposed"],
)
def test_planted_defects_are_found(
    defect: Callable[[Result], Result], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that states more than it holds, or exposes more than it communicates, is caught."""
    right = simpar.simulate
    monkeypatch.setattr(simpar, "simulate", lambda *given, **options: defect(right(*given, **options)))
    found = [each for seed in range(6) for each in FUZZ["outcome"](seed)[1]]
    assert any(said in each for each in found)
