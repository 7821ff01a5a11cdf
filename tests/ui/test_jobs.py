"""What takes longer than a change: options of searches, and what their rows hold."""

import pytest

from simpar.errors import UserError
from simpar.neighbours import as_flags, from_flags
from simpar.planner.api import search
from simpar.scenario import Scenario
from simpar.simulation import simulate
from simpar.ui.answers import add_failures, numbers, simulate_rl
from simpar.ui.jobs import JobSlot, Stopped, draw_timeline, search_plans, write_page
from simpar.ui.pool_search import search_pools
from simpar.ui.state import Allowed, ask, read_state


def said(job, state, options=None, *, is_stopped=False):
    """Everything that a job says."""
    parts = []
    room = JobSlot(Scenario.model_validate(state), options or {}, parts.append, lambda: is_stopped)
    job(room)
    return parts


def test_a_search_of_the_page_is_that_of_the_library(state):
    """The same best plan and step time, and a state that simulates to it."""
    *words, last = said(search_plans, state, {"objective": "time", "hold": ["pp", "zero", "tp", "recompute"]})
    assert [each["progress"].split()[0] for each in words][:3] == ["enumerating", "deciding", "bounding"]
    found = last["found"]
    scenario = Scenario.model_validate(state)
    inputs = scenario.inputs()
    from simpar.planner.problem import Constraints

    known = search(
        inputs["model"],
        inputs["cluster"],
        scenario.training,
        objective="time",
        constraints=Constraints(fixed={"pp": 2, "zero": 0, "tp": 1, "recompute": "none"}),
    )
    best = found["candidates"][0]
    assert found["certified"]
    assert best["step_time_s"] == known.best.step_time_s
    assert best["peak_reserved_bytes"] == known.best.figures["peak_reserved_bytes"]
    taken = read_state(best["state"], Allowed())
    assert taken.plan.mesh.pp == 2
    assert taken.plan.flat_values() == known.best.plan.flat_values()


HELD = {"hold": ["tp", "pp", "cp", "ep", "zero", "recompute", "micro_batch"], "staleness": 0}


def test_a_search_of_pools_is_that_of_the_library(rl_state):
    """The same best point, with a state that is simulated to it; the page is written, too."""
    node = {**rl_state, "cluster": {"hardware": "dgx-h100", "nodes": 1}, "plan": {"zero": 3, "recompute": "none"}}
    found = said(search_plans, node, {**HELD, "objective": "time"})[-1]["found"]
    best = found["candidates"][0]
    assert found["certified"]
    taken = ask(read_state(best["state"], Allowed()))
    assert simulate_rl(taken).step_time_s == best["step_time_s"]
    steps = [one["step_time_s"] for one in found["candidates"]]
    assert steps == sorted(steps)
    page = said(write_page, node)[-1]["file"]["text"]
    assert "Both pools over time" in page
    with pytest.raises(UserError, match="allowed with post_training: time, cost"):
        said(search_plans, node, {"objective": "regret"})
    with pytest.raises(UserError, match="staleness = 'a'"):
        said(search_plans, node, {"staleness": "a"})


@pytest.mark.slow
def test_a_search_of_pools_that_is_stopped_has_its_best_so_far(rl_state):
    """The best bound is simulated; nothing at all is said where it was stopped before anything was bounded."""
    asked = ask(read_state(rl_state, Allowed()))

    def stopping(phase):
        def report(words):
            if words.startswith(phase):
                raise KeyboardInterrupt

        return report

    fixed = {"tp": 1, "pp": 1, "cp": 1, "zero": 3, "recompute": "none", "micro_batch": 1}
    found = search_pools(asked, {"staleness": 0}, fixed, stopping("simulated"))
    assert found["stopped"]
    assert len(found["candidates"]) == found["simulated"] == 1
    with pytest.raises(UserError, match="stopped before"):
        search_pools(asked, {"staleness": 0}, fixed, stopping("training layouts"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "beauty"}, "objective = 'beauty'"),
        ({"hold": ["heads"]}, "hold = "),
        ({"hold": "tp"}, "hold = "),
        ({"fit_probability": "sure"}, "fit_probability = 'sure'"),
        ({"fit_probability": 2}, "fit_probability = 2"),
    ],
)
def test_options_that_are_none_are_refused(state, options, words):
    """Before anything is searched."""
    with pytest.raises(UserError, match=words):
        said(search_plans, state, options)


@pytest.mark.slow
def test_a_whole_run_gets_its_failures(state):
    """Where the hardware says how often things fail, days come without failures first, then with them."""
    run = {**state, "cluster": {"hardware": "meta-llama3-h100", "nodes": 2}, "plan": {"pp": 4}}
    run["training"] = {**state["training"], "tokens": "1T"}
    first = numbers(ask(read_state(run, Allowed())))
    assert "being counted" in first["html"]["figures"]
    unknown = {**run, "cluster": {"hardware": "dgx-h100", "nodes": 2}}
    without = numbers(ask(read_state(unknown, Allowed())))["html"]["figures"]
    assert "the hardware profile has no failure rates" in without
    assert "--reliability" not in without
    counted = add_failures(simulate(**ask(read_state(run, Allowed())).inputs()), ask(read_state(run, Allowed())))
    assert counted["whole_run"]["days"]["value"] > first["values"]["whole_run"]["days"]["value"]
    assert "interruptions" in counted["html"]["figures"]


@pytest.mark.parametrize("job", [draw_timeline, write_page])
def test_a_job_that_nobody_wants_ends(state, job):
    """Before it simulates a neighbour."""
    with pytest.raises(Stopped):
        said(job, state, is_stopped=True)


def test_flags_of_a_trial_are_a_change():
    """What neighbours print comes back as they meant it."""
    for change in (
        {"tp": 4, "dp": None},
        {"sequence_parallel": False},
        {"schedule": "zb-v", "vpp": 2, "layers": None},
        {"recompute": "every:2", "zero": 3, "kind": None},
        {"offload_optimizer": "cpu"},
    ):
        assert from_flags(as_flags(change)) == change
    with pytest.raises(UserError, match="did you mean '--zero'"):
        from_flags("--zeroo 3")
