"""Searches of a whole step with a critic and of mixtures against every point by the public calls."""

from itertools import product

import pytest

import simpar
from simpar.errors import UserError
from simpar.posttraining.search import search_post_training
from simpar.posttraining.simulate import post_train

TRAINING, FEW = {"seq_len": 2048, "global_batch": 32}, {"tp": 1, "cp": 1, "pp": 1, "zero": 3, "micro_batch": 1}
LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 300, "p99": 1500}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 1}
PPO = {"algorithm": "ppo", "passes": {"reference": True, "critic": "qwen2.5-1.5b"}}
POOLS = {1: [(1, 0, "colocated")], 2: [(1, 0, "colocated"), (1, 1, "split"), (1, 1, "hybrid"), (2, 0, "colocated")]}


def synchronies(placement, staleness):
    """On policy; and off policy up to a bound, where colocated devices always interrupt."""
    yield {"steps_off": 0}
    for steps_off in range(1, staleness + 1):
        for in_flight in (False, True) if placement == "split" else (True,):
            yield {"steps_off": steps_off, "in_flight": in_flight}


def layouts(devices, experts):
    """Replicas of powers of two, with experts on the devices of one or on more."""
    doubled = [2**power for power in range(8)]
    for tp, stages in product((1, 2, 4, 8), doubled):
        for ep in (1, *(each for each in doubled if max(2, tp) <= each <= experts)):
            if stages * max(tp, ep) <= devices:
                yield {"tp": tp, "pp": stages, "ep": ep}


def every_step(model, nodes, plans, section, staleness):
    """(Step, whether it fits) of every point; None for one that is refused. A plan by nodes that train."""
    layers, experts = len(simpar.Model(model).layers), int(simpar.Model(model).dims.get("num_experts", 0))
    for trained, rollout, placement in POOLS[nodes]:
        cluster = simpar.Cluster("dgx-h100", trained)
        for layout in layouts(8 * (rollout or trained), experts):
            for synchrony in synchronies(placement, staleness) if layout["pp"] <= layers else ():
                pool = {"placement": placement, "rollout": {"nodes": rollout or None, **layout}}
                asked = {**section, **pool, "synchrony": synchrony}
                try:
                    result = post_train(model, cluster, plans[trained], TRAINING, asked, stack="torchtitan")
                except UserError:
                    yield None
                else:
                    yield result.step_time_s, result.fits


@pytest.mark.parametrize(
    ("model", "values", "nodes", "staleness"),
    [
        ("qwen2.5-0.5b", PPO, 1, 0),
        pytest.param("qwen2.5-0.5b", PPO, 2, 1, marks=pytest.mark.slow),
        ("olmoe-1b-7b", {}, 1, 0),
        pytest.param("olmoe-1b-7b", PPO, 1, 1, marks=pytest.mark.slow),
        pytest.param("olmoe-1b-7b", {}, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_the_winner_is_that_of_brute_force(model, values, nodes, staleness):
    """The certificate holds over all points, and they are as many as the search counts."""
    section = {**SECTION, **values}
    asked = {"stack": "torchtitan", "layouts": 1, "constraints": FEW, "staleness": staleness}
    answer = search_post_training(model, simpar.Cluster("dgx-h100", nodes), {}, TRAINING, section, **asked)
    plans = {one.choice.training_nodes: one.plan for one in answer.candidates}
    assert plans.keys() == {trained for trained, _, _ in POOLS[nodes]}
    steps = list(every_step(model, nodes, plans, section, staleness))
    best = min(step for step, fits in filter(None, steps) if fits)
    assert answer.is_certified
    assert answer.best.result.step_time_s == best
    assert answer.counts["space"] == len(steps)
    assert answer.counts["simulated"] + answer.counts["bounded"] + answer.counts["refused"] == len(steps)
