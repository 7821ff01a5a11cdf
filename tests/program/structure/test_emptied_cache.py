"""Steps behind which the allocator's cache is emptied."""

from __future__ import annotations

import pytest

from simpar import simulate
from simpar.cost.memory.allocator import REMAP_FACTORS, REMAP_S_PER_BYTE
from simpar.report.result import Result

JOB = {"model": "gpt2-small", "cluster": "dgx-a100", "training": {"seq_len": 1024, "global_batch": 64}}


def simulated(**plan: object) -> Result:
    """A step of GPT-2 on eight A100."""
    return simulate(plan=plan, **JOB)


@pytest.mark.parametrize("plan", [{"dp": 8, "micro_batch": 4}, {"dp": 2, "pp": 4}])
def test_what_comes_and_goes_is_mapped_again(plan: dict[str, object]) -> None:
    """The step is longer by ten milliseconds a GB of activations; a tenth of it where that is every tenth step."""
    never, often, rarely = (
        simulated(**plan, **given) for given in ({}, {"empty_cache_steps": 1}, {"empty_cache_steps": 10})
    )
    more_s = often.step_time_s - never.step_time_s
    moving = max(stage.activations_bytes + stage.transient_bytes for stage in never.memory.stages)
    assert more_s == pytest.approx(moving * REMAP_S_PER_BYTE, rel=0.1)
    assert rarely.step_time_s - never.step_time_s == pytest.approx(more_s / 10, rel=1e-4)
    assert often.memory.peak_memory_bytes == never.memory.peak_memory_bytes


def test_an_interval_says_that_nobody_measured_it() -> None:
    """It reaches as far as eight times that time, and words say so; every other plan's answer has neither."""
    never, often = simulated(dp=8), simulated(dp=8, empty_cache_steps=1)
    above = [result.certainty.step_time_interval_s[1] / result.step_time_s for result in (never, often)]
    assert above[1] > above[0]
    assert REMAP_FACTORS[0] < 0 < REMAP_FACTORS[1]
    assert any("empties its cache" in words for words in often.certainty.unsupported)
    assert not any("empties its cache" in words for words in never.certainty.unsupported)
