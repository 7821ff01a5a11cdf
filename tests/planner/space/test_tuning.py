"""Low-rank adapters as the plan gives them: layouts of a model of which little is trained, bounded and certified."""

from functools import partial
from itertools import product

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.errors import Infeasible, UserError
from simpar.planner import Constraints, make_problem, search
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.simulation import lower_job, make_job
from tests.gate import some
from tests.planner.bound.test_steps import bounds_of
from tests.planner.certify.test_branch_and_bound import NARROW, assert_certified, few_rows

HELD = {"micro_batch": 2, "recompute": ("none", "full"), "schedule": ("1f1b", "interleaved", "zb-h1")}


def tuned(problem_of, seed, base, **held):
    """A random small problem of which a part is trained."""
    found = problem_of(seed, **held)
    return make_problem(
        found.graph, found.cluster, found.training, stack=found.stack, base=base, constraints=found.constraints
    )


def adapted(problem_of, seed, **held):
    """A random small problem of which adapters of rank 8 are trained."""
    return tuned(problem_of, seed, simpar.Plan(lora_rank=8), **held)


def frozen(problem_of, seed, **held):
    """A random small problem of which some first layers are frozen, and the others or adapters in them trained."""
    layers = len(problem_of(seed).graph.layers)
    rank = 8 if seed % 3 == 0 else None
    base = simpar.Plan(frozen_layers=1 + seed % (layers - 1), lora_rank=rank)
    return tuned(problem_of, seed, base, **held)


MIXTURE = {
    "model_type": "qwen2_moe", "vocab_size": 4096, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_hidden_layers": 4, "intermediate_size": 512, "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "mlp_only_layers": [0], "norm_topk_prob": True, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip


def mixture(base, stack="megatron", **fixed):
    """A small mixture of eight experts, of which a part is trained, on one node."""
    return make_problem(
        read(MIXTURE, name="small-mixture-tuned"),
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=512, global_batch=16),
        stack=stack,
        base=base,
        constraints=Constraints(fixed=fixed),
    )


@pytest.mark.parametrize(("seed", "count"), some([(1, 4), (1, 8), (4, 8), (6, 8), (9, 8)], 1, tuples=True))
def test_bounds_hold(seed, count, problem_of, frontier_of):
    """No bound is above the executed step."""
    problem = adapted(problem_of, seed, **HELD)
    frontier = frontier_of(problem, seed, count)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        assert plan.tuning.lora_rank == 8
        exact = measure(problem, plan).step_time_s - overhead
        assert max(bounds_of(frontier, row)) <= exact * (1 + 1e-12), plan


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8])
def test_search_finds_what_brute_force_finds(seed, problem_of):
    """The certified best step is the best of all rows by the reference engine."""
    held = {**NARROW, "hsdp": 1, "tp": (1, 2), "pp": (1, 2), "zero": (0, 1, 3), "recompute": ("none", "full")}
    problem = adapted(problem_of, seed, **held)
    assert_certified(problem)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "nf4"])
def test_memory_is_that_of_the_program(dtype, zero):
    """Frozen weights, in 4 bits or not, and states of adapters alone are in the bound for columns."""
    fixed = {"tp": 2, "pp": 1, "zero": zero, "micro_batch": 1, "recompute": "full", "hsdp": 1}
    problem = make_problem(
        "llama-3-8b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=2048, global_batch=32),
        base=simpar.Plan(lora_rank=16, frozen_dtype=dtype),
        constraints=Constraints(fixed=fixed),
    )
    rows = enumerate_space(problem)
    rows.keep_only(np.arange(1))
    plan, needed = plan_of(rows, 0), needs(rows).predicted_bytes
    exact = simpar.simulate("llama-3-8b", problem.cluster, plan, problem.training, stack=problem.stack)
    assert 0.75 < float(needed[0]) / exact.memory.peak_reserved_bytes <= 1.0
    assert Frontier.of(rows, needed).bound_s[0] <= exact.step_time_s


@pytest.mark.slow
def test_adapters_fit_where_the_whole_model_does_not():
    """70B on one node: adapters over 4-bit weights; the plan says so and is simulated as predicted."""
    shape = "llama-3-70b", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=2048, global_batch=16)
    base = simpar.Plan(lora_rank=16, frozen_dtype="nf4")
    constraints = Constraints(fixed={"micro_batch": 1, "recompute": "full", "schedule": "1f1b"})
    found = search(*shape, base=base, constraints=constraints)
    assert found.certified_optimal
    assert found.best.plan.tuning.lora_rank == 16
    again = simpar.simulate(*shape[:2], found.best.plan, shape[2])
    assert again.step_time_s == found.best.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(8), 3))
def test_bounds_hold_with_frozen_layers(seed, problem_of, frontier_of):
    """No bound is above the executed step, whatever the schedule and wherever the frozen prefix ends."""
    problem = frozen(problem_of, seed, micro_batch=2, recompute=("none", "full"), pp=(1, 2, 4))
    frontier = frontier_of(problem, seed, 10)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        assert plan.tuning.frozen_layers
        exact = measure(problem, plan).step_time_s - overhead
        assert max(bounds_of(frontier, row)) <= exact * (1 + 1e-12), plan


@pytest.mark.parametrize("seed", some([0, 1, 2, 5, 6, 7], 1))
def test_search_finds_what_brute_force_finds_with_frozen_layers(seed, problem_of):
    """The certified best step is the best of all rows by the reference engine."""
    problem = few_rows(partial(frozen, problem_of), seed)
    assert_certified(problem)


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "frozen_layers"), [("megatron", 8), ("nanotron", 20), ("fsdp", 31)])
def test_the_fullest_rank_of_frozen_layers_is_found(stack, frozen_layers):
    """The bound is near what the Program needs on its fullest rank, which need not be an end of the pipeline."""
    problem = make_problem(
        "llama-3-8b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=2048, global_batch=32),
        stack=stack,
        base=simpar.Plan(frozen_layers=frozen_layers),
        constraints=Constraints(
            fixed={"micro_batch": 1, "tp": 1, "cp": 1, "recompute": ("none", "full")}, fit_probability=0.5
        ),
    )
    rows = enumerate_space(problem)
    rows.keep_only(np.sort(np.random.default_rng(frozen_layers).choice(rows.count, 24, replace=False)))
    found, middle = needs(rows), 0
    for row in range(rows.count):
        plan = plan_of(rows, row)
        exact = measure(problem, plan).needed_bytes
        assert exact * 0.5 <= found.needed_bytes[row] <= exact, plan
        middle += 0 < found.stage[row] < plan.mesh.pp - 1
    assert middle or frozen_layers == 31


def test_nothing_goes_back_to_stages_below_what_is_trained():
    """Stages of frozen layers receive no gradients and gather parameters once: for their forward."""
    training, cluster = simpar.Training(seq_len=2048, global_batch=32), simpar.Cluster("dgx-h100")

    def ops(frozen_layers, **plan):
        plan = simpar.Plan(pp=4, tp=1, micro_batch=1, recompute="full", frozen_layers=frozen_layers, **plan)
        job = make_job("llama-3-8b", cluster, plan, training)
        program = lower_job(job, cluster).program
        names = [program.labels[index].name for index in program.ops.label.tolist()]
        return names.count("send gradients"), names.count("all_gather parameters")

    assert [ops(frozen)[0] // 16 for frozen in (0, 7, 8, 16, 24)] == [3, 3, 2, 1, 0]
    (_, all_trained), (_, half) = ops(0, zero=3), ops(16, zero=3)
    assert half < 0.8 * all_trained


@pytest.mark.slow
def test_frozen_layers_let_layouts_fit_that_would_not():
    """Half of Llama 3 8B frozen fits where all of it trained does not; the plan found is simulated as predicted."""
    fixed = {"tp": 2, "pp": 1, "zero": 0, "micro_batch": 1, "recompute": "full"}
    shape = "llama-3-8b", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=2048, global_batch=16)
    constraints = Constraints(fixed=fixed, headroom=0.2)
    with pytest.raises(Infeasible, match="nothing fits"):
        search(*shape, constraints=constraints)
    found = search(*shape, base=simpar.Plan(frozen_layers=16), constraints=constraints)
    assert found.certified_optimal
    again = simpar.simulate(*shape[:2], found.best.plan, shape[2])
    assert again.step_time_s == found.best.step_time_s


TUNED = (
    {"lora_rank": 8}, {"lora_rank": 8, "lora_targets": ("q_proj", "v_proj"), "frozen_dtype": "nf4"},
    {"frozen_layers": 2}, {"frozen_layers": 1, "lora_rank": 4},
)  # fmt: skip
STACKS = ("megatron", "fsdp")


FEW = tuple(zip(TUNED, STACKS * 2, (3,) * 4, strict=True))[1:3]
"""Few rows of adapters over weights of 4 bits and of frozen layers, each on one of the stacks."""


@pytest.mark.parametrize(
    ("base", "stack", "count"), some([*FEW, *product(TUNED, STACKS, (8,))], FEW, tuples=True), ids=str
)
def test_bounds_and_memory_hold_in_mixtures(base, stack, count, frontier_of):
    """Spread experts with adapters, or frozen: bounds are below the executed step, memory is that of the Program."""
    problem = mixture(simpar.Plan(**base), stack, micro_batch=2, recompute=("none", "full"), ep=(1, 2, 4))
    frontier = frontier_of(problem, 7, count)
    overhead, needed = problem.stack.launch.step_overhead_s, needs(frontier.rows).predicted_bytes
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        exact = simpar.simulate(problem.graph, problem.cluster, plan, problem.training, stack=problem.stack)
        assert max(bounds_of(frontier, row)) <= (exact.step_time_s - overhead) * (1 + 1e-12), plan
        assert 0.95 < needed[row] / exact.memory.peak_reserved_bytes <= 1.0, plan


@pytest.mark.slow
@pytest.mark.parametrize("base", [{"lora_rank": 8}, {"frozen_layers": 2}], ids=str)
def test_search_finds_what_brute_force_finds_in_mixtures(base):
    """The certified best step is the best of all rows by the reference engine."""
    held = {**NARROW, "hsdp": 1, "cp": 1, "tp": (1, 2), "pp": (1, 2), "ep": (1, 4), "zero": (0, 1, 3)}
    problem = mixture(simpar.Plan(**base), **(held | {"sequence_parallel": (False, True)}))
    assert 8 <= enumerate_space(problem).count <= 40
    assert_certified(problem)


def test_what_no_plan_can_be_is_in_no_row():
    """Parts are not tuned by replicas on their own or in stages of their own."""
    fixed = {"sync": ("bsp", "diloco"), "micro_batch": 1, "zero": (0, 3)}
    shape = "llama-3-8b", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=2048, global_batch=16)
    base = simpar.Plan(frozen_layers=4)
    rows = enumerate_space(make_problem(*shape, base=base, constraints=Constraints(fixed=fixed)))
    assert rows.one_of("sync", "bsp").all()
    with pytest.raises(UserError, match="not searched with --space alpa"):
        search(*shape, base=base, space="alpa")
