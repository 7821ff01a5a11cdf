"""What rows share is the same for all of them: prices of passes by key, data parallelism by configuration.

Where a name is taken out of what tells keys or configurations apart, rows share what differs, and the check says so.
An axis that is new to the space fails until it has values here or is said to be untried.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

import simpar
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.choices.offload import DecidedOffload
from simpar.planner import Constraints, make_problem
from simpar.planner.bound import data_parallel
from simpar.planner.bound import keys as of_keys
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.axes import ALL_NAMES
from simpar.planner.space.fit import needs
from simpar.planner.space.rows import enumerate_space
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from tests.gate import some

VALUES = {
    "tp": (1, 2),
    "cp": (1, 2),
    "pp": (1, 2),
    "ep": (1, 2),
    "micro_batch": (1, 2),
    "schedule": ("1f1b", "zb-h1"),
    "zero": (0, 1),
    "hsdp": (1, 2),
    "sequence_parallel": (False, True),
    "tp_overlap": (False, True),
    "recompute": ("none", "full"),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "order": ("tp-cp-dp-pp", "tp-cp-pp-dp"),
    "precision": ("bf16", "fp32"),
    "optimizer": ("adamw", "sgd"),
    "moment_dtype": ("fp32", "bf16"),
    "reduce_dtype": ("fp32", "bf16"),
    "gather_dtype": ("bf16", "fp8"),
    "grad_dtype": ("fp32", "bf16"),
    "bucket_bytes": ("1MB", "1GB"),
    "reshard_after_forward": (True, False),
    "defer_grad_reduce": (False, True),
    "cp_method": ("ring", "all_gather"),
    "cp_balance": ("zigzag", "contiguous"),
    "ulysses": (1, 2),
    "offload_optimizer": ("none", "cpu"),
    "offload_activations": (0.0, 0.5),
    "attention_kernel": ("eager", "flash3"),
    "loss_chunks": (1, 4),
    "expandable_segments": (False, True),
    "graphs": ("none", "attention"),
    "parameter_dtype": ("fp32", "bf16"),
    "fused_kernels": ("none", "norm+activation"),
    "optimizer_kernels": ("fused", "foreach"),
}
UNTRIED = (
    "capacity_factor",
    "dispatcher",
    "ep_overlap",
    "etp",
    "offload_delayed",
    "offload_gradients",
    "offload_parameters",
    "offload_ratio",
    "recompute_early",
    "servers",
    "shared_expert_overlap",
    "staleness",
    "sync",
    "sync_every",
    "token_dispatch",
    "vpp",
)
"""Axes that make no two rows of these small dense problems, or need others beside them."""
BESIDE = {
    "reshard_after_forward": {"zero": 3},
    "defer_grad_reduce": {"zero": 3},
    "hsdp": {"zero": 3},
    "gather_dtype": {"zero": 3},
    "sequence_parallel": {"tp": 2},
    "tp_overlap": {"tp": 2, "sequence_parallel": True},
    "overlap_param_gather": {"zero": 1},
    "moment_dtype": {"zero": 1},
    "grad_dtype": {"reduce_dtype": "fp8"},
    "order": {"pp": 2, "tp": 2},
    "schedule": {"pp": 2},
}
SCHEMES = (
    "tp", "pp", "zero", "hsdp", "order", "precision", "reduce_dtype", "gather_dtype", "grad_dtype", "bucket_bytes",
    "optimizer", "overlap_grad_reduce", "overlap_param_gather", "reshard_after_forward",
    "defer_grad_reduce",
)  # fmt: skip
KEYS = ("tp", "micro_batch", "sequence_parallel", "tp_overlap", "precision")


def frontier_of(axis: str) -> Frontier:
    """Rows that differ in an axis, some 40 of them."""
    fixed = {"tp": 1, "pp": 1, "micro_batch": 1, "zero": 1, "recompute": "none", "schedule": "1f1b"}
    problem = make_problem(
        "tiny-llama",
        simpar.Cluster("dgx-h100", nodes=2),
        simpar.Training(seq_len=512, global_batch=32),
        constraints=Constraints(fixed=fixed | BESIDE.get(axis, {}) | {axis: VALUES[axis]}),
    )
    rows = enumerate_space(problem)
    rows.keep_only(np.arange(0, rows.count, max(1, rows.count // 40)))
    return Frontier.of(rows, needs(rows).needed_bytes)


def of_configuration(frontier: Frontier, row: int) -> object:
    """All that a bound reads of the data parallelism of a row."""
    one = frontier.bounds.configurations._make(row)
    held = {DENSE: np.array([1e8]), EXPERTS: np.array([0.0])}
    numbers = [each.tolist() for each in (*one.parameters.values(), *one.still.values(), one.has_no_backward, one.own)]
    took = {use: int(price.time_ns(1e8)) for use, price in one.prices.items()}
    late = one.occupied_ns(one.sync.late_reductions(held)), one.occupied_ns(one.sync.late_gathers(held))
    layout = one.sync.job.layout
    policies = {key: replace(policy, accumulates=0.0) for key, policy in one.policies.items()}  # the Program"s alone
    updates = [getattr(layout, each.name) for part in (DecidedNumerics, DecidedOffload) for each in fields(part)]
    return repr((policies, numbers, took, late, one.embedding_ns, updates, one.sync.replicas))


def of_passes(frontier: Frontier, row: int) -> object:
    """All that a bound reads of the blocks of a row."""
    found = frontier.bounds.pipelines.blocks
    view = RankView.of(found.jobs.job(row)).first
    steps = [block_steps(RankBlock.of(kind.block, view), recompute=kind.recompute) for kind in found.kinds]
    return repr([(each.forward, each.backward, each.input_gradient, each.weight_gradient) for each in steps])


def shared_wrongly(frontier: Frontier) -> bool:
    """Whether some row differs from the row that stands for it."""
    configurations, keys = frontier.bounds.configurations, frontier.bounds.pipelines.blocks
    for row in range(frontier.rows.count):
        configuration, key = int(configurations.row[configurations.index[row]]), int(keys.row[keys.key[row]])
        if of_configuration(frontier, row) != of_configuration(frontier, configuration) or of_passes(
            frontier, row
        ) != of_passes(frontier, key):
            return True
    return False


def test_every_axis_is_accounted_for():
    """A new axis of the space is tried here, or said not to be."""
    assert {*VALUES, *UNTRIED} == set(ALL_NAMES)


IN_GATE = sorted(VALUES)[::9]
"""Axes that are tried here in the gate; tests/planner/bound/test_keys.py tries others."""


@pytest.mark.parametrize("axis", some(sorted(VALUES), IN_GATE))
def test_rows_share_only_what_is_the_same(axis):
    """The row that stands for others has their passes and their data parallelism."""
    frontier = frontier_of(axis)
    assert len(np.unique(frontier.rows.code[axis])) > 1
    assert not shared_wrongly(frontier)


@pytest.mark.parametrize("axis", some(SCHEMES, SCHEMES[::3]))
def test_a_configuration_without_an_axis_is_noticed(axis, monkeypatch):
    """Rows that differ in it would share gathers and reductions."""
    kept = tuple(name for name in data_parallel.CONFIGURATION_AXES if name != axis)
    monkeypatch.setattr(data_parallel, "CONFIGURATION_AXES", kept)
    assert shared_wrongly(frontier_of(axis))


@pytest.mark.parametrize("axis", some(KEYS, ["precision", "tp"]))
def test_a_key_without_an_axis_is_noticed(axis, monkeypatch):
    """Rows that differ in it would share kernels."""
    kept = tuple(name for name in of_keys.KEY_AXES if name != axis)
    monkeypatch.setattr(of_keys, "KEY_AXES", kept)
    monkeypatch.setattr(of_keys, "_strides", lambda _: [])  # which tell sizes apart, too
    assert shared_wrongly(frontier_of(axis))
