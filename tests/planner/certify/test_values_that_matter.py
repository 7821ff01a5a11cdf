"""No value that changes a plan is left out of a search: certificates against every combination by simulate."""

from itertools import product

import pytest

import simpar
from simpar.errors import UserError
from simpar.planner.problem import Constraints
from tests.gate import some

HELD = {"cp": 1, "recompute": "none", "sequence_parallel": False}
CASES = {
    "experts have replicas where the model has none": (
        "olmoe-1b-7b", ("dgx-h100", 1, 4),
        {"tp": 8, "ep": (1, 2, 4), "micro_batch": 1, "zero": (0, 1, 2), "sequence_parallel": True}, {},
    ),
    "both ends of a pipeline reduce the table of words that they share": (
        "llama-3.2-1b", ("a100-pcie-8", 1, 16),
        {"pp": 8, "tp": 1, "micro_batch": 1, "reduce_dtype": ("bf16", "int4")}, {},
    ),
    "replicas that step on their own send parameters": (
        "gpt2", ("aws-p4d", 2, 16), {"pp": 1, "tp": 1, "micro_batch": 1, "zero": 0, "gather_dtype": ("bf16", "fp8")},
        {"sync": "local-sgd", "sync_every": 1},
    ),
    "nothing is pipelined on one rank": (
        "gpt2", ("dgx-v100", 1, 16), {"pp": 1, "tp": 1, "micro_batch": (1, 2), "zero": (1, 3), "precision": "fp16"}, {},
    ),
    "late gathers where there is nothing to gather": (
        "gpt2", ("dgx-h100", 1, 32),
        {"pp": 1, "tp": (1, 2), "micro_batch": 4, "overlap_param_gather": False, "zero": (0, 1, 3)}, {},
    ),
}  # fmt: skip
GATE = [name for name in CASES if not name.startswith(("experts", "late"))]
SCHEDULES = {"nothing is pipelined on one rank": ("gpipe", "zb-h1", "1f1b")}


def simulated(model, cluster, training, values):
    """Step of a plan that can be and fits, else None."""
    try:
        found = simpar.simulate(model, cluster, simpar.Plan(**values), training, stack="megatron")
    except UserError:
        return None
    return found.step_time_s if found.fits else None


@pytest.mark.parametrize("case", some(CASES, GATE))
def test_no_combination_is_faster_than_what_is_certified(case):
    """Every value of every axis that was asked for, whether rows have it or not."""
    name, (hardware, nodes, batch), asked, base = CASES[case]
    model = simpar.Model(name, seq_len=512)
    cluster, training = (simpar.Cluster(hardware, nodes=nodes), simpar.Training(seq_len=512, global_batch=batch))
    fixed = HELD | asked
    schedules = SCHEDULES.get(case, ("1f1b",))
    whole = fixed | {"tp_overlap": False}  # as the stack has it
    constraints = Constraints(fixed=whole, schedules=schedules, portable="any", fit_probability=0.5)
    found = simpar.search(model, cluster, training, base=simpar.Plan(**base), stack="megatron", constraints=constraints)
    axes = {key: value if isinstance(value, tuple) else (value,) for key, value in fixed.items()}
    steps = [
        simulated(model, cluster, training, {**base, **dict(zip(axes, values, strict=True)), "schedule": schedule})
        for values in product(*axes.values())
        for schedule in schedules
    ]
    assert found.certified_optimal
    assert found.shortest.step_time_s == pytest.approx(min(step for step in steps if step), rel=1e-9)


def test_schedules_are_alike_on_one_rank():
    """A backward follows its forward, whatever the plan names: same step, same memory."""
    cluster, training = simpar.Cluster("dgx-h100", nodes=1), simpar.Training(seq_len=512, global_batch=32)
    found = {
        name: simpar.simulate("gpt2", cluster, simpar.Plan(zero=3, micro_batch=1, schedule=name), training)
        for name in ("1f1b", "gpipe", "naive", "zb-h1", "zb-h2", "eager-1f1b")
    }
    assert len({(each.step_time_s, each.memory.peak_reserved_bytes) for each in found.values()}) == 1
