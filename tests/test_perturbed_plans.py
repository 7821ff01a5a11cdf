"""A plan found where a rank is slow and a link degraded says so, and whatever takes its file predicts it there."""

import json

import pytest

from simpar import cli, simulate
from simpar.frameworks.source import SourceFlags, load_source
from simpar.plan.plan import Plan
from simpar.planner.result import SearchResult
from simpar.runtime.request import load_request, make_ready, simulate_job
from simpar.scenario import load_scenario
from simpar.translate import ExportPredictor
from tests.gate import some

PERTURBED = {"slow_ranks": {"1": 1.5}, "degraded_links": {"port_tx[0]": 0.25}}
SAID = ["--set", "perturbation.slow_ranks.1=1.5", "--set", "perturbation.degraded_links.port_tx[0]=0.25"]
FEW = ["--model=tiny-llama", *(f"--fix={axis}" for axis in ("tp=2", "pp=1", "cp=1", "micro_batch=2", "recompute=none"))]
NAMES = ("plan.json", "answer.json", "result.json", "scenario.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every kind of file that the best plan of a small space under these can be taken from."""
    folder = tmp_path_factory.mktemp("perturbed")
    plan, answer, result, scenario = (folder / name for name in NAMES)
    assert cli.run(["search", "gpt2-laptop", *SAID, *FEW, "-o", str(plan), "--json", str(answer)]) == 0
    assert cli.run(["simulate", str(plan), "--json", str(result)]) == 0
    given = json.loads(plan.read_text())
    named = {name: given.pop(name) for name in ("model", "cluster", "training", "stack", "perturbation")}
    scenario.write_text(json.dumps(named | {"plan": given}))
    return folder


@pytest.fixture(scope="module")
def best(folder):
    """What was found."""
    return SearchResult.load(folder / "answer.json").best


def test_the_file_says_what_was_different(folder, best):
    """As scenarios write it; equal ranks and whole links are nothing to write down."""
    assert json.loads((folder / "plan.json").read_text())["perturbation"] == PERTURBED
    assert Plan.load(folder / "plan.json") == best.plan
    assert cli.run(["search", "gpt2-laptop", *FEW, "-o", str(folder / "equal.json")]) == 0
    assert json.loads((folder / "equal.json").read_text())["perturbation"] is None


@pytest.mark.parametrize("name", some(NAMES, ["plan.json", "result.json"]))
def test_simulating_any_file_gives_what_was_found(folder, best, name):
    """And something else once the ranks and links are equal again."""
    scenario = load_scenario(folder / name)
    assert scenario.perturbation.model_dump(mode="json", exclude_defaults=True) == PERTURBED
    assert simulate(**scenario.inputs()).step_time_s == best.step_time_s
    equal = load_scenario(folder / name, {"perturbation": {}})
    assert simulate(**equal.inputs()).step_time_s < best.step_time_s


@pytest.mark.parametrize("name", some(NAMES, ["answer.json"]))
def test_an_export_foretells_it_there(folder, best, name):
    """The plan that an export starts from takes as long as was found."""
    source = load_source(str(folder / name), SourceFlags())
    assert ExportPredictor(source, "torch", 0.5)._own_result.step_time_s == best.step_time_s


@pytest.mark.parametrize("name", some(NAMES, ["scenario.json"]))
def test_a_run_is_predicted_there(folder, best, name):
    """Measured values stand beside a prediction for the ranks and links that were named."""
    ready = make_ready(load_request(str(folder / name), {}, []), None, 1, {"steps": 1, "folder": str(folder)})
    assert simulate_job(ready).step_time_s == best.step_time_s
