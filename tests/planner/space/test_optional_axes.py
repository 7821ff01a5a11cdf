"""Axes on request: offered only when asked for, legal as plans are, bounded from below, certified like the rest."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.errors import Infeasible, UserError
from simpar.plan.choices import OPTIONAL_AXES
from simpar.planner import Constraints, make_problem, search
from simpar.planner.certify.exact import measure
from simpar.planner.space.axes import OPTIONAL_NAMES, list_offered
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from tests.gate import some
from tests.planner.bound.test_steps import bounds_of
from tests.planner.certify.test_branch_and_bound import NARROW, assert_certified
from tests.planner.space.test_tuning import mixture

CASES = {
    "optimizer": {"optimizer": ("adamw", "adamw_8bit", "adafactor", "lion", "muon", "shampoo", "sgd")},
    "dtypes": {
        "reduce_dtype": ("bf16", "fp8", "int4"), "gather_dtype": ("bf16", "fp8", "int8"), "moment_dtype": "fp8",
        "grad_dtype": ("fp32", "bf16"), "optimizer": ("adamw", "adafactor"), "zero": (1, 2, 3),
    },
    "buckets": {"bucket_bytes": ("1MB", "100MB"), "zero": (0, 1)},
    "sync": {"sync": ("bsp", "local-sgd", "diloco", "asp"), "sync_every": (4, 16), "zero": (0, 3)},
    "offload": {
        "offload_optimizer": ("none", "cpu"), "offload_ratio": (0.5, 1), "offload_activations": (0.0, 0.5),
        "offload_parameters": ("none", "cpu"), "zero": (0, 3),
    },
    "reshard": {"reshard_after_forward": (True, False), "zero": 3},
    "deferred": {"defer_grad_reduce": (True, False), "zero": (1, 2, 3)},
    "early": {"recompute_early": (True, False), "pp": (2, 4), "recompute": ("full", "every:2"), "zero": (0, 1)},
    "execution": {
        "attention_kernel": ("eager", "flash2"), "graphs": ("none", "attention+mlp"),
        "parameter_dtype": ("fp32", "bf16"), "fused_kernels": ("none", "compiled"), "zero": (0, 3),
    },
}  # fmt: skip
FEW = {
    "optimizer": {"optimizer": ("adamw", "muon", "sgd"), "zero": (0, 1)},
    "dtypes": {"reduce_dtype": ("bf16", "int4"), "zero": (1, 3)},
    "buckets": {"bucket_bytes": ("1MB", "100MB"), "zero": (0, 1)},
    "reshard": {"reshard_after_forward": (True, False), "zero": 3},
    "deferred": {"defer_grad_reduce": (True, False), "zero": (2, 3)},
    "early": {"recompute_early": (True, False), "recompute": "full", "zero": (0, 3)},
    "kernels": {"attention_kernel": ("eager", "flash2"), "fused_kernels": ("none", "compiled"), "zero": 0},
    "kept": {
        "loss_chunks": (1, 8),
        "expandable_segments": (True, False),
        "parameter_dtype": ("fp32", "bf16"),
        "optimizer_kernels": ("fused", "single"),
        "zero": 1,
        "pp": 1,
    },
    "sync": {"sync": ("bsp", "local-sgd", "diloco"), "sync_every": (4, 16), "zero": (0, 3)},
    "servers": {"sync": ("bsp", "asp", "ssp"), "staleness": (1, 3), "servers": (1, 2), "zero": 0, "pp": 1},
    "updates": {"offload_optimizer": ("none", "cpu"), "offload_ratio": (0.5, 1), "zero": (0, 1, 3)},
    "delayed": {
        "offload_optimizer": ("none", "cpu"),
        "offload_gradients": (True, False),
        "offload_delayed": (True, False),
        "zero": (0, 3),
    },
    "away": {
        "offload_activations": (0.0, 0.5),
        "offload_parameters": ("none", "cpu"),
        "zero": (0, 3),
        "recompute": ("none", "full"),
    },
}
DRIVES = {"offload_optimizer": ("cpu", "nvme"), "offload_parameters": ("none", "cpu"), "zero": 3}
UPDATES = {"offload_optimizer": ("none", "cpu")}
MIXED = (
    {**UPDATES, "offload_ratio": (0.5, 1)}, {**UPDATES, "offload_delayed": (True, False)},
    {**UPDATES, "offload_gradients": (True, False)}, {"offload_parameters": ("none", "cpu")},
    {"offload_activations": (0.0, 0.5)}, {"sync": ("bsp", "local-sgd", "diloco"), "sync_every": (4, 16)},
    {"sync": ("bsp", "asp")}, {"reduce_dtype": ("bf16", "int4")}, {"optimizer": ("adamw", "muon")},
    {"bucket_bytes": ("1MB", "100MB")}, {"precision": ("bf16", "fp32")}, {"grad_dtype": ("fp32", "bf16")},
    {"attention_kernel": ("eager", "flash2")}, {"graphs": ("none", "step"), "loss_chunks": (1, 4)},
    {"recompute_early": (True, False), "recompute": "full"}, {"schedule": ("1f1b", "interleaved", "terapipe")},
)  # fmt: skip
"""Axes that are drawn, each with what it needs to matter."""


def small(**fixed):
    """Llama 3 8B on two nodes."""
    return make_problem(
        "llama-3-8b",
        simpar.Cluster("dgx-h100", nodes=2),
        simpar.Training(seq_len=2048, global_batch=32),
        constraints=Constraints(fixed=fixed),
    )


def test_nothing_is_offered_unasked(problem_of):
    """The space of a default search has none of these axes."""
    problem = problem_of(1, micro_batch=2)
    assert list_offered(problem) == ()
    assert not set(enumerate_space(problem).domain) & set(OPTIONAL_NAMES)


def test_what_the_plan_has_stays_without_a_request(problem_of):
    """An optimizer in the plan is that of every row."""
    problem = replace(problem_of(1, micro_batch=2, tp=1), base=simpar.Plan(optimizer="lion"))
    rows = enumerate_space(problem)
    assert {plan_of(rows, row).numerics.optimizer for row in range(0, rows.count, 97)} == {"lion"}


@pytest.mark.parametrize("seed", some([2, 5], 1))
@pytest.mark.parametrize("case", some(CASES, ["sync"]))
def test_bounds_hold(case, seed, problem_of, frontier_of):
    """No bound of any row is above its executed step, whatever is asked for."""
    problem = problem_of(seed, **{"micro_batch": 2, **CASES[case]})
    frontier = frontier_of(problem, seed, 6)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        assert max(bounds_of(frontier, row)) <= (measure(problem, plan).step_time_s - overhead) * (1 + 1e-12), plan


@pytest.mark.parametrize("seed", some([3, 8, 11], 1))
@pytest.mark.parametrize("case", some(FEW, ["reshard", "kernels"]))
def test_search_finds_what_brute_force_finds(case, seed, problem_of):
    """The certified best step is the best of all rows, each run by the reference engine."""
    held = {**NARROW, "hsdp": 1, "cp": 1, "tp": (1, 2), "pp": (1, 2), **FEW[case]}
    problem = problem_of(seed, **held)
    assert enumerate_space(problem).count <= 40
    assert_certified(problem)


EXPERTS = {
    "slices": {"etp": (1, 2), "ep": (1, 4), "tp": (1, 2)},
    "capacity": {"capacity_factor": ("none", 1, 2.0), "ep": (1, 4), "tp": 1},
    "exchange": {"ep_overlap": (True, False), "token_dispatch": ("per_expert", "per_rank"), "ep": (2, 4), "tp": 1},
    "dispatch": {"dispatcher": ("all_gather", "all_to_all", "deepep"), "ep": (1, 4), "tp": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPERTS)
def test_choices_of_experts_are_searched_as_brute_force_does(case, frontier_of):
    """Slices, capacity and exchange of experts: bounds hold, the best is the best of all rows."""
    held = {**NARROW, "hsdp": 1, "cp": 1, "pp": (1, 2), "zero": (0, 1), "micro_batch": 2, **EXPERTS[case]}
    problem = mixture(simpar.Plan(), **held)
    rows = enumerate_space(problem)
    for name in set(EXPERTS[case]) - {"ep", "tp"}:
        assert len(np.unique(rows.code[name])) > 1
    assert rows.count <= 40
    frontier = frontier_of(problem, 3, 6)
    overhead = problem.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        exact = measure(problem, plan_of(frontier.rows, row)).step_time_s
        assert max(bounds_of(frontier, row)) <= (exact - overhead) * (1 + 1e-12)
    assert_certified(problem)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_drives_are_chosen_as_brute_force_chooses(seed, problem_of):
    """The same where nodes have drives."""
    problem = problem_of(seed, **NARROW, hsdp=1, tp=(1, 2), pp=(1, 2), **DRIVES)
    assert_certified(problem)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_corners_are_searched_as_brute_force_does(seed, problem_of):
    """Three requested axes drawn at random at once, in spaces narrowed until they can be simulated in full."""
    assert_certified(corner(problem_of, seed))


def corner(problem_of, seed, most=32):
    """A random small problem with three random axes on request."""
    rng = random.Random(77 + seed)
    axes = {name: values for group in rng.sample(MIXED, 3) for name, values in group.items()}
    fixed = {"hsdp": 1, "tp": (1, 2), "pp": (1, 2), "zero": (0, 1, 3), **NARROW, **axes}
    for name in (None, *rng.sample(["tp", "pp", "zero", *axes], 3 + len(axes))):
        many = name is not None and isinstance(fixed[name], tuple)
        tried = {**fixed, name: fixed[name][-1]} if many else fixed
        try:
            problem = problem_of(100 + seed, **tried)
            count = enumerate_space(problem).count
        except Infeasible:
            continue  # what was fixed before leaves no row with that value
        fixed = tried
        if count <= most:
            return problem
    return problem_of(100 + seed, **fixed)


def test_values_of_some_rows_are_those_of_the_columns():
    """Of single rows and of several, axes and what follows from them; whole columns are not kept for it."""
    rows = enumerate_space(small(**FEW["reshard"]))
    names = ("tp", "pp", "vpp", "micro_batch", "dp", "width", "expert_tp", "copies", "microbatches", "stages")
    which = np.arange(0, rows.count, 7)
    found = {name: (rows.at(name, which), rows.at(name, 3)) for name in names}
    assert not rows._known
    for name, (several, single) in found.items():
        assert several.tolist() == rows[name][which].tolist(), name
        assert single == rows[name][3], name


def test_replicas_on_their_own_are_where_there_are_several():
    """DiLoCo and parameter servers need two copies of the states; a period goes with the schemes that have one."""
    rows = enumerate_space(small(sync=("bsp", "diloco", "asp"), sync_every=(100, 500), zero=0, micro_batch=1))
    alone = rows["dp"] == 1
    assert not rows.one_of("sync", "diloco", "asp")[alone].any()
    seen = Counter(
        (plan.sync, plan.sync_every) for plan in (plan_of(rows, n).data_parallel for n in range(0, rows.count, 31))
    )
    assert set(seen) == {("bsp", None), ("asp", None), ("diloco", 100), ("diloco", 500)}


@pytest.mark.slow
def test_a_plan_of_diloco_is_searched():
    """Layouts with one replica are left out instead of refused."""
    problem = replace(
        small(micro_batch=1, recompute="none", cp=1, tp=(1, 8), schedule="1f1b"), base=simpar.Plan(sync="diloco")
    )
    found = search(problem.graph, problem.cluster, problem.training, base=problem.base, constraints=problem.constraints)
    assert found.certified_optimal
    assert found.best.plan.data_parallel.sync == "diloco"


def test_states_of_optimizers_decide_what_fits():
    """8-bit states fit where AdamW's do not."""
    fixed = {"tp": 8, "pp": 1, "zero": 0, "micro_batch": 1, "recompute": "full", "schedule": "1f1b"}
    problem = {"constraints": Constraints(fixed=fixed | {"optimizer": ("adamw", "adamw_8bit")}, headroom=0.78)}
    shape = "llama-3-8b", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=2048, global_batch=8)
    found = search(*shape, **problem)
    assert found.best.plan.numerics.optimizer == "adamw_8bit"
    only = Constraints(fixed=fixed | {"optimizer": "adamw"}, headroom=0.78)
    with pytest.raises(Infeasible, match="nothing fits"):
        search(*shape, constraints=only)


def test_less_to_send_is_taken_where_sending_binds():
    """Compressed gradients win over slow links, and the plan says so."""
    fixed = {"tp": 1, "pp": 1, "zero": 0, "micro_batch": 4, "reduce_dtype": ("fp32", "bf16", "int4")}
    found = search(
        "gpt2",
        simpar.Cluster("rtx-3090-8", nodes=4),
        simpar.Training(seq_len=512, global_batch=128),
        constraints=Constraints(fixed=fixed | {"recompute": "none"}),
    )
    assert found.certified_optimal
    assert found.best.plan.numerics.reduce_dtype == "int4"


def test_how_steps_are_executed_decides_what_fits():
    """Fused attention fits where the scores of eager products do not; the plan found says so, and simulates alike."""
    held = {"tp": 1, "pp": 1, "cp": 1, "zero": 0, "micro_batch": 16, "recompute": "none", "schedule": "1f1b"}
    shape = "gpt2", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=1024, global_batch=128)
    kernels = Constraints(fixed=held | {"attention_kernel": ("eager", "flash2")}, headroom=0.75)
    found = search(*shape, constraints=kernels, base=simpar.Plan(attention_kernel="cudnn"))
    assert found.best.plan.attention_kernel == "flash2"
    assert found.best.step_time_s == simpar.simulate(*shape[:2], found.best.plan, shape[2]).step_time_s
    with pytest.raises(Infeasible, match="nothing fits"):
        search(*shape, constraints=Constraints(fixed=held | {"attention_kernel": "eager"}, headroom=0.75))


def test_a_dispatcher_sends_the_copies_that_are_asked_for():
    """In mixtures alone, and not beside a plan that asks for other copies."""
    held = {"ep": (1, 2), "tp": 1, "pp": 1, "micro_batch": 1, "dispatcher": ("all_to_all", "deepep")}
    rows = enumerate_space(mixture(simpar.Plan(), **held))
    assert {rows.domain["dispatcher"][code] for code in rows.code["dispatcher"]} == {"all_to_all", "deepep"}
    assert not enumerate_space(small(**held | {"ep": 1})).code["dispatcher"].any()
    per_node = enumerate_space(mixture(simpar.Plan(), **held, token_dispatch="per_node"))
    spread = per_node["ep"] > 1
    assert set(per_node.code["dispatcher"][spread]) == {per_node.domain["dispatcher"].index("deepep")}


def test_context_methods_are_legal_and_neutral_without_context_parallelism():
    """Ulysses is limited by heads; where cp is 1 there is one row for all methods."""
    problem = make_problem(
        "tiny-llama",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=4096, global_batch=8),
        constraints=Constraints(
            fixed={"cp": (1, 2, 4, 8), "cp_method": ("ring", "ulysses"), "micro_batch": 1, "tp": (1, 2)}
        ),
    )
    rows = enumerate_space(problem)
    whole = rows["cp"] == 1
    assert not rows.one_of("cp_method", "ring", "ulysses")[whole].any()
    ulysses = rows.one_of("cp_method", "ulysses")
    heads = problem.graph.dims["heads"]
    assert ulysses.any()
    assert (heads % (rows["tp"] * rows["cp"])[ulysses] == 0).all()


def test_a_value_that_no_plan_may_have_is_no_plan_without_it():
    """Three ranks that exchange heads divide no degree of this space: it was answered without context parallelism."""
    held = {"cp": (1, 2, 4), "micro_batch": 1, "tp": (1, 2)}
    with pytest.raises(Infeasible, match=r"ulysses = 3 leaves none of \d+ where it matters; fixed: .*ulysses = 3"):
        enumerate_space(small(**held, ulysses=3))
    assert set(enumerate_space(small(**held, ulysses="2,3")).one_of("ulysses", 2)) == {True, False}
    assert not enumerate_space(small(**held, ulysses="1,3")).one_of("ulysses", 3).any()
    assert not enumerate_space(small(**held | {"cp": 1}, ulysses=3)).code["ulysses"].any()


@pytest.mark.parametrize("axis", [axis.name for axis in OPTIONAL_AXES])
def test_an_axis_knows_its_values(axis):
    """A value that no plan can have is refused in one line."""
    with pytest.raises(UserError, match=axis):
        enumerate_space(small(**{axis: "nonsense"}))


def test_neutral_values_are_those_of_a_plan():
    """Rows in which an axis changes nothing are plans as they are by default."""
    rows = enumerate_space(small(bucket_bytes=("1MB", "9MB"), micro_batch=1, tp=1, pp=1, zero=(0, 3), recompute="none"))
    for row in np.flatnonzero(rows["zero"] == 3)[:5].tolist():
        assert plan_of(rows, row).data_parallel.bucket_bytes is None
