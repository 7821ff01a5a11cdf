"""A plan is decided once: every choice by one decider, and nothing is left open where a layout has no room for it."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain

import pytest

from simpar import files
from simpar.layout.decide import decide
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import BY_STACK, DECIDERS, resolve
from simpar.layout.layout import Layout, stated_choices
from simpar.plan.choices import BY_NAME, CHOICES
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack
from tests.gate import some

STACKS = tuple(files.bundled("stacks"))
PLANS = [Plan(), Plan(tp=2, pp=2, zero=1), Plan(zero=3, offload_optimizer="cpu"), Plan(zero=2)]


def test_every_choice_has_one_decider_at_most() -> None:
    """Deciders name choices, each of them once; what one needs is stated or decided before."""
    decided = [name for decider in DECIDERS for name in decider.decides]
    assert len(decided) == len(set(decided))
    assert set(decided) <= set(BY_NAME)
    for at, decider in enumerate(DECIDERS):
        later = set(chain.from_iterable(each.decides for each in DECIDERS[at + 1 :]))
        assert not later & set(decider.needs)


def test_stacks_decide_what_choices_say_is_left_to_them() -> None:
    """In every section that has such choices, and nothing else."""
    assert {name for decider in BY_STACK for name in decider.decides} == {
        each.name for each in CHOICES if each.by_stack
    }


def test_layouts_have_all_choices() -> None:
    """Under their names, with stages of their own, what a plan was made for, and what follows from a choice."""
    names = {each.name for each in fields(Layout)}
    follows = {"mirrored", "encoder_layers", "encoder_costs"}
    assert names == {each.name for each in CHOICES} | {"stages", "record"} | follows


@pytest.mark.parametrize("name", some(STACKS, STACKS[:4]))
@pytest.mark.parametrize(
    "plan", [Plan(), Plan(tp=2, pp=2, zero=1), Plan(zero=3, offload_optimizer="cpu"), Plan(zero=2)]
)
def test_a_decided_plan_stays_as_it_is(name: str, plan: Plan, target) -> None:
    """Deciding again what a layout states gives that layout; deciders decide what they say, and nothing else."""
    stack = load_stack(name)
    layout = decide(plan, target(8), stack)
    assert decide(layout.to_plan(), target(8), stack) == layout
    choices = stated_choices(layout.to_plan())
    for decider in BY_STACK:
        values = decider.values(stack, **{name: choices[name] for name in decider.needs})
        assert set(values) == set(decider.decides)
    assert fill_open_choices(choices, BY_STACK, stack) == choices
    assert resolve(plan, stack).stack == name


def test_stages_of_their_own_are_a_pipeline(target) -> None:
    """Their number is that of pipeline ranks and their layers are theirs, also where a stack spreads layers by cost."""
    stages = [{"layers": 20, "first_device": 0, "mesh": [4]}, {"layers": 12, "first_device": 4, "mesh": [4]}]
    for pp in (1, 2):
        plan = Plan.model_validate({"pp": pp, "micro_batch": 4, "pipeline": {"stages": stages}})
        layout = decide(plan, target(8), load_stack("nanotron"))
        assert (layout.pp, layout.dp, layout.layers) == (2, 1, (20, 12))
