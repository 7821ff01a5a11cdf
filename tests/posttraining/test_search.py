"""The search of a whole step: complete, bounded from below, and the best by brute force."""

import json
from dataclasses import replace
from itertools import product

import pytest

import simpar
from simpar.cli import run
from simpar.errors import Infeasible, UserError
from simpar.planner.progress import TimeIsUp
from simpar.planner.result import Candidate, Counts, SearchResult
from simpar.posttraining import search as searching
from simpar.posttraining.bounds import step_bound_s
from simpar.posttraining.search import search_post_training
from simpar.posttraining.search_terminal import certificate
from simpar.posttraining.simulate import make_setting, post_train
from simpar.posttraining.training_layouts import TrainingLayouts
from tests.posttraining.small import SMALL_STEP

MODEL, BASE, TRAINING = "qwen2.5-0.5b", {}, {"seq_len": 2048, "global_batch": 32}
LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 300, "p99": 1500}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 1}
FEW = {"tp": 1, "cp": 1, "pp": 1, "zero": 3, "micro_batch": 1}
"""Axes that are held, so that the training side's search is a short one."""


@pytest.fixture(scope="module")
def two_nodes():
    """Two nodes of 8 H100."""
    return simpar.Cluster("dgx-h100", 2)


@pytest.fixture(scope="module")
def answer(two_nodes):
    """The search with one training layout of every size."""
    return search_post_training(
        MODEL, two_nodes, BASE, TRAINING, SECTION, stack="torchtitan", layouts=1, constraints=FEW
    )


def every_point(plans):
    """All points, written out anew: pools of 1 and 2 nodes, tp of 1 and 2, up to 16 stages, up to one step off."""
    on, off, cut = {"steps_off": 0}, {"steps_off": 1}, {"steps_off": 1, "in_flight": True}
    pools = [(1, 0, "colocated"), (1, 1, "split"), (1, 1, "hybrid"), (2, 0, "colocated")]
    for (nodes, rollout, placement), tp, stages in product(pools, (1, 2), (1, 2, 4, 8, 16)):
        if tp * stages > 8 * (rollout or nodes):
            continue
        for synchrony in (on, off, cut) if placement == "split" else (on, cut):
            pool = {"placement": placement, "rollout": {"nodes": rollout or None, "tp": tp, "pp": stages}}
            yield nodes, plans[nodes], {**SECTION, **pool, "synchrony": synchrony}


@pytest.fixture(scope="module")
def points(answer):
    """Every point by the public call: its bound and its step."""
    plans = {one.choice.training_nodes: one.plan for one in answer.candidates}
    assert {*plans} == {1, 2}
    setups = [
        (MODEL, simpar.Cluster("dgx-h100", nodes), plan, TRAINING, section)
        for nodes, plan, section in every_point(plans)
    ]
    return [
        (step_bound_s(make_setting(*setup, stack="torchtitan")), post_train(*setup, stack="torchtitan").step_time_s)
        for setup in setups
    ]


def test_the_best_is_that_of_brute_force(answer, points):
    """Every point is in the space, and none is better."""
    assert answer.is_certified
    assert all(one.proven == len(one.plans) and not one.is_open for one in answer.layouts)
    assert answer.best.result.step_time_s == min(step for _, step in points)
    assert answer.counts["space"] - answer.counts["refused"] == len(points)
    assert answer.counts["simulated"] + answer.counts["bounded"] == len(points)


def test_no_step_is_shorter_than_its_bound(points):
    """For every placement, layout and synchrony."""
    assert all(0 < bound <= step for bound, step in points)


def test_a_bound_on_policy_is_not_far_below_the_step(two_nodes):
    """With one long response a replica, generation takes the longest response alone."""
    lengths = {"prompt": {"fixed": 16}, "response": {"fixed": 1500}}
    section = {**SECTION, "samples": 2, "lengths": lengths}
    setup = (MODEL, two_nodes, {"zero": 3}, {"seq_len": 2048, "global_batch": 16}, section)
    bound, step = step_bound_s(make_setting(*setup)), post_train(*setup).step_time_s
    assert 0.9 * step < bound <= step


def test_staleness_opens_the_space(answer, two_nodes):
    """On policy alone there are fewer points, and the best is no better."""
    strict = search_post_training(
        MODEL, two_nodes, BASE, TRAINING, SECTION, stack="torchtitan", layouts=1, constraints=FEW, staleness=0
    )  # fmt: skip
    assert strict.counts["space"] < answer.counts["space"]
    assert strict.best.objective >= answer.best.objective
    assert all(one.result.figures.staleness.largest == 0 for one in strict.candidates)


def test_dollars_prefer_fewer_devices(two_nodes):
    """A step on one node costs half of the same step on two."""
    by_cost = search_post_training(
        MODEL, two_nodes, BASE, TRAINING, SECTION, stack="torchtitan", layouts=1, constraints=FEW, objective="cost"
    )  # fmt: skip
    costs = [one.result.figures.speed.cost_usd_per_step for one in by_cost.candidates]
    assert by_cost.best.objective == pytest.approx(min(costs))
    assert by_cost.best.choice.nodes == 1


def test_time_that_is_up_leaves_a_gap(two_nodes):
    """Or nothing at all, which is said."""
    with pytest.raises(Infeasible):
        search_post_training(
            MODEL, two_nodes, BASE, TRAINING, SECTION, stack="torchtitan", layouts=1, constraints=FEW, time_limit_s=1e-9
        )  # fmt: skip


@pytest.fixture
def stops_inside(monkeypatch):
    """Make searches for training layouts end at their first report, as by their time limit or by Ctrl-C."""

    def stop_with(stop):
        def stopped_search(*inputs, progress, **asked):
            reports = iter([stop])

            def report(*_):
                for one in reports:
                    raise one

            progress.report = report
            return simpar.search(*inputs, progress=progress, **asked)

        monkeypatch.setattr(searching, "search", stopped_search)

    return stop_with


@pytest.mark.parametrize("stop", [TimeIsUp, KeyboardInterrupt])
def test_training_layouts_that_are_not_proven_void_the_certificate(stops_inside, stop):
    """A search for training layouts that ends before its proof has its best so far, which is no certificate."""
    stops_inside(stop)
    setup = (MODEL, simpar.Cluster("dgx-h100"), BASE, TRAINING, SECTION)
    answer = search_post_training(*setup, stack="torchtitan", staleness=0, constraints=FEW)
    assert not answer.is_certified
    assert answer.gap == 1.0
    assert [one.is_open for one in answer.layouts] == [True]
    assert [one.proven for one in answer.layouts] == [0]
    assert (answer.counts["space"] == 1) == (stop is KeyboardInterrupt)
    lines = "\n".join(certificate(answer))
    assert "not certified" in lines
    assert "training layouts on 1 node: the best so far" in lines
    assert "above the best" not in lines


@pytest.mark.parametrize(("what", "at"), [("step_bound_s", 1), ("step_bound_s", 3), ("simulate_setting", 1)])
def test_an_interrupt_between_reports_ends_with_the_best_so_far(monkeypatch, what, at):
    """While a point is bounded or simulated; the first point is answered for."""
    calls, real = [], getattr(searching, what)

    def interrupted(*inputs):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*inputs)

    monkeypatch.setattr(searching, what, interrupted)
    setup = (MODEL, simpar.Cluster("dgx-h100"), BASE, TRAINING, SECTION)
    answer = search_post_training(*setup, stack="torchtitan", staleness=0, constraints=FEW)
    assert len(answer.candidates) == 1
    assert (answer.gap == 1.0) == (what == "step_bound_s")  # a bound of every point may still prove the best
    monkeypatch.setattr(searching, "step_bound_s", _interrupt)
    with pytest.raises(KeyboardInterrupt):  # asked twice
        search_post_training(*setup, stack="torchtitan", staleness=0, constraints=FEW)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_one_size_that_is_not_proven_is_enough(two_nodes, stops_inside):
    """And sizes that were not searched at all are open, too: Ctrl-C on one node, and two are left out."""
    stops_inside(KeyboardInterrupt)
    setup = (MODEL, two_nodes, BASE, TRAINING, SECTION)
    answer = search_post_training(*setup, stack="torchtitan", staleness=0, constraints=FEW)
    assert not answer.is_certified
    assert [(one.nodes, one.is_open, len(one.plans)) for one in answer.layouts] == [(1, True, 1), (2, True, 0)]
    assert [one["open"] for one in answer.to_dict()["training_layouts"]] == [True, True]


def test_layouts_behind_the_best_that_are_not_proven_are_said():
    """The certificate is of the best layout of every size, and of further ones that were found."""
    two = (Candidate(1, simpar.Plan(), 1.0, 0.5, 1.0), Candidate(2, simpar.Plan(), 1.1, 0.4, 1.0))
    found = SearchResult(two, Counts(2, 2, 2, 2, 2), "time", True, 0.0, 1.0)
    assert TrainingLayouts.of(1, found, 2).proven == 1
    told = found.with_details({"runners_up": {"found": 1, "certified": 1}})
    assert TrainingLayouts.of(1, told, 2).proven == 2
    assert not TrainingLayouts.of(1, told, 2).is_open


def test_the_certificate_says_in_which_steps_nodes_are_divided(answer):
    """Of 20 nodes, pools of every second size are points."""
    sizes = tuple(TrainingLayouts(nodes) for nodes in range(2, 21, 2))
    assert "pools of multiples of 2 nodes" in "".join(certificate(replace(answer, layouts=sizes)))


def test_no_training_layout_says_why():
    """What the search for training layouts says, not that it was stopped."""
    setup = ("llama-3-70b", simpar.Cluster("dgx-h100"), BASE, {"seq_len": 2048, "global_batch": 32}, SECTION)
    with pytest.raises(Infeasible, match="no training layout on 1 node: nothing fits"):
        search_post_training(*setup, stack="torchtitan", staleness=0, constraints={**FEW, "zero": 1})


def test_precisions_of_replicas_are_points_too():
    """Weights and cache in 16 and 8 bits: four times the points, and the best of them by brute force."""
    node, asked = simpar.Cluster("dgx-h100"), {"stack": "torchtitan", "layouts": 1, "constraints": FEW, "staleness": 0}
    narrow, kept = ("bf16", "fp8_blockwise"), ("bf16", "fp8")
    setup = (MODEL, node, BASE, TRAINING, SECTION)
    usual = search_post_training(*setup, **asked)
    answer = search_post_training(*setup, precisions=narrow, cache_dtypes=kept, **asked)
    assert answer.is_certified
    assert answer.counts["space"] == 4 * usual.counts["space"]
    steps = []
    for tp, stages, precision, dtype in product((1, 2), (1, 2, 4, 8), narrow, kept):
        if tp * stages <= 8:
            rollout = {"tp": tp, "pp": stages, "precision": precision, "engine": {"cache_dtype": dtype}}
            section = {**SECTION, "rollout": rollout}
            steps.append(post_train(MODEL, node, answer.best.plan, TRAINING, section, stack="torchtitan").step_time_s)
    assert answer.best.result.step_time_s == min(steps)


def test_wrong_questions_are_refused(two_nodes):
    """An unknown objective or precision, and pools of other hardware."""
    with pytest.raises(UserError, match="precisions"):
        search_post_training(MODEL, two_nodes, BASE, TRAINING, SECTION, precisions=["fp7"])
    with pytest.raises(UserError, match="cache_dtypes"):
        search_post_training(MODEL, two_nodes, BASE, TRAINING, SECTION, cache_dtypes=["int4"])
    with pytest.raises(UserError, match="objective"):
        search_post_training(MODEL, two_nodes, BASE, TRAINING, SECTION, objective="fame")
    other = {**SECTION, "placement": "split", "rollout": {"nodes": 1, "hardware": "dgx-a100-80gb"}}
    with pytest.raises(UserError, match="pools of different hardware are not searched"):
        search_post_training(MODEL, two_nodes, BASE, TRAINING, other)


HELD = tuple(word for axis, value in FEW.items() for word in ("--fix", f"{axis}={value}"))
FLAGS = (
    "--model",
    MODEL,
    "--hardware",
    "dgx-h100",
    "--seq-len",
    "2048",
    "--global-batch",
    "32",
    "--stack",
    "torchtitan",
)


def test_the_command_line_lists_what_each_loses(capsys, tmp_path):
    """The best first, with a certificate; JSON has all candidates."""
    words = ["search", *FLAGS, *HELD, "--rl", "--staleness", "0", *SMALL_STEP]
    path = tmp_path / "found.json"
    assert run([*words, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["best", "step", "limit", "waits", "memory"]
    assert any("certified: no point of the space is better" in line for line in lines)
    assert any("every division of the nodes" in line for line in lines)
    assert run([*words, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert data["certified"]
    assert data["candidates"][0]["objective"] == min(one["objective"] for one in data["candidates"])
    assert run(["search", *FLAGS, "--rl", "--space", "alpa"]) == 2
    assert "--space: is of one update of training" in capsys.readouterr().err
