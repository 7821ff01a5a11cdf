"""Many keys at once have the phases, times and parameters that each has by itself, to the nanosecond."""

from dataclasses import fields, replace

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.cost.optimizers import inner_matrices, matrices_time_s
from simpar.layout.sharding import rank_dims
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import BLOCKS, SIZES
from simpar.planner import Constraints, make_problem
from simpar.planner.bound.block_costs import AGAIN, LETTERS, BlockCosts
from simpar.planner.space.jobs import RowJobs
from simpar.planner.space.rows import enumerate_space
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import make_segment, slowed_beside
from simpar.program.blocks.steps import block_steps
from simpar.program.emission.collective_prices import Prices
from simpar.program.emission.traffic import block_groups, late_per_member_s
from simpar.program.structure.stages import PASSES
from simpar.stacks.stack import load_stack
from simpar.units import to_ns
from tests.gate import some

DEGREES = {"tp": (1, 2, 4), "cp": (1, 2), "micro_batch": (1, 2, 4), "schedule": "1f1b", "pp": (1, 2), "vpp": 1}
SMALL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 256, "num_attention_heads": 8,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 4096,
    "rms_norm_eps": 0.00001, "hidden_act": "silu", "max_position_embeddings": 4096, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
EXCHANGE = {"ep": (1, 2, 4), "ep_overlap": (False, True), "token_dispatch": ("per_node", "per_rank", "per_expert")}
RINGS = {"cp": (1, 2, 4), "cp_method": ("ring", "all_gather", "ulysses"), "cp_balance": ("zigzag", "contiguous")}
CASES = {
    "dense": ("llama-3.2-1b", "megatron", {"recompute": ("none", "selective", "full")}),
    "tied": ("gpt2", "simpar", {"tp_overlap": (False, True), "recompute": ("none", "full")}),
    "operators": ("tiny-llama", "torchtitan", {"recompute": ("selective",), "zero": (2, 3)}),
    "modules": ("small-llama", "megatron", {"recompute": ("optimal",), "cp": 1, "micro_batch": (1, 2)}),
    "mixture": (SMALL, "megatron-22", {"ep": (1, 2, 4), "etp": (1, 2), "recompute": ("none", "full")}),
    "one expert": (SMALL, "torchtitan-eager", {"ep": (2, 4), "tp": (1, 2), "recompute": "none"}),
    "exchange": (SMALL, "megatron", {**EXCHANGE, "recompute": "selective"}),
    "capacity": (SMALL, "megatron", {"ep": (1, 2, 4), "capacity_factor": (None, 1.5), "recompute": "none"}),
    "latent attention": ("deepseek-v2-lite", "megatron", {"ep": (1, 2, 8), "precision": ("bf16", "fp8"), "cp": 1}),
    "hooks": ("small-llama", "deepspeed", {"zero": (0, 2, 3), "recompute": ("none", "full"), "cp": 1}),
    "loop": (SMALL, "deepspeed", {"ep": (1, 2, 4), "zero": (2, 3), "recompute": ("none", "full")}),
    "hybrid": ("nemotron-h-4b", "megatron", {"recompute": ("none", "full"), "cp": 1}),
    "two towers": ("t5-3b", "megatron", {"cp": 1, "recompute": ("none", "full")}),
    "rings": ("small-llama", "nemo", {**RINGS, "recompute": "none"}),
    "hybrid rings": ("small-llama", "nemo", {"cp": 4, "ulysses": (1, 2)}),
    "early": ("tiny-llama", "megatron", {"recompute": ("full",), "recompute_early": (False, True), "pp": 2}),
}


def costs_of(case, rng, **more):
    """Costs of some random rows of a case."""
    model, stack, fixed = CASES[case]
    stack = load_stack(stack)
    if case == "one expert":  # then rows are sorted where there are several only
        stack = stack.model_copy(update={"fusion": stack.fusion.model_copy(update={"permutation": False})})
    problem = make_problem(
        read(model, name="small") if isinstance(model, dict) else model,
        simpar.Cluster("dgx-h100", nodes=2),
        simpar.Training(seq_len=1024, global_batch=64),
        stack=stack,
        constraints=Constraints(fixed={**DEGREES, **fixed, **more}),
    )
    rows = enumerate_space(problem)
    rows.keep_only(np.sort(rng.permutation(rows.count)[:80]))
    jobs = RowJobs(rows)
    return BlockCosts.of(jobs, Prices.of_job(jobs.job(0), problem.cluster.in_training))


def alone(costs, key):
    """What a rank of a key sees, and what its collectives take, as the Program of its row has them."""
    job = costs.jobs.job(int(costs.row[key]))
    view = RankView.of(job, late_per_member_s=late_per_member_s(costs.prices.cluster, job.layout.mesh)).first
    groups = {kind.name: kind.groups[0] for kind in block_groups(view)}
    return view, lambda use: costs.prices.of(use.op, groups[use.group], use.group).use_ns(use)


@pytest.mark.parametrize("case", some(CASES, 1))
def test_a_batch_has_the_phases_of_each_of_its_keys(case):
    """Every step, duration, size and dependency, and all that is priced with them."""
    rng = np.random.default_rng(len(case))
    costs = costs_of(case, rng)
    stack, letters = costs.jobs.problem.stack, {**PASSES, AGAIN: AGAIN}
    plain = costs.plain_ns(np.arange(len(costs.row)), tuple(letters))
    batches = [batch for batch, _, _ in costs.batches(np.arange(len(costs.row)))]
    assert max(len(batch.keys) for batch in batches) > 2, "keys share walks"
    for batch in batches:
        phases = {
            (at, letter): passes.phase
            for letter in letters
            for at, passes in costs.kept(batch, letter, range(len(costs.kinds))).items()
        }
        for place in rng.permutation(len(batch.keys))[:2].tolist():
            key = int(batch.keys[place])
            view, price = alone(costs, key)
            for at, kind in enumerate(costs.kinds):
                steps = block_steps(RankBlock.of(kind.block, view), recompute=kind.recompute)
                for letter, name in letters.items():
                    phase = getattr(steps, name)
                    assert phases[at, letter].of(place) == phase
                    found = make_segment(phase, price, slowdown=stack.launch.kernel_overhead)
                    assert plain[letter][key, at] == found.duration_ns


@pytest.mark.parametrize("case", some(CASES, ["mixture"]))
def test_passes_that_other_rows_have_are_not_computed_again(case, monkeypatch):
    """Of other rows of a problem; those of further keys and ways of recomputation are, and all are the same."""
    rng, letters, walked = np.random.default_rng(len(case)), tuple(LETTERS), list[int]()
    known, costs = (costs_of(case, rng) for _ in range(2))
    again = BlockCosts.of(RowJobs(costs.jobs.rows.subset(np.arange(costs.jobs.rows.count))), costs.prices)
    rows = known.jobs.rows
    rows.keep_only(rows.code["recompute"] == 0)
    rows.domain["recompute"] = rows.domain["recompute"][:1]
    costs.known, passes = BlockCosts.of(RowJobs(rows), costs.prices), BlockCosts._passes
    costs.known.kernels_ns(letters)

    def noted(self, batch, kinds, letters):
        walked.append(len(batch.keys) * len(kinds))
        return passes(self, batch, kinds, letters)

    monkeypatch.setattr(BlockCosts, "_passes", noted)
    tables = costs._tables(letters)
    shared = costs.found_in(costs.known) >= 0
    new = len(costs.kinds) - sum(kind in costs.known.index for kind in costs.index)
    assert sum(walked) == len(shared) * new + (~shared).sum() * (len(costs.kinds) - new)
    assert shared.any()
    for letter, table in again._tables(letters).items():
        for each in fields(table):
            assert np.array_equal(getattr(tables[letter], each.name), getattr(table, each.name))


@pytest.mark.parametrize("case", some(["dense", "mixture"], ["mixture"]))
def test_kernels_of_a_batch_are_slowed_as_those_of_each_key(case):
    """Beside as many nanoseconds of other communication for every key and kind."""
    rng = np.random.default_rng(len(case))
    costs = costs_of(case, rng)
    stack, keys = costs.jobs.problem.stack, rng.integers(0, len(costs.row), 16)
    busy = rng.integers(0, 10**6, (len(keys), len(costs.kinds))).astype(np.float64)
    found, excess = costs.slowed_ns(keys, "B", busy), stack.overlap.compute_slowdown_while_comm - 1.0
    for at, key in enumerate(keys.tolist()):
        view, price = alone(costs, key)
        for kind, one in enumerate(costs.kinds):
            phase = block_steps(RankBlock.of(one.block, view), recompute=one.recompute).backward
            compute_ns = float(to_ns(float(sum(step.duration_s for step in phase.steps))))
            slow = stack.launch.kernel_overhead * float(slowed_beside(excess, busy[at, kind], compute_ns))
            assert found[at, kind] == make_segment(phase, price, slowdown=slow).duration_ns


@pytest.mark.parametrize("case", some(["tied", "mixture", "latent attention", "hybrid"], ["mixture", "hybrid"]))
def test_a_batch_holds_the_parameters_of_each_of_its_keys(case):
    """Of experts and others, and what is sent on; kernels alone are less than passes."""
    costs = costs_of(case, np.random.default_rng(len(case)))
    plain = costs.plain_ns(np.arange(len(costs.row)))
    for letter, kernels in costs.kernels_ns(LETTERS).items():
        assert (kernels <= plain[letter]).all()
    for key in range(0, len(costs.row), 7):
        job = costs.jobs.job(int(costs.row[key]))
        dims = rank_dims(job.graph, job.layout, job.training).tensor
        for at, kind in enumerate(costs.kinds):
            assert costs.experts[key, at] == kind.block.trained_experts(dims)
            assert costs.dense[key, at] + costs.experts[key, at] == kind.block.trained_parameters(dims)


def test_products_of_matrix_optimizers_are_those_of_each_key():
    """Whatever their microbatches hold, which changes no matrix."""
    costs = costs_of("mixture", np.random.default_rng(1), optimizer=("adamw", "muon", "shampoo"))
    assert not costs.products_s["adamw"].any()
    for name in ("muon", "shampoo"):
        for key in range(0, len(costs.row), 5):
            view = alone(costs, key)[0]
            numerics = replace(view.job.layout, optimizer=name)
            for at, kind in enumerate(costs.kinds):
                matrices = inner_matrices([kind.block], view.tensor)
                some = [[one for one in matrices if one.expert == expert] for expert in (False, True)]
                each = [matrices_time_s(mine, numerics, view.job.kernels) for mine in some]
                assert costs.products_s[name][key, at].tolist() == [list(one) for one in each]


def test_a_walk_that_depends_on_a_size_fails():
    """Where members of a batch would have other steps, nothing is built from the first of them."""
    costs = costs_of("dense", np.random.default_rng(0))
    rows = costs.jobs.rows
    degrees = np.array([int(np.flatnonzero(rows["tp"] == tp)[0]) for tp in (1, 2)])
    view = RankView.of(costs.jobs.batch(degrees))
    with pytest.raises(ValueError, match="differ in structure"):
        block_steps(RankBlock.of(costs.kinds[2].block, view))


def test_sizes_are_axes():
    """Axes of which batches hold several values are axes of the key."""
    assert set(names_that_decide(SIZES)) == {"tp", "ep", "etp", "micro_batch"} <= set(names_that_decide(BLOCKS))
