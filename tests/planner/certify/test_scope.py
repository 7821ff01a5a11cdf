"""What an answer says of its space is what its rows are."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.frameworks import load_target
from simpar.plan.choices import AXES
from simpar.planner import Constraints, make_problem
from simpar.planner.certify.scope import not_portable, scope
from simpar.planner.space.axes import ALL_NAMES, AXIS_NAMES, default_of, list_offered
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.rows import enumerate_space, memory_rows

DENSE = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 8,
    "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 4096, "rms_norm_eps": 0.00001,
    "hidden_act": "silu", "max_position_embeddings": 16384,
}  # fmt: skip


def dense(seq_len=512, stack="megatron", **constraints):
    """A dense model on one node of eight."""
    training = simpar.Training(seq_len=seq_len, global_batch=128)
    return make_problem(
        read(DENSE, name="dense"), simpar.Cluster("dgx-h100"), training, stack=stack,
        constraints=Constraints(**constraints),
    )  # fmt: skip


@pytest.mark.parametrize("fixed", [{}, {"zero": (3, 1), "cp": 1, "optimizer": ("sgd", "adamw")}, {"vpp": (1, 2)}])
def test_the_scope_is_that_of_the_rows(fixed):
    """Values searched are those that rows have; every axis is either searched or held; what is left out no row has."""
    problem = dense(fixed=fixed)
    told, rows = scope(problem), enumerate_space(problem)
    assert set(told["searched"]) | set(told["held"]) >= set(ALL_NAMES)
    assert not set(told["searched"]) & set(told["held"])
    for name, values in told["searched"].items():
        seen = {rows.domain[name][code] for code in np.unique(rows.code[name])}
        assert seen <= {*values, *(default_of(axis) for axis in list_offered(problem) if axis.name == name)}
    for name in set(fixed) & set(AXIS_NAMES):
        assert name in told["restricted"]
    words = " / ".join(told["left_out"])
    limited = {axis.name: axis.possible(problem) for axis in AXES if axis.possible is not None}
    assert set(limited) == {"cp", "micro_batch", "schedule", "recompute", "order", "tp_overlap"}
    for name, possible in limited.items():
        offers = set(told["searched"].get(name, [told["held"][name]] if name in told["held"] else []))
        missing = name not in fixed and set(possible) - offers
        assert (f"{name} " in words) == bool(missing)


def test_what_rules_keep_out_is_in_no_row():
    """Every sentence is true of the rows of a space with all axes."""
    rows = enumerate_space(dense())
    kept_out = {
        "zero": (rows["zero"] > 0) & (rows["width"] == 1) & (rows["copies"] == 1),
        "vpp": (rows["vpp"] > 4) & (8 % rows["stages"] != 0) & (10 % rows["stages"] != 0),
        "hsdp": (rows["hsdp"] > 1) & ((rows["zero"] < 3) | (rows["hsdp"] == rows["width"])),
        "overlap_grad_reduce": ~rows["overlap_grad_reduce"] & (rows["zero"] >= 2),
    }
    omits = {axis.name: axis.omits for axis in AXES if axis.omits}
    assert set(kept_out) == set(omits)
    assert not any(mask.any() for mask in kept_out.values())
    assert set(omits.values()) <= set(scope(dense())["left_out"])


@pytest.mark.parametrize(
    ("seq_len", "degrees"), [(256, {1, 2}), (4096, {1, 2}), (8192, {1, 2, 4}), (16384, {1, 2, 4, 8})]
)
def test_sequences_of_any_length_may_be_cut(seq_len, degrees):
    """In halves always, in pieces of at least 2,048 tokens."""
    rows = memory_rows(dense(seq_len, fixed={"pp": 1, "micro_batch": 1}))
    assert set(rows["cp"].tolist()) == degrees
    assert set(scope(dense(seq_len))["searched"]["cp"]) == degrees


def test_an_answer_says_where_the_stacks_framework_cannot_have_the_first():
    """The reasons of its target; nothing where it can, where the search had a target, or no target has the stack."""
    problem = dense(fixed={"pp": 4, "schedule": "zb-v", "micro_batch": 1, "tp": 1})
    plan = fill_dp(rows := enumerate_space(problem), 0)
    told = not_portable(problem, plan)
    assert told is not None
    assert load_target(told["target"]).stack == "megatron"
    assert "schedule = zb-v" in told["reasons"][0]
    held = replace(problem, constraints=Constraints(portable="torch"))
    assert not_portable(held, plan) is None
    assert not_portable(replace(problem, stack=problem.stack.model_copy(update={"name": "of-ours"})), plan) is None
    assert rows.count
    usual = dense(fixed={"pp": 2, "schedule": "1f1b", "micro_batch": 1, "tp": 1, "zero": 1, "cp": 1})
    assert not_portable(usual, fill_dp(enumerate_space(usual), 0)) is None


def test_overlap_of_tensor_ranks_is_left_out_where_devices_have_no_peers():
    """Buffers of another device cannot be written across the host: no row has it, and the answer says so."""
    training = simpar.Training(seq_len=512, global_batch=128)
    for hardware, has_it in (("rtx-4090-8", False), ("dgx-h100", True)):
        problem = make_problem(read(DENSE, name="dense"), simpar.Cluster(hardware), training)
        rows = enumerate_space(problem)
        assert rows["tp_overlap"].any() == has_it
        assert ("tp_overlap True" in scope(problem)["left_out"]) == (not has_it)
    asked = make_problem(
        read(DENSE, name="dense"),
        simpar.Cluster("rtx-4090-8"),
        training,
        constraints=Constraints(fixed={"tp_overlap": True}),
    )
    assert enumerate_space(asked)["tp_overlap"].any()
