"""Checkpoint intervals and efficiency against their definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from simpar.architectures.catalogue import load_model
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.operation import Operation
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.operate.checkpoint import checkpoint_bytes, checkpoint_cost, daly, efficiency, young
from simpar.plan.plan import Plan
from simpar.simulation import apply_tuning
from simpar.stacks.stack import load_stack
from simpar.units import GB, HOUR_S


@given(st.floats(1.0, 600.0), st.floats(1.0, 100.0))
def test_dalys_interval_is_the_optimum_of_the_exact_efficiency(w, hours):
    """No other interval is more than a hair better than Daly's."""
    m = hours * HOUR_S
    best = minimize_scalar(lambda d: -efficiency(d, w, m, 300.0), bounds=(w / 10, 10 * m), method="bounded")
    assert efficiency(daly(w, m), w, m, 300.0) >= -best.fun * (1 - 2e-3)


def test_young_is_dalys_limit():
    """With short checkpoints both are sqrt(2 w M)."""
    m = 24 * HOUR_S
    assert young(1.0, m) == pytest.approx(math.sqrt(2 * m))
    assert daly(1e-3, m) == pytest.approx(young(1e-3, m), rel=1e-3)


def test_a_checkpoint_longer_than_failures_are_apart_changes_nothing():
    """Daly's rule beyond 2 M."""
    assert daly(500.0, 100.0) == 100.0


@pytest.mark.parametrize(("w", "minutes", "loss"), [(10, 8, 0.069), (60, 19, 0.13), (300, 43, 0.26)])
def test_what_a_blocking_checkpoint_costs_at_three_hours_between_failures(w, minutes, loss):
    """sqrt(2 w / M) + R / M at M = 3.09 h, R = 5 min, and the interval in minutes."""
    m, r = 3.09 * HOUR_S, 300.0
    assert young(w, m) / 60 == pytest.approx(minutes, abs=0.7)
    assert math.sqrt(2 * w / m) + r / m == pytest.approx(loss, abs=0.005)
    assert 1 - efficiency(daly(w, m), w, m, r) == pytest.approx(loss, abs=0.035)


def test_bytes_of_a_checkpoint():
    """bf16 weights, fp32 master weights and two fp32 moments: 14 bytes a parameter; fp32 without a copy: 12.

    So where a stack keeps fp32 parameters whatever it computes in; servers keep what devices do not; an adapter's
    checkpoint is its own 14.
    """
    graph = load_model("gpt2")
    each = graph.num_parameters()
    for words, stack, width in (
        ({}, "megatron", 14), ({"precision": "fp32"}, "megatron", 12), ({}, "torchtitan", 12),
        ({"optimizer": "sgd", "precision": "fp32"}, "megatron", 4), ({"moment_dtype": "bf16"}, "megatron", 10),
        ({"sync": "asp", "servers": 2}, "megatron", 14),
    ):  # fmt: skip
        plan = resolve(Plan(**words), load_stack(stack))
        assert checkpoint_bytes(graph, Layout.of(plan), load_stack(stack)) == width * each, (words, stack)
    plan = resolve(Plan(lora_rank=8, lora_targets=("q_proj", "v_proj")), load_stack("megatron"))
    adapters = 12 * 2 * 2 * 8 * 768  # layers, projections, sides
    assert checkpoint_bytes(apply_tuning(plan, graph), Layout.of(plan), load_stack("megatron")) == 14 * adapters


def test_what_each_kind_of_checkpoint_blocks():
    """Synchronous: storage; asynchronous: the copy to the host; in memory: no storage at all."""
    cluster = load_cluster("dgx-h100", 16)
    size = 1_000 * GB
    found = {
        kind: checkpoint_cost(size, cluster, Operation(days=1, checkpoint=kind)) for kind in ("sync", "async", "memory")
    }
    stored = size / (16 * 1e9)
    assert found["sync"].blocking_s == pytest.approx(stored)
    snapshot = size / 128 / cluster.profile.host.pcie_bandwidth
    assert found["async"].blocking_s == pytest.approx(snapshot)
    assert found["async"].background_s == pytest.approx(stored)
    assert found["memory"].background_s == pytest.approx(size / 128 / (400e9 / 8))
    assert found["memory"].load_s < found["sync"].load_s
