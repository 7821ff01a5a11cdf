"""The answer in words."""

from dataclasses import replace

import pytest

from simpar.planner.answer.explanations import describe_need, explain_loser, explain_winner


def slower(result, part, seconds):
    """The result with one part of its step longer, or shorter."""
    parts = result.time_breakdown_s.model_copy(update={part: getattr(result.time_breakdown_s, part) + seconds})
    speed = result.speed.model_copy(update={"step_time_s": result.step_time_s + seconds})
    return replace(result, speed=speed, time_breakdown_s=parts)


def test_a_plan_loses_by_what_it_spends_more(result):
    """With the seconds, the share of the step, and the largest causes first."""
    other = slower(slower(result, "exposed_dp", 0.04), "compute", -0.01)
    (said,) = explain_loser(other, result)
    share = 0.03 / result.step_time_s
    assert said == (
        f"slower by 30 ms ({share:.1%}): 40 ms more exposed data-parallel communication, 10 ms less compute"
    ) or said.startswith(f"slower by 30.0 ms ({share:.1%}): 40.0 ms more ")
    assert said.index("more") < said.index("less compute")
    assert explain_loser(result, result) == ("is the best itself",)
    assert explain_loser(slower(result, "compute", -0.02), result)[0].startswith("predicted faster by 20")


def test_differences_below_a_thousandth_are_not_said(result):
    """They are a little of everything."""
    small = result.step_time_s * 1e-4
    assert explain_loser(slower(result, "compute", small), result)[0].endswith(": a little of everything")


@pytest.mark.parametrize(("seconds", "word"), [(0.02, "slower"), (-0.02, "faster")])
def test_the_winner_is_held_against_the_next(result, seconds, word):
    """Beside what limits it; alone it is held against nothing."""
    said = explain_winner(result, [slower(result, "bubble", seconds)])
    assert said[:-1] == tuple(result.why.binds) == explain_winner(result, [])
    assert said[-1].startswith(f"the runner-up is {word} by 20")


def test_a_need_is_said_with_its_limit(problem_of):
    """And for how sure it is counted."""
    problem = problem_of(1)
    said = describe_need(2 * problem.memory_limit_bytes, problem)
    assert said.startswith("does not fit: needs ")
    assert said.endswith("to be 95 % sure")
