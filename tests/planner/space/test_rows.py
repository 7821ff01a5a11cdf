"""The order in which values are asked for changes nothing, and no list of an answer has a plan twice."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.plan.choices import BY_NAME
from simpar.plan.choices.choice import MEMORY
from simpar.planner import Constraints
from simpar.planner.certify.exact import measure
from simpar.planner.progress import SearchProgress
from simpar.planner.space.axes import ALL_NAMES
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.portable import of_its_framework
from simpar.planner.space.rows import (
    ORIGIN,
    enumerate_space,
    fixed_values,
    in_order,
    late_count,
    memory_rows,
    with_late_axes,
)
from simpar.planner.uniform import search_uniform
from simpar.stacks.stack import load_stack
from tests.gate import some

VALUES = {
    "tp": (1, 2, 4), "cp": (1, 2), "pp": (1, 2, 4), "ep": (1,), "micro_batch": (1, 2, 4), "vpp": (1, 2, 3),
    "schedule": ("gpipe", "1f1b", "zb-v", "interleaved", "naive"), "zero": (0, 1, 2, 3), "hsdp": (1, 2),
    "sequence_parallel": (False, True), "tp_overlap": (False, True), "recompute": ("none", "full", "every:2"),
    "overlap_grad_reduce": (True, False), "overlap_param_gather": (True, False),
    "order": ("tp-cp-dp-pp", "tp-cp-pp-dp"), "precision": ("bf16", "fp32", "fp8"), "optimizer": ("sgd", "adamw"),
    "moment_dtype": ("bf16", "fp32"), "grad_dtype": ("fp32", "bf16"), "reduce_dtype": ("fp32", "bf16"),
    "gather_dtype": ("fp8", "bf16"),
    "cp_method": ("ring", "all_gather"), "cp_balance": ("zigzag", "striped"), "ulysses": (1, 2), "etp": (1, 2),
    "capacity_factor": (1.0, 1.25, "none"), "ep_overlap": (True, False), "token_dispatch": ("per_expert", "per_rank"),
    "shared_expert_overlap": (True, False),
    "sync": ("local-sgd", "bsp"), "sync_every": (4, 16), "staleness": (1, 2), "servers": (1, 2),
    "reshard_after_forward": (True, False), "offload_optimizer": ("cpu", "none"), "offload_ratio": (0.5, 1.0),
    "offload_delayed": (True, False), "offload_gradients": (True, False), "offload_parameters": ("cpu", "none"),
    "offload_activations": (0.0, 0.5), "recompute_early": (True, False), "bucket_bytes": ("100 MB", "25MB", "100MB"),
    "attention_kernel": ("sdpa", "eager", "flash3"), "loss_chunks": (8, 1), "expandable_segments": (True, False),
    "graphs": ("step", "none", "attention+mlp"), "dispatcher": ("deepep", "all_gather"),
    "parameter_dtype": ("fp32", "bf16"),
    "fused_kernels": ("none", "norm+activation"),
    "optimizer_kernels": ("single", "fused"), "defer_grad_reduce": (True, False),
}  # fmt: skip
"""Several values of every axis there is, in no particular order."""
SMALL = {"tp": 2, "pp": 2, "vpp": 1, "schedule": "1f1b", "micro_batch": 2, "hsdp": 1, "recompute": "none"}


def test_every_axis_has_values_here():
    """A new axis is permuted, too."""
    assert set(VALUES) == set(ALL_NAMES)


@pytest.mark.parametrize("axis", ALL_NAMES)
def test_rows_are_the_same_in_any_order_of_values(axis, problem_of):
    """Values backwards, and twice each, give the same rows in the same order, so that all that follows is the same."""
    values = VALUES[axis]
    spaces = []
    for given_values in (values, values[::-1], (*values, *values), values[1:] + values[:1]):
        fixed = {**SMALL, "zero": (0, 1, 3), axis: given_values}
        spaces.append(enumerate_space(problem_of(3, **fixed)))
    first, *others = spaces
    for rows in others:
        assert rows.domain == first.domain
        assert {name: codes.tolist() for name, codes in rows.code.items()} == {
            name: codes.tolist() for name, codes in first.code.items()
        }


@pytest.mark.parametrize("axis", ALL_NAMES)
def test_no_row_stands_for_the_plan_of_another(axis, problem_of):
    """Rows differ in some value, whatever was asked for and how often."""
    rows = enumerate_space(problem_of(3, **{**SMALL, axis: (*VALUES[axis], *VALUES[axis])}))
    codes = np.stack([codes for name, codes in rows.code.items() if name != ORIGIN])
    values = [
        tuple(repr(rows.domain[name][code]) for name, code in zip(rows.domain, row, strict=True)) for row in codes.T
    ]
    assert len(set(values)) == rows.count


@pytest.mark.parametrize("axis", some(tuple(name for name in ALL_NAMES if MEMORY in BY_NAME[name].axis.decides), 3))
@pytest.mark.parametrize("restricted", [lambda problem: problem, of_its_framework], ids=["any", "framework"])
def test_late_rows_are_counted_without_being_made(axis, restricted, problem_of):
    """As many as come of joining the late axes to all rows, whichever columns decide it."""
    rows = memory_rows(restricted(problem_of(3, **{**SMALL, "zero": (0, 1, 3), "hsdp": (1, 2), axis: VALUES[axis]})))
    assert late_count(rows) == with_late_axes(rows.subset(np.arange(rows.count))).count


@given(st.permutations(["none", 2, 1, "b", "a", 1.5]), st.permutations(["b", 2]))
def test_values_have_one_order(values, offered):
    """Any permutation is put in the same order: what the axis offers, as it offers it, then the rest."""
    assert in_order(values, offered) == (*offered, 1, 1.5, "a", "none")


def test_text_and_lists_are_the_same_values():
    """``--fix zero=2,0`` is ``fixed={"zero": [0, 2]}``."""
    assert fixed_values({"zero": "2,0,2"}) == fixed_values({"zero": [0, 2]}) == {"zero": (0, 2)}


def answer(problem):
    """What a search says, but for its seconds and the request."""
    found = search_uniform(problem, SearchProgress(top=3)).to_dict()
    del found["search_seconds"], found["constraints"]["fixed"]
    return found


def plans(listed):
    """Plans of a list, without what was predicted for them."""
    return [
        {name: value for name, value in one["plan"].items() if name != "predicted"} for one in listed if "plan" in one
    ]


USUAL = {
    "tp": (1, 2), "hsdp": 1, "micro_batch": 2, "zero": (0, 2, 3), "schedule": ("1f1b", "gpipe", "zb-h1"),
    "recompute": ("none", "full"), "pp": (1, 2, 4),
}  # fmt: skip


@pytest.fixture(scope="module")
def usual(problem_of):
    """The answer in the usual order."""
    return answer(problem_of(13, **USUAL))


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    st.permutations([0, 2, 3]), st.permutations(["1f1b", "gpipe", "zb-h1"]), st.permutations(["none", "full"]),
    st.permutations([1, 2, 4]),
)  # fmt: skip
def test_the_answer_is_the_same_in_any_order(problem_of, usual, zero, schedule, recompute, pp):
    """Plans, steps, counts and all lists, to the last byte; and no list names a plan twice."""
    permuted = {"zero": zero, "schedule": schedule, "recompute": recompute, "pp": pp}
    found = answer(problem_of(13, **USUAL | permuted))
    assert found == usual
    for name in ("candidates", "naive", "pareto"):
        listed = plans(found[name])
        assert all(one not in listed[:at] for at, one in enumerate(listed)), name


def test_zero_3_that_is_zero_2_by_another_name_has_no_row(problem_of):
    """Pipelines of the fsdp stack keep gathered parameters: asked for alone, ZeRO-3 takes the same step and memory."""
    fixed = {**SMALL, "sequence_parallel": False, "tp_overlap": False, "overlap_grad_reduce": True}
    fixed |= {"overlap_param_gather": True, "order": "tp-cp-dp-pp", "cp": 1}
    problem = replace(problem_of(3), stack=load_stack("fsdp"))
    answers = []
    for zero in ((2, 3), (2,), (3,)):
        asked = replace(problem, constraints=Constraints(fixed={**fixed, "zero": zero}))
        rows = enumerate_space(asked)
        assert rows.count == 1
        answers.append((plan_of(rows, 0).data_parallel.zero, measure(asked, plan_of(rows, 0))))
    assert [zero for zero, _ in answers] == [2, 2, 3]
    assert answers[1][1].step_time_s == answers[2][1].step_time_s
    assert answers[1][1].needed_bytes == answers[2][1].needed_bytes
    freed = replace(problem, constraints=Constraints(fixed={**fixed, "zero": (2, 3), "reshard_after_forward": True}))
    assert enumerate_space(freed).count == 2
