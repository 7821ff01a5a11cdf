"""What calls take as models, clusters, plans, trainings and constraints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simpar
from simpar.architectures.graph import ModelGraph
from simpar.hardware.mixed import MixedCluster
from simpar.hardware.profile import Between

PLAN, TRAINING = {"zero": 1, "micro_batch": 8}, {"seq_len": 1024, "global_batch": 64}
OBJECTS = (simpar.Model("gpt2"), simpar.Cluster("dgx-h100"), simpar.Plan(**PLAN), simpar.Training(**TRAINING))
FEW = {"cp": 1, "pp": 1, "micro_batch": 8}


def test_names_dicts_and_files_mean_what_the_objects_mean(tmp_path: Path) -> None:
    """The same step to the bit."""
    file = tmp_path / "plan.json"
    OBJECTS[2].save(file)
    wanted = simpar.simulate(*OBJECTS).to_dict()
    for plan in (PLAN, {"data_parallel": {"zero": 1}, "micro_batch": 8}, str(file), file):
        assert simpar.simulate("gpt2", "dgx-h100", plan, TRAINING).to_dict() == wanted


def test_a_perturbation_may_be_a_dict() -> None:
    """As it may be an object."""
    slow = {"slow_ranks": {3: 1.5}}
    steps = [
        simpar.simulate(*OBJECTS, perturbation=each).step_time_s for each in (slow, simpar.Perturbation(**slow), None)
    ]
    assert steps[0] == steps[1] > steps[2]


@pytest.mark.slow
def test_constraints_may_be_a_dict_of_fields_and_axes() -> None:
    """Axes beside the fields are fixed, as those of ``fixed`` are."""
    asked = simpar.Constraints(headroom=0.1, fixed={"tp": (1, 2), **FEW})
    results = [
        simpar.search("gpt2", "dgx-h100", TRAINING, constraints=each)
        for each in (asked, {"headroom": 0.1, "tp": (1, 2), **FEW}, {"headroom": 0.1, "fixed": {"tp": (1, 2)}, **FEW})
    ]
    first, *others = ({**each.to_dict(), "search_seconds": 0} for each in results)
    assert all(json.dumps(each, sort_keys=True) == json.dumps(first, sort_keys=True) for each in others)
    assert {each.plan.tp for each in results[0].candidates} <= {1, 2}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: simpar.simulate(3, *OBJECTS[1:]), "model = 3: is of type int; allowed: ModelGraph, a name or path"),
        (lambda: simpar.simulate("gpt2", 4, *OBJECTS[2:]), "cluster = 4: is of type int; allowed: Cluster, "),
        (lambda: simpar.simulate(*OBJECTS[:2], [8], OBJECTS[3]), "plan = [8]: is of type list; allowed: Plan, a dict"),
        (lambda: simpar.simulate(*OBJECTS[:3], 64), "training = 64: is of type int; allowed: Training, a dict"),
        (lambda: simpar.simulate(*OBJECTS, perturbation=2), "perturbation = 2: is of type int; allowed: "),
        (lambda: simpar.search(*OBJECTS[:2], 64), "training = 64: is of type int; "),
        (lambda: simpar.search(*OBJECTS[:2], TRAINING, constraints="tp=1"), "constraints = 'tp=1': is of type str; "),
        (lambda: simpar.search(*OBJECTS[:2], TRAINING, constraints={"headrom": 0.1}), "did you mean 'headroom'?"),
        (lambda: simpar.Constraints(fixd={"tp": 1}), "Constraints() got an unexpected keyword argument 'fixd'"),
        (lambda: simpar.Model(3), "model = 3: is of type int"),
        (lambda: simpar.Model("gpt2", seqlen=8), "Model() got an unexpected keyword argument 'seqlen'; did you mean"),
        (lambda: simpar.Cluster(3), "profile = 3: is of type int; allowed: Cluster, "),
        (lambda: simpar.Cluster("dgx-h100", node=2), "Cluster() got an unexpected keyword argument 'node'; did you"),
        (lambda: simpar.Plan(tpp=4), "Plan: tpp = 4: is not a key of a plan; did you mean 'tp'?"),
        (lambda: simpar.Plan(tp=2).with_values(tp=0), "Plan: tp = 0: allowed: greater than or equal to 1"),
        (lambda: simpar.Training(seqlen=8, global_batch=8), "Training: unknown key seqlen; did you mean 'seq_len'?"),
        (lambda: simpar.Training(seq_len=8), "Training: global_batch is missing"),
        (lambda: simpar.Training(8, 8), "Training: takes its values by name, as in Training(seq_len=...)"),
        (lambda: simpar.Perturbation(slow={1: 2}), "Perturbation: unknown key slow; did you mean 'slow_ranks'?"),
        (lambda: simpar.Mesh(tp=0), "Mesh: tp = 0: allowed: greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(call: Callable[[], Any], words: str) -> None:
    """By one class of errors, which is also what Python raises there."""
    with pytest.raises(simpar.UserError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, TypeError)
    assert isinstance(refused.value, ValueError)


def test_models_and_clusters_are_instances_of_what_made_them() -> None:
    """Also those of scenarios, and clusters of several kinds of nodes; nothing else is."""
    scenario = simpar.load_scenario("gpt2-laptop")
    mixed = MixedCluster.of("two", (OBJECTS[1], OBJECTS[1]), Between())
    assert all(isinstance(each, simpar.Model) for each in (OBJECTS[0], scenario.graph()))
    assert all(isinstance(each, simpar.Cluster) for each in (OBJECTS[1], scenario.build_cluster(), mixed))
    assert issubclass(ModelGraph, simpar.Model)
    assert not isinstance(OBJECTS[1], simpar.Model)
    assert not isinstance("dgx-h100", simpar.Cluster)


def test_they_print_as_one_line() -> None:
    """Their size, not their operators or actions."""
    assert repr(OBJECTS[0]) == "<Model gpt2: 12 layers, 124,439,808 parameters>"
    assert repr(OBJECTS[1].with_degraded({"node:0": 0.5})).startswith("<Cluster 1 x dgx-h100: 8 h100-sxm-80gb, ")
    assert str(OBJECTS[3]) == "Training(seq_len=1024, global_batch=64)"
    table = simpar.make_schedule("1f1b", num_ranks=8, num_microbatches=64)
    assert repr(table) == "<Schedule 1f1b: 8 pipeline ranks, 8 stages, 64 microbatches, 1,024 actions>"
