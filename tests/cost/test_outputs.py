"""Logits that a pipeline's last stage keeps until its schedule has ended, by hand."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.cost.memory.terms import PASSES, UPDATE, StaticMemory
from simpar.layout.deciders import resolve
from simpar.layout.layout import apply_execution_choices
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack
from tests.cost.account import stage_static_memory

TRAINING = Training(seq_len=1024, global_batch=64)
VOCAB = 128_256


def account(stage: int, stack: str = "torchtitan", **plan: object) -> StaticMemory:
    """The memory of a pipeline rank of Llama 3 8B that no pass brings or takes."""
    asked = Plan(**plan)
    habits = apply_execution_choices(load_stack(stack), asked)
    return stage_static_memory(load_model("llama-3-8b"), resolve(asked, habits), TRAINING, habits, stage)


def outputs(stage: int, **plan: object) -> dict[str, float]:
    """Bytes of the terms of outputs, by when they are there."""
    terms = account(stage, **plan).terms
    return {each.alive: float(each.size_bytes) for each in terms if each.name.startswith("outputs of the last stage")}


@pytest.mark.parametrize(("kept", "microbatches"), [(1, 1), (5, 5), (1_000_000, 16)])
def test_logits_of_so_many_microbatches_stay(kept: int, microbatches: int) -> None:
    """2 bytes of a logit, of no more microbatches than there are (64 sequences / dp 2 / 2): twice while joined."""
    each = 2 * 1024 * VOCAB * 2
    found = outputs(3, pp=4, dp=2, micro_batch=2, zero=3, kept_outputs=kept)
    assert found[PASSES] == microbatches * each
    needed = sum(
        float(term.size_bytes) for term in account(3, pp=4, dp=2, micro_batch=2, zero=3).terms if term.alive == UPDATE
    )
    assert found[UPDATE] == max(2 * microbatches * each - needed, 0)


def test_a_rank_has_its_part_of_the_vocabulary() -> None:
    """Split by tensor parallelism, and the tokens by context parallelism; padded to whole rows of every rank."""
    whole, split = (outputs(1, pp=2, dp=2, kept_outputs=8, **more)[PASSES] for more in ({}, {"tp": 4}))
    padded = -(-VOCAB // 512) * 512
    assert split == whole / VOCAB * padded / 4
    assert outputs(1, pp=2, dp=2, cp=2, kept_outputs=8)[PASSES] == whole / 2


def test_they_are_in_the_parts_of_a_stage_and_in_its_curve() -> None:
    """What a stage holds at its peak is all there is, and the highest point of its curve, with them as without."""
    for kept in (0, 8):
        plan = {"pp": 2, "zero": 3, "kept_outputs": kept}
        memory = simpar.simulate("gpt2", "dgx-h100", plan, TRAINING, stack="automodel").memory
        for stage in memory.stages:
            assert sum(stage.parts_bytes.values()) == pytest.approx(stage.peak_bytes, abs=1)
        assert memory.peak_memory_bytes == pytest.approx(max(stage.peak_bytes for stage in memory.stages), abs=1)
        curves = simpar.simulate("gpt2", "dgx-h100", plan, TRAINING, stack="automodel").timeline.memory
        assert max(max(curve.total_bytes) for curve in curves) == pytest.approx(memory.peak_memory_bytes, rel=1e-3)


def test_a_plan_that_leaves_their_number_open_is_told() -> None:
    """Where there are more than recipes have in a run of the schedule; not if it is said, or without a pipeline."""

    def told(**plan: object) -> bool:
        setup = simpar.simulate("gpt2", "dgx-h100", {"zero": 3, **plan}, TRAINING, stack="automodel").setup
        return any("kept on the last stage" in each for each in setup.model.get("assumed", ()))

    assert told(pp=2)
    assert not told(pp=2, kept_outputs=16)
    assert not told(pp=2, micro_batch=2)  # 8 microbatches
    assert not told()


def test_only_the_last_stage_of_a_pipeline_keeps_them() -> None:
    """Not the first one, nor one rank alone; torchtitan asks its schedule for none, NeMo Automodel does not."""
    assert set(outputs(0, pp=4, dp=2, kept_outputs=8).values()) == {0.0}
    assert set(outputs(0, dp=8, kept_outputs=8).values()) == {0.0}
    assert outputs(3, pp=4, dp=2) == {}
    assert load_stack("torchtitan").memory.kept_outputs == 0
    assert load_stack("automodel").memory.kept_outputs >= 64
