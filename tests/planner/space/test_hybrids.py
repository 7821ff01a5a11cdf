"""Hybrids in the uniform space: only layouts that can be, bounds below the executed step, memory as simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.planner import Constraints, make_problem
from simpar.planner.certify.exact import measure
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.units import NS_PER_S
from tests.gate import some

DENSE = {
    "model_type": "nemotron_h", "vocab_size": 4096, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 1024, "mamba_num_heads": 16, "mamba_head_dim": 32,
    "ssm_state_size": 64, "n_groups": 4, "hybrid_override_pattern": "M-M*-M",
}  # fmt: skip
EXPERTS = {
    **DENSE, "hybrid_override_pattern": "MEM*EM", "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512, "moe_latent_size": 128,
    "num_nextn_predict_layers": 1, "mtp_num_layers": 2, "num_layers_at_end_in_bf16": 2,
}  # fmt: skip


def problem(config, seq_len=512, fixed=None):
    """A small problem on one node of eight H100."""
    return make_problem(
        read(config, name="hybrid"),
        simpar.Cluster("dgx-h100", nodes=1),
        simpar.Training(seq_len=seq_len, global_batch=16),
        stack="megatron",
        constraints=Constraints(fixed=fixed or {}),
    )


def test_the_space_holds_what_a_hybrid_can_be():
    """No context parallelism, tensor degrees that divide the groups of state-space layers."""
    rows = enumerate_space(problem(DENSE, seq_len=32768))
    assert set(rows["cp"]) == {1}
    assert set(rows["tp"]) == {1, 2, 4}


@pytest.mark.parametrize(
    ("config", "count"), some([(DENSE, 4), (EXPERTS, 4), (DENSE, 12), (EXPERTS, 12)], 2, tuples=True)
)
def test_bounds_are_below_the_executed_step(config, count, frontier_of):
    """What prunes a search never exceeds what is simulated, and every row is a plan that can be."""
    given = problem(config)
    frontier = frontier_of(given, 3, count)
    overhead = given.stack.launch.step_overhead_s
    for row in range(frontier.rows.count):
        plan = plan_of(frontier.rows, row)
        complete_plan(plan, Workload(given.graph, given.training, 8, 8))
        bound = float(frontier.bounds.of(np.array([row]))[0]) / NS_PER_S
        exact = measure(given, plan).step_time_s - overhead
        assert 0 < bound <= exact * (1 + 1e-12), plan


@pytest.mark.slow
def test_search_finds_what_brute_force_finds():
    """The certified best step of a hybrid is the best of all plans that fit, every one simulated."""
    fixed = {"recompute": "none", "zero": 1, "schedule": "1f1b", "micro_batch": 2, "tp": 2, "tp_overlap": False}
    given = problem(EXPERTS, fixed=fixed)
    found = simpar.search(
        given.graph,
        given.cluster,
        given.training,
        stack=given.stack.name,
        constraints=replace(given.constraints, portable="any"),
    )
    rows = enumerate_space(given)
    every = [measure(given, plan_of(rows, row)).step_time_s for row in range(rows.count)]
    assert found.certified_optimal
    assert found.shortest.step_time_s == pytest.approx(min(every), rel=1e-9)
