"""What a search is asked, and what cannot be asked."""

from dataclasses import replace

import pytest

import simpar
from simpar.errors import UserError
from simpar.planner.problem import ANY, BY_REGRET, OBJECTIVES, Constraints, Framework, make_problem
from simpar.program.perturbation import Perturbation

SHAPE = "tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=128, global_batch=8)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"headroom": 1.0}, "headroom = 1.0: allowed: a fraction from 0 to below 1"),
        ({"headroom": -0.1}, "headroom = -0.1"),
        ({"fit_probability": 0.4}, "fit_probability = 0.4: allowed: from 0.5"),
        ({"fit_probability": 1.0}, "fit_probability = 1.0"),
        ({"deadline_s": 0.0}, "deadline = 0.0: allowed: above 0 s"),
        ({"fixed": {"recompute": "layers:full:2"}}, "plan.recompute = layers:full:2: is a choice for one layout"),
        ({"fixed": {"recompute": "segments:2"}}, "is not searched, for not every layout has stages of whole segments"),
        ({"fixed": {"recompute": ("none", "layers:full:2")}}, "is a choice for one layout"),
    ],
)
def test_constraints_that_no_plan_can_meet_are_refused(wanted, words):
    """In one line, with what is allowed."""
    with pytest.raises(UserError, match=words.replace(".", r"\.")):
        Constraints(**wanted)


def test_objectives_are_known_by_name():
    """A typing error has a suggestion; time and regret look for the shortest step."""
    with pytest.raises(UserError, match="objective"):
        make_problem(*SHAPE, objective="tme")
    short = {name for name in OBJECTIVES if make_problem(*SHAPE, objective=name).is_of_time}
    assert short == {BY_REGRET, "time"}


def test_what_decides_what_plans_may_be():
    """The target that was asked for, or else the framework behind the stack; "any" is nobody."""
    framework = Framework("torchtitan", frozenset())

    def target(portable, framework=framework):
        problem = make_problem(*SHAPE, constraints=Constraints(portable=portable))
        asked = replace(problem, framework=framework)
        return asked.target, asked.export_target

    assert target(None) == ("torchtitan", None)
    assert target("megatron") == ("megatron", "megatron")
    assert target(ANY) == (None, None)
    assert target(None, framework=None) == (None, None)


def test_a_target_has_its_own_stack():
    """Unless another one is named."""
    asked = Constraints(portable="torchtitan")
    assert make_problem(*SHAPE, constraints=asked).stack.name == "torchtitan"
    assert make_problem(*SHAPE, constraints=asked, stack="fsdp").stack.name == "fsdp"


def test_headroom_is_left_of_the_device():
    """A quarter left is three quarters to take."""
    whole, less = (make_problem(*SHAPE, constraints=Constraints(headroom=h)) for h in (0.0, 0.25))
    assert less.memory_limit_bytes == 0.75 * whole.memory_limit_bytes
    assert whole.memory_limit_bytes == whole.cluster.device.memory_bytes


def test_what_is_chosen_layout_by_layout_is_no_base():
    """Slices of tokens, and steps with jitter."""
    with pytest.raises(UserError, match=r"plan\.slices"):
        make_problem(*SHAPE, base=simpar.Plan(slices=(64, 64), schedule="terapipe"))
    with pytest.raises(UserError, match=r"perturbation\.jitter"):
        make_problem(*SHAPE, perturbation=Perturbation(jitter_sigma=0.1))
