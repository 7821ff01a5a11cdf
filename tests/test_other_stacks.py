"""The default stack decides the answer: what another one gives is said where none was asked for."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.other_stacks import with_other_stacks
from simpar.report.words import assumptions


def inputs(**plan: Any) -> dict[str, Any]:
    """An 8B model on one node."""
    training = simpar.Training(seq_len=8192, global_batch=64)
    return {
        "model": "llama-3-8b",
        "cluster": simpar.Cluster("dgx-h100"),
        "plan": simpar.Plan(**plan),
        "training": training,
    }


def test_the_default_stack_and_what_another_gives_are_said() -> None:
    """The figure is that of the command with the other stack."""
    asked = inputs(zero=3)
    result = with_other_stacks(simpar.simulate(**asked), asked)
    (trial,) = result.why.stacks
    other = simpar.simulate(**asked, stack="torchtitan")
    assert (trial.step_time_s, trial.fits) == (other.step_time_s, other.fits)
    (line,) = assumptions(result)
    assert line.startswith("megatron stack (--stack sets another); with torchtitan: 8.")
    assert f"({other.step_time_s / result.step_time_s - 1:+.1%})" in line
    assert not trial.not_with


def test_a_plan_that_another_framework_does_not_offer_has_no_figure_of_it() -> None:
    """FSDP has no ZeRO-1."""
    asked = inputs(tp=2, zero=1)
    (line,) = assumptions(with_other_stacks(simpar.simulate(**asked), asked))
    assert "torchtitan does not offer this plan (zero = 1" in line
    assert "%" not in line


def test_of_several_settings_that_another_framework_does_not_offer_the_names_are_said() -> None:
    """The line stands above the answer: why each is not offered is what its export says."""
    asked = inputs(zero=1, frozen_layers=16, precision="fp16")
    (line,) = assumptions(with_other_stacks(simpar.simulate(**asked), asked))
    assert line.endswith("torchtitan does not offer this plan (precision = fp16, tuning.frozen_layers = 16, zero = 1)")


@pytest.mark.parametrize(("zero", "said"), [(3, "with torchtune: "), (0, "torchtune does not offer this plan (")])
def test_adapters_have_a_default_stack_of_their_own(zero: int, said: str) -> None:
    """Megatron-Core trains none; torchtune does where it shards everything."""
    asked = inputs(zero=zero, lora_rank=16, frozen_dtype="nf4")
    result = with_other_stacks(simpar.simulate(**asked), asked)
    *waits, line = assumptions(result)
    assert ["defer_grad_reduce" in words for words in waits] == [True] * (zero == 3)
    assert line.startswith(f"huggingface stack (--stack sets another); {said}")
    assert result.step_time_s == simpar.simulate(**asked, stack="huggingface").step_time_s


@pytest.mark.parametrize("way", ["argument", "plan"])
def test_a_stack_that_was_asked_for_is_not_questioned(way: str) -> None:
    """Neither as an argument nor in the plan."""
    asked = inputs(zero=3) | ({"stack": "megatron"} if way == "argument" else {})
    if way == "plan":
        asked["plan"] = asked["plan"].model_copy(update={"stack": "megatron"})
    result = simpar.simulate(**asked)
    assert with_other_stacks(result, asked) is result
    assert assumptions(result) == []
