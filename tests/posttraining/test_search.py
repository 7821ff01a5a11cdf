"""The search of a whole step: complete, bounded from below, and the best by brute force."""

import json
from itertools import product

import pytest

import simpar
from simpar.cli import run
from simpar.errors import Infeasible, UserError
from simpar.posttraining.bounds import step_bound_s
from simpar.posttraining.search import search_post_training
from simpar.posttraining.simulate import make_setting, post_train
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
    assert run([*words, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert data["certified"]
    assert data["candidates"][0]["objective"] == min(one["objective"] for one in data["candidates"])
    assert run(["search", *FLAGS, "--rl", "--space", "alpa"]) == 2
    assert "--space: is of one update of training" in capsys.readouterr().err
