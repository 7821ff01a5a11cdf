"""Steps of reinforcement learning on the page: the form of the section, its answers, and what a link may name."""

import pytest

from simpar.errors import UserError
from simpar.plan.post_training import PostTraining
from simpar.posttraining.simulate import post_train
from simpar.scenario import Scenario
from simpar.ui.section import KEYS, LEAVES, SECTION, fields
from simpar.ui.state import Allowed, as_state, read_state, with_job


def changed(state, **values):
    """The section of a state after changes by dotted key."""
    job = {f"{SECTION}.{key}": value for key, value in values.items()}
    return read_state(with_job(state, job), Allowed()).post_training


def test_a_step_is_answered_by_the_figures_of_the_library(ask, rl_state):
    """Step, waits and staleness to the last bit, both sides in the tables, and charts with a row for each pool."""
    scenario = Scenario.model_validate(rl_state)
    inputs = scenario.training_inputs()
    setup = (inputs["model"], inputs["cluster"], inputs["plan"], inputs["training"], scenario.post_training)
    result = post_train(*setup, stack=inputs["stack"])
    parts = ask(rl_state, brief=False)
    values, speed = parts["numbers"]["values"], result.figures.speed
    assert values["step_time_s"] == speed.step_time_s
    assert values["training_waits"] == result.figures.parts_s.waiting / speed.step_time_s
    assert values["staleness"] == 0
    assert "rollout engine" not in parts["numbers"]["html"]["memory_table"]  # it sleeps
    assert "cache" in parts["numbers"]["html"]["memory_table"]
    rows = [stage["name"] for stage in parts["drawn"]["series"]["stages"]]
    assert rows == ["training", *(f"replica {at}" for at in range(8)), "new weights"]
    assert "Both pools" in parts["drawn"]["html"]["timeline"]
    assert {field["key"] for field in parts["section"]} == {key for key in LEAVES if "histogram" not in key}
    assert "micro_batch" in [choice["name"] for choice in parts["choices"]]


def test_an_update_has_no_section(ask, state):
    """Its form is empty, and hidden."""
    assert ask(state, brief=False)["section"] == []


def test_every_field_takes_its_own_value_back(rl_state):
    """What the form shows is what a state may say: a change to the value of now changes nothing but its defaults."""
    section = Scenario.model_validate(rl_state).post_training
    shown = fields(section, ("gpt2",), ("dgx-h100",))
    for field in shown:
        again = changed(rl_state, **{field["key"]: field["now"]})
        usual = PostTraining(**{**section.model_dump(), "weights": again.weights})  # a share of 1 is no choice
        assert again == usual, field["key"]
    assert next(field for field in shown if field["key"] == "rollout.engine.overhead")["now"] == "500 us"
    assert len(shown) == len(KEYS) - 2


def test_what_would_contradict_a_change_goes_with_it(rl_state):
    """Pools bring their nodes and lose them, staleness its interruptions, a length gives way to another one."""
    split = changed(rl_state, placement="split")
    assert (split.rollout.nodes, split.synchrony.steps_off) == (1, 0)
    pools = with_job(rl_state, {"post_training.placement": "split", "post_training.synchrony.steps_off": 2})
    assert not read_state(pools, Allowed()).post_training.synchrony.in_flight
    turns = changed(pools, placement="colocated")
    assert (turns.rollout.nodes, turns.synchrony.in_flight, turns.synchrony.steps_off) == (None, True, 2)
    assert changed(rl_state, **{"synchrony.in_flight": True}).synchrony.steps_off == 1
    assert not changed(turns_state(turns, rl_state), **{"synchrony.in_flight": False}).synchrony.steps_off
    assert changed(rl_state, **{"weights.changed": 0.5}).weights.method == "resharded"
    fixed = changed(rl_state, **{"lengths.response.fixed": 200}).lengths.response
    assert (fixed.fixed, fixed.mean, fixed.p99) == (200, None, None)
    tailed = changed(rl_state, **{"lengths.prompt.mean": 50}).lengths.prompt
    assert (tailed.fixed, tailed.mean, tailed.p99) == (None, 50, 200)


def turns_state(section, rl_state):
    """A state with another section."""
    scenario = Scenario.model_validate(rl_state).model_copy(update={"post_training": section})
    return as_state(scenario)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("lengths.response.file", "/etc/passwd"),
        ("passes.reward", "/etc/model.json"),
        ("passes.teacher", "os:getcwd"),
        ("rollout.hardware", "../../secret.yaml"),
    ],
)
def test_a_section_names_only_what_is_shipped(rl_state, key, name):
    """A link opens no file and runs no code; what the command line named, it may."""
    split = with_job(rl_state, {"post_training.placement": "split"})
    with pytest.raises(UserError, match=f"post_training.{key} = .*is not shipped"):
        changed(split, **{key: name})
    named = with_job(split, {f"post_training.{key}": name})
    assert read_state(named, Allowed.by(Scenario.model_validate(named))).post_training is not None


def test_lengths_that_are_counted_survive(rl_state):
    """JSON has texts as keys."""
    told = with_job(rl_state, {"post_training.lengths.response.histogram": {"50": 1, "90": 3}})
    section = read_state(told, Allowed()).post_training
    assert section.lengths.response.histogram == {50: 1.0, 90: 3.0}
    assert section.lengths.response.mean is None


def test_what_cannot_run_says_so_with_the_form_beside_it(ask, rl_state):
    """One line, and the controls to mend it; updates that responses do not fill offer no layouts."""
    found = ask(rl_state, job={"post_training.rollout.tp": 3}, brief=False)
    assert "a replica of 3 devices" in found["error"]
    assert found["section"]
    found = ask(rl_state, job={"training.global_batch": 5}, brief=False)
    assert "divisors of the 32 responses" in found["error"]
    assert found["choices"] == []
    found = ask({**rl_state, "perturbation": {"jitter": {"sigma": 0.1}}})
    assert "perturbation: is of one update" in found["error"]


def test_an_export_of_the_whole_step(client, rl_state):
    """For a framework that runs it; one of updates alone says so."""
    made = client.post("/api/export", json={"state": rl_state, "target": "nemo-rl", "lossy": True}).json()["file"]
    assert made["name"] == "nemo-rl.zip"
    refused = client.post("/api/export", json={"state": rl_state, "target": "megatron"})
    assert "single updates alone" in refused.json()["error"]
