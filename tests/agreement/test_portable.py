"""What a search finds for an export target is what the target exports without a loss, and what comes back from it."""

import numpy as np
import pytest

import simpar
from simpar.architectures.catalogue import catalogue, load_model
from simpar.errors import Infeasible
from simpar.frameworks import TARGETS, export, load_target, read
from simpar.planner import Constraints, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.space.axes import AXIS_NAMES
from simpar.planner.space.jobs import RowJobs
from simpar.planner.space.portable import axis_of, losses, refusals
from simpar.planner.space.rows import enumerate_space
from simpar.planner.uniform import search_uniform
from tests.gate import some
from tests.target_bases import BASES

FILES = {
    "megatron": "command.sh", "torchtitan": "simpar_recipe.py", "torchtitan-0.2": "torchtitan.toml",
    "deepspeed": "ds_config.json",
}  # fmt: skip
"""The file of an export that is read back."""
FEW = ("gpt3-1.3b", "llama-3-8b", "qwen3-0.6b", "mixtral-8x7b", "nemotron-h-4b")
GATE = [("megatron", ("tiny-mixture", "nemotron-h-4b")), ("torchtitan", ("llama-3-8b",))]
"""A mixture, a hybrid, and attention alone, each on one node, in layouts of fewer kinds."""
NARROW = {"cp": 1, "vpp": 1, "recompute": ("none", "full")}
SHARE = 0.25
"""Of the memory of all devices, what the states of a model may need."""


def problem_for(model, **options):
    """A small search: a model on as few nodes as hold its states, micro-batches of 1."""
    graph, nodes = load_model(model), 1
    longest = graph.longest or 1024
    least = max(graph.dims.get("visual.seq", 0), graph.dims.get("prompt.seq", -1) + 1)
    training = simpar.Training(seq_len=max(min(1024, longest), least), global_batch=16)
    cluster = simpar.Cluster("dgx-h100")
    while 18 * graph.num_parameters() > SHARE * nodes * 8 * cluster.device.memory_bytes:
        nodes *= 2
    training = training.model_copy(update={"global_batch": 16 * nodes})
    fixed = {"micro_batch": 1, "tp": (1, 8), "pp": (1, 4), "hsdp": (1, 2), "vpp": (1, 2)}
    fixed["cp"] = 1 if graph.has_state else (1, 2)
    constraints = Constraints(fixed=fixed | options.pop("fixed", {}), **options)
    base = BASES.get(constraints.portable, simpar.Plan())
    cluster = simpar.Cluster("dgx-h100", nodes=nodes)
    return make_problem(graph, cluster, training, base=base, constraints=constraints)


def agree(target, model, **fixed):
    """Search, export and import of a model; False where the target cannot be told of it at all.

    The plan that comes back takes the same step and memory to the last bit.
    """
    problem = problem_for(model, portable=target, fixed=fixed)
    assert problem.stack.name == load_target(target).stack
    simplest = losses(problem, problem.base.with_values(dp=1), target)
    if any(axis_of(loss) not in AXIS_NAMES for loss in simplest):
        with pytest.raises(Infeasible, match=f"{target} can express none"):
            search_uniform(problem, SearchProgress(top=1, brief=True))
        return False
    try:
        answer = search_uniform(problem, SearchProgress(top=3, brief=True))
    except Infeasible as reason:
        assert "nothing fits" in str(reason)
        return False
    for found in answer.candidates:
        again = comes_back(target, problem, found.plan)
        if again is not None:
            assert (again.step_time_s, again.peak_memory_bytes) == (found.step_time_s, found.peak_memory_bytes)
    return True


def comes_back(target, problem, plan):
    """What is predicted for a plan that was exported without a loss and read back; None where nothing reads it."""
    made = export(plan, problem.graph, problem.training, target)
    assert not made.lost
    if target not in FILES or "schedule.csv" in made.files:  # a table in a file of its own
        return None
    back = read(made.files[FILES[target]], FILES[target], target).plan
    if target == "deepspeed":  # which layers are recomputed is code
        back = back.with_values(recompute=plan.memory.recompute)
    return simpar.simulate(problem.graph, problem.cluster, back, problem.training, stack=problem.stack)


@pytest.mark.parametrize(("target", "models"), GATE)
def test_search_export_and_import_agree(target, models):
    """What is found for a target is exported without a loss, and comes back."""
    for model in models:
        assert agree(target, model, **NARROW)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_models(target):
    """For every target, and models of all kinds; each target has some."""
    assert sum(agree(target, model) for model in FEW) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "model"),
    some(
        [(target, "qwen3-8b") for target in FILES] + [("megatron", "mixtral-8x7b"), ("megatron", "gpt3-1.3b")],
        1,
        tuples=True,
    ),
)
def test_any_row_that_a_target_takes_comes_back(target, model):
    """Random layouts of the space of a target, of which most are no winners: the same step and memory."""
    training = simpar.Training(seq_len=1024, global_batch=16)
    problem = make_problem(model, simpar.Cluster("dgx-h100"), training, constraints=Constraints(portable=target))
    rows, seen = enumerate_space(problem), 0
    for row in np.random.default_rng(7).permutation(rows.count)[:60]:
        if seen == 12:
            break
        if refusals(rows, int(row)):
            continue
        named = {"model": model, "training": training.model_dump(), "stack": problem.stack.name}
        plan = RowJobs(rows).layout(int(row)).to_plan().model_copy(update=named)
        again = comes_back(target, problem, plan)
        if again is not None:
            there = simpar.simulate(problem.graph, problem.cluster, plan, training, stack=problem.stack)
            assert (again.step_time_s, again.peak_memory_bytes) == (there.step_time_s, there.peak_memory_bytes)
            seen += 1
    assert seen >= 8


@pytest.mark.slow
def test_a_target_may_have_none_of_what_fits_less_surely():
    """What the margin costs is then told by what was simulated; the answer stands."""
    assert agree("torchtitan-0.2", "qwen3-14b")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", catalogue())
def test_search_export_and_import_agree_for_every_model(target, model):
    """Every model that is shipped."""
    agree(target, model)
