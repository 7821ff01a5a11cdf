"""Optimizers of plans in other frameworks: named as these have them, or lost in words, the usual one in their place."""

import re

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.frameworks import TARGETS, Inexpressible, export, load_target
from simpar.plan.optimizers import DEFAULT_OPTIMIZER, IN_TORCH, OPTIMIZERS
from simpar.plan.plan import Plan

from .conftest import written_and_lost

LLAMA = load_model("llama-3.2-1b")
SHAPE = Training(seq_len=512, global_batch=16)


@pytest.mark.parametrize("target", TARGETS)
def test_an_optimizer_that_a_target_lacks_is_named_and_the_usual_one_stands_in_its_place(target):
    """Whatever the target, never another one in silence."""
    usual, nothing_lost = written_and_lost(target, optimizer=DEFAULT_OPTIMIZER)
    assert not nothing_lost
    known = load_target(target).numerics.optimizers
    assert DEFAULT_OPTIMIZER in known
    for name in sorted(set(OPTIMIZERS) - set(known)):
        files, lost = written_and_lost(target, optimizer=name)
        assert len(lost) == 1
        assert re.fullmatch(rf"optimizer = {name}: the target has .*: {DEFAULT_OPTIMIZER} in its place", lost[0])
        assert files == usual


@pytest.mark.parametrize("target", TARGETS)
def test_those_that_a_target_has_are_lost_nowhere_and_differ(target):
    """Files of two optimizers are never the same."""
    texts = {}
    for name in load_target(target).numerics.optimizers:
        files, lost = written_and_lost(target, optimizer=name)
        assert not lost
        texts[name] = "".join(files.values())
    assert len(set(texts.values())) == len(texts)


def test_without_leave_nothing_is_lost():
    """Not lossy: one line that says what the target has."""
    with pytest.raises(Inexpressible, match=f"optimizer = lion: the target has {', '.join(IN_TORCH)}"):
        export(Plan(dp=8, optimizer="lion"), LLAMA, SHAPE, "deepspeed")
