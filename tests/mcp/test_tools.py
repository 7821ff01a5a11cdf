"""Tools: what they take is checked like every input, and what they answer is what the functions answer."""

import csv
import json

import pytest

import simpar
from simpar.errors import UserError
from simpar.mcp.tools import TOOLS, call

JOB = {
    "model": "gpt2",
    "cluster": {"hardware": "laptop-cpu-4"},
    "training": {"seq_len": 128, "global_batch": 8},
    "plan": {"mesh": {"pp": 2}},
}


def ask(tool, **arguments):
    """The answer of a tool, and what it said meanwhile."""
    said = []
    return call(tool, arguments, said.append, 60), said


def test_a_scenario_as_data_is_simulated_as_its_file_would_be():
    """The same step to the nanosecond; overrides are laid over the data."""
    answer, said = ask("simulate", scenario=JOB, set={"plan.micro_batch": 2})
    plan = simpar.Plan(pp=2, micro_batch=2)
    same = simpar.simulate("gpt2", "laptop-cpu-4", plan, {"seq_len": 128, "global_batch": 8})
    assert answer["step_time_s"] == same.step_time_s
    assert said == ["simulating"]
    assert "timeline" not in answer


def test_a_search_has_its_certificate_and_nothing_that_changes_by_itself():
    """Asked twice, the answer is equal."""
    fixed = {"cp": 1, "ep": 1, "micro_batch": 1, "tp": 1, "pp": (1, 2), "zero": (0, 1), "recompute": "none", "hsdp": 1}
    first, _ = ask("search", scenario=JOB, fixed=fixed)
    assert first["certified_optimal"] is True
    assert first["stopped_early"] is False
    assert first["candidates"][0]["plan"]["micro_batch"] == 1
    assert first == ask("search", scenario=JOB, fixed=fixed)[0]


@pytest.fixture(scope="module")
def hours():
    """A job whose candidates no prediction tells apart, and the axes that make its space small."""
    job = {"model": "gpt3-1.3b", "cluster": {"hardware": "dgx-a100-80gb"}}
    fixed = {"cp": 1, "micro_batch": (1, 2), "pp": (1, 2), "zero": 1, "recompute": "none", "schedule": "1f1b"}
    return {"scenario": {**job, "training": {"seq_len": 2048, "global_batch": 64}}, "fixed": {**fixed, "hsdp": 1}}


def test_a_search_names_what_to_measure_as_the_command_does(hours, tmp_path, monkeypatch):
    """Layouts with their plans and what a measurement is worth, and a table to fill in that learn reads."""
    monkeypatch.chdir(tmp_path)
    answer, said = ask("search", **hours, suggest=2, suggest_to="runs.csv", save="whole.json")
    assert "simulating what may be measured" in said
    named = answer["suggestions"]
    assert 1 <= len(named) <= 2
    assert all(one["expected_gain"] > 0 and one["plan"]["mesh"] for one in named)
    assert json.loads((tmp_path / "whole.json").read_text())["suggestions"] == named
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [row["plan"] for row in rows] == [f"runs-{at}.plan.json" for at in range(1, len(named) + 1)]
    for row, one in zip(rows, named, strict=True):
        table = tmp_path / "runs.csv"
        table.write_text(table.read_text().replace(f"predicted {one['step_time_s']:.4g} s,", f",{one['step_time_s']}"))
        assert row["n_gpus"] == str(one["devices"])
    with pytest.raises(UserError, match="is there, and may hold measurements"):
        ask("search", **hours, suggest=2, suggest_to="runs.csv")
    learnt, _ = ask("learn", runs=["runs.csv"], stack="megatron", hardware="dgx-a100-80gb", save_profile="ours.yaml")
    assert learnt["profile"] == "ours.yaml"


def test_a_search_that_was_stopped_suggests_nothing(hours):
    """What it has simulated by then differs from one time to the next."""
    answer = call("search", {**hours, "suggest": 2}, lambda _: None, 1e-9)
    assert answer["stopped_early"] is True
    assert "suggestions" not in answer


def test_saved_answers_can_be_compared(tmp_path, monkeypatch):
    """A file of one call is the input of the next."""
    monkeypatch.chdir(tmp_path)
    for name, batch in (("a.json", 1), ("b.json", 2)):
        ask("simulate", scenario=JOB, set={"plan.micro_batch": batch}, save=name)
    answer, _ = ask("compare", a="a.json", b="b.json")
    assert answer["asked"]["plan.micro_batch"] == {"a": 1, "b": 2}
    assert answer == ask("compare", a={**JOB, "plan": {"pp": 2, "micro_batch": 1}}, b="b.json")[0] | {
        "asked": answer["asked"]
    }


def test_a_file_elsewhere_is_refused_before_the_work(monkeypatch):
    """By the name that was given: workers refuse it when it is named, not when the answer is written."""
    asked = []

    def hook(event, name, *_):
        asked.append(name)
        raise UserError(f"{name}: refused")

    monkeypatch.setattr("simpar.mcp.tools.sys.audit", hook)
    with pytest.raises(UserError, match=r"^\.\./found\.json: refused$"):
        call("search", {"scenario": JOB, "save": "../found.json"}, lambda _: pytest.fail("works"), 60)
    assert asked == ["../found.json"]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("simulat", {}, "did you mean 'simulate'"),
        ("simulate", {}, "scenario or set: one of them"),
        ("simulate", {"scenaro": "gpt2-laptop"}, "unknown key scenaro; did you mean 'scenario'"),
        ("simulate", {"scenario": "gpt2-laptob"}, "did you mean 'gpt2-laptop'"),
        ("simulate", {"scenario": 3}, "allowed: a name, a file, or a scenario as data"),
        ("simulate", {"scenario": {**JOB, "model": "os:getcwd"}}, "is code, which tools do not run"),
        ("simulate", {"scenario": JOB, "set": {"model": "os:getcwd"}}, "is code, which tools do not run"),
        ("search", {"scenario": JOB, "suggest": 0}, "suggest"),
        ("search", {"scenario": JOB, "suggest_to": "runs.csv"}, "suggest_to = runs.csv: needs suggest"),
        ("search", {"scenario": JOB, "suggest": 1, "suggest_to": "runs.txt"}, r"runs.txt: allowed: .* in \.csv"),
        ("search", {"scenario": JOB, "suggest": 1, "objective": "energy"}, "not energy"),
        ("search", {"scenario": JOB, "save": "nowhere/found.json"}, "^nowhere/found.json: cannot be written"),
        ("catalogue", {"kind": "modles"}, "did you mean 'models'"),
        ("check", {"launch": ""}, "launch"),
        ("learn", {"runs": ["x.csv"], "save_profile": "x.txt"}, r"ends in \.yaml"),
    ],
)
def test_bad_input_is_one_line(tool, arguments, words):
    """With the key, the value and what is allowed."""
    with pytest.raises(UserError, match=words) as refused:
        ask(tool, **arguments)
    assert "\n" not in str(refused.value)


def test_schemas_name_what_scenarios_have():
    """References lead to definitions, all of which are used; a plan's sections are those of its class."""
    for tool in TOOLS.values():
        schema = tool.schema()
        text, definitions = str(schema), schema.get("$defs", {})
        for name in definitions:
            assert f"#/$defs/{name}'" in text
        assert text.count("$ref") >= len(definitions)
    plan = TOOLS["simulate"].schema()["$defs"]["Plan"]["properties"]
    assert {"mesh", "data_parallel", "pipeline", "memory", "micro_batch"} <= plan.keys()
    assert "probability" not in plan


def test_names_are_found_by_words():
    """Of a kind, those whose name or line holds a word."""
    answer, _ = ask("catalogue", kind="schedules", containing="zb")
    assert "zb-h1" in answer["names"]
    assert "gpipe" not in answer["names"]
