"""The first cases of the fuzzer: results that obey laws or refusals in words, nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import simpar
from simpar.report.result import Result
from tests.gate import some

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FUZZ = runpy.run_path(str(BENCHMARKS / "fuzz.py"))
COMMANDS = runpy.run_path(str(BENCHMARKS / "fuzz_commands.py"))


@pytest.mark.parametrize("seed", some(range(24), [0, 1, 2, 4, 5, 6, 9, 14, 20]))
def test_every_case_is_a_lawful_result_or_a_refusal(seed: int) -> None:
    """Sums, signs, MFU <= HFU <= 1, exposed <= busy, static <= peak; engines, folding and faster links agree."""
    kind, findings = FUZZ["outcome"](seed)
    assert kind in ("result", "refused", "invalid")
    assert not findings


FOUND = {
    "model": "tiny-llama", "cluster": {"hardware": "a100-800", "nodes": 1, "scale": {}}, "stack": "megatron-sc21",
    "plan": {
        "tp": 8, "micro_batch": 1, "zero": 1, "schedule": "dualpipev", "sequence_parallel": False, "optimizer": "lion",
        "offload_activations": 0.5,
    },
    "training": {"seq_len": 128, "global_batch": 32}, "perturbation": {"slow_ranks": {5: 3.0}},
}  # fmt: skip


def test_a_case_that_was_a_finding() -> None:
    """Launches behind a slow rank made steps longer on faster links. Written out: lists that seeds draw from grow."""
    result = FUZZ["run"](FOUND)
    assert not FUZZ["broken"](result)
    assert not FUZZ["disagreements"](FOUND, result)


@pytest.mark.parametrize(
    ("kind", "seeds"),
    some(
        [
            ("search", range(4, 6)),
            ("file", range(2)),
            ("broken", range(10)),
            ("mixed", range(2)),
            ("advice", (3,)),
            ("search", (6, 7, 16)),
            ("file", range(2, 4)),
            ("broken", range(10, 24)),
            ("advice", range(6, 12)),
        ],
        5,
        tuples=True,
    ),
)
def test_every_command_answers_or_names_the_problem(kind: str, seeds: Iterable[int]) -> None:
    """Exit codes 0, 2 and 3; a line a problem; what was answered is answered again from files and saved results."""
    before = COMMANDS["ENDED"][0]
    assert [problem for seed in seeds for problem in COMMANDS["outcome"](kind, seed)[1]] == []
    assert COMMANDS["ENDED"][0] > before or kind == "broken"


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
    ("defect", "said"), [(_more_static, "above the peak"), (_more_exposed, "above busy")], ids=["static", "exposed"]
)
def test_planted_defects_are_found(
    defect: Callable[[Result], Result], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator that states more than it holds, or exposes more than it communicates, is caught."""
    right = simpar.simulate
    monkeypatch.setattr(simpar, "simulate", lambda *given, **options: defect(right(*given, **options)))
    found = (each for seed in range(6) for each in FUZZ["outcome"](seed)[1])  # until one of them shows it
    assert any(said in each for each in found)
