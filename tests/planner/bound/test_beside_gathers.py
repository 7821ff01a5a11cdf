"""Collectives inside passes beside gathers: bounds know what they lose there, and stay below what is simulated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simpar
from simpar.planner.bound import batched_sweep
from simpar.planner.bound.beside_gathers import GatherLoads
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.problem import Constraints, make_problem
from simpar.planner.space.fit import needs
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.units import NS_PER_S

ACROSS = {
    "tp": 16, "cp": 1, "hsdp": 1, "zero": (1, 2), "overlap_param_gather": True, "overlap_grad_reduce": True,
    "recompute": "none", "sequence_parallel": True,
}  # fmt: skip
"""Tensor ranks on two nodes of eight, and gathers beside the first forwards."""
CLUSTERS = ("dgx-h100", "dgx-a100-80gb", "dgx-h100 over 8x 25 Gb/s ethernet", "dgx-a100-40gb over 4x 25 Gb/s ethernet")
MODELS = ("llama-3.2-1b", "gpt3-1.3b", "olmoe-1b-7b")


def frontier_of(model, hardware, nodes, *, stack="megatron", seq_len=512, batch=32, **fixed):
    """Rows with tensor ranks on two nodes."""
    problem = make_problem(
        model,
        simpar.Cluster(hardware, nodes=nodes),
        simpar.Training(seq_len=seq_len, global_batch=batch),
        stack=stack,
        constraints=Constraints(portable="any", fixed={**ACROSS, **fixed}, fit_probability=0.5),
    )
    rows = enumerate_space(problem)
    return Frontier.of(rows, needs(rows).needed_bytes)


def ratios(frontier, row):
    """The sweep of a row over its simulated step, and the same without what is known of gathers."""
    problem, one = frontier.rows.problem, np.array([row])
    try:
        exact = measure(problem, plan_of(frontier.rows, row))
    except simpar.UserError:
        return 1.0, 1.0  # the framework does not have this plan, or its Program has more ops than are built
    step_ns = (exact.step_time_s - problem.stack.launch.step_overhead_s) * NS_PER_S
    swept = float(frontier.sweeps.of(one)[0])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batched_sweep, "ends_beside_gathers_ns", lambda *_: None)
        plain = float(frontier.sweeps.of(one)[0])
    assert swept >= plain
    return swept / step_ns, plain / step_ns


@settings(max_examples=15, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    hardware=st.sampled_from(CLUSTERS),
    nodes=st.sampled_from((4, 6, 8, 16)),
    stack=st.sampled_from(("megatron", "nemo", "deepspeed", "torchtitan")),
    axes=st.fixed_dictionaries(
        {"pp": st.sampled_from((1, 2, 4)), "micro_batch": st.sampled_from((1, 2, 4))},
        optional={
            "order": st.sampled_from(("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-pp-cp-dp")),
            "cp": st.sampled_from((1, 2)),
            "ep": st.sampled_from((1, 2)),
            "tp_overlap": st.booleans(),
            "gather_dtype": st.sampled_from(("bf16", "fp32")),
            "bucket_bytes": st.sampled_from(("1MB", "1GB")),
            "hsdp": st.sampled_from((1, 2)),
        },
    ),
    seq_len=st.sampled_from((256, 2048)),
    which=st.randoms(use_true_random=False),
)
def test_no_step_is_below_the_bound(model, hardware, nodes, stack, axes, seq_len, which):
    """Whatever else is on the cards: messages, exchanges of tokens and of sequences, reductions."""
    try:
        frontier = frontier_of(model, hardware, nodes, stack=stack, seq_len=seq_len, **axes)
    except simpar.UserError:
        return  # the framework or the model allows none of these
    for row in which.sample(range(frontier.rows.count), min(3, frontier.rows.count)):
        if not frontier.own[row]:
            assert ratios(frontier, row)[0] <= 1 + 1e-12


@pytest.mark.parametrize("chunks", [(1, 12), (2, 24), (4, 24)])
def test_the_bound_rises_where_tensor_ranks_span_nodes(chunks):
    """GPT-3 on 4,096 A100: gathers slow the first forwards by some hundredths of the step."""
    pp, vpp = chunks
    axes = {"pp": pp, "vpp": vpp if pp > 1 else 1, "micro_batch": 6}
    frontier = frontier_of("gpt3-175b", "dgx-a100-80gb", 512, seq_len=2048, batch=1536, **axes)
    above = [ratios(frontier, row) for row in range(min(4, frontier.rows.count))]
    assert above
    assert all(plain + 0.015 < swept <= 1 + 1e-12 for swept, plain in above), above


def gathers(frontier):
    """What gathers put on NICs, and the configuration of the first row."""
    pipelines, configurations = frontier.bounds.pipelines, frontier.bounds.configurations
    return GatherLoads(pipelines.jobs.problem, pipelines.prices.cluster), configurations[int(configurations.index[0])]


def test_gathers_load_the_nics_alone():
    """A byte of a gather takes some of both directions of the NIC and nothing of the port."""
    loads, one = gathers(frontier_of("llama-3.2-1b", "dgx-h100", 4, pp=1))
    port_out, port_in, nic_out, nic_in = loads.taken_s(one)
    assert loads.are_places_alike
    assert port_out == port_in == 0.0 < nic_out == nic_in


@pytest.mark.parametrize(
    "fixed", [{"overlap_param_gather": False, "zero": 1}, {"tp": 4, "order": "tp-cp-dp-pp"}, {"cp": 2}]
)
def test_nothing_is_said_of_other_gathers(fixed):
    """None beside forwards, groups with members in one node, and sequences cut unevenly."""
    loads, one = gathers(frontier_of("llama-3.2-1b", "dgx-h100", 8, pp=1, **fixed))
    assert not loads.taken_s(one).any()


def test_nothing_is_said_of_places_that_differ():
    """Cards that ranks share, slow ranks, slow links."""
    frontier = frontier_of("llama-3.2-1b", "dgx-h100", 4, pp=1)
    loads = gathers(frontier)[0]
    problem = loads.problem
    shared = simpar.Cluster("dgx-a100-40gb over 4x 25 Gb/s ethernet", nodes=4)
    assert not GatherLoads(replace(problem, cluster=shared), shared.in_training.whole).are_places_alike
    slow = replace(problem, perturbation=simpar.Perturbation(slow_ranks={3: 1.2}))
    assert not GatherLoads(slow, loads.cluster).are_places_alike
    degraded = replace(problem, cluster=problem.cluster.with_degraded({"nic_tx[1]": 0.5}))
    assert not GatherLoads(degraded, loads.cluster).are_places_alike
