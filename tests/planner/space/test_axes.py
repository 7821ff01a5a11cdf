"""The table of axes: what each decides, where it stands in a plan, and which values are legal."""

from __future__ import annotations

from itertools import product

import pytest

import simpar
from simpar.errors import UserError
from simpar.plan.choices import AXES, OPTIONAL_AXES, path_of, to_file_value, value_of
from simpar.plan.choices.choice import (
    AMONG,
    BLOCKS,
    KERNELS,
    MEMORY,
    OPS,
    REPLICAS,
    SHAPE,
    SIZES,
    TABLE,
    TRAFFIC,
    Rules,
)
from simpar.planner import Constraints, make_problem
from simpar.planner.space.axes import LATE_AXES, MEMORY_AXES, rows_keeping
from simpar.planner.space.rows import enumerate_space, memory_rows
from tests.gate import some


def given_degrees(model: str, axis: str, *degrees: int, nodes: int = 1) -> set[int]:
    """Degrees of the rows of a model that is not cut into stages, of those given."""
    problem = make_problem(
        model,
        simpar.Cluster("dgx-h100", nodes=nodes),
        simpar.Training(seq_len=1024, global_batch=16),
        constraints=Constraints(fixed={"pp": 1, "micro_batch": 1, axis: degrees}),
    )
    return set(enumerate_space(problem)[axis].tolist())


def test_of_given_tensor_degrees_those_stay_that_the_model_allows() -> None:
    """28 heads lie on 1, 2 or 4 ranks: 8 is left out beside others, and alone it is refused with the reason."""
    assert given_degrees("qwen2-57b-a14b", "tp", 1, 8) == {1}
    assert given_degrees("qwen2-57b-a14b", "tp", 8, 4, 2) == {2, 4}
    with pytest.raises(UserError, match=r"plan.tp = 8: does not divide the attention heads 28; allowed: 1, 2, 4"):
        given_degrees("qwen2-57b-a14b", "tp", 8)


def test_of_given_expert_degrees_those_stay_that_the_model_allows() -> None:
    """Some ranks would hold no expert, or more than others: left out beside others, and alone refused as in a plan."""
    assert given_degrees("mixtral-8x7b", "ep", 1, 16, nodes=2) == {1}
    assert given_degrees("qwen1.5-moe-a2.7b", "ep", 8, 4, 1) == {1, 4}  # 60 experts
    assert given_degrees("llama-3-8b", "ep", 1, 2) == {1}
    with pytest.raises(UserError, match=r"^plan.ep = 16: does not divide the 8 experts; allowed: 1, 2, 4, 8$"):
        given_degrees("mixtral-8x7b", "ep", 16, 32, nodes=2)
    with pytest.raises(UserError, match=r"^plan.ep = 2: llama-3-8b has no experts; allowed: 1$"):
        given_degrees("llama-3-8b", "ep", 2)


def test_what_decides_nothing_that_fits_is_joined_last() -> None:
    """Memory is decided before the last axes are joined: all others decide it."""
    names = [axis.name for axis in AXES]
    assert names == [axis.name for axis in (*MEMORY_AXES, *LATE_AXES)]
    for axis in (*AXES, *OPTIONAL_AXES):
        assert axis.decides & {MEMORY, BLOCKS, SHAPE, REPLICAS}, axis.name
        assert axis.decides <= {MEMORY, BLOCKS, SHAPE, REPLICAS, OPS, TRAFFIC, KERNELS, TABLE, SIZES, AMONG}, axis.name


def test_an_axis_is_found_in_a_plan_by_its_path() -> None:
    """Flat keys where they stand, and those with a path of their own; written as a file has them."""
    plan = simpar.Plan(tp=2, tensor_parallel={"overlap": True}, rank_order="tp-cp-pp-dp")
    assert [value_of(plan, name) for name in ("tp", "tp_overlap", "order")] == [2, True, "tp-cp-pp-dp"]
    assert [value_of(simpar.Plan(pp=2, vpp=chunks), "schedule") for chunks in (1, 2)] == ["1f1b", "interleaved"]
    assert path_of("zero") == ("data_parallel", "zero")
    assert to_file_value("order", "tp-cp-dp-pp") == {"mesh": {"order": ("tp", "cp", "dp", "pp")}}
    assert to_file_value("zero", 3) == {"zero": 3}


@pytest.mark.parametrize(
    ("model", "stack"),
    some(
        product(["llama-3.2-1b", "mixtral-8x7b"], ["megatron", "torchtitan"]),
        [("mixtral-8x7b", "torchtitan")],
        tuples=True,
    ),
)
def test_axes_offer_nothing_that_a_rule_refuses(model: str, stack: str) -> None:
    """All rows of a space, as columns, keep the rules that layouts are checked by."""
    problem = make_problem(
        model, simpar.Cluster("dgx-h100", nodes=2), simpar.Training(seq_len=2048, global_batch=32), stack=stack
    )
    rows = memory_rows(problem)
    names = ("tensor", "context", "experts", "batch", "slices", "data", "offload", "early", "optimizer")
    assert rows.count > 1000
    assert rows_keeping(rows, Rules(names, reads=("tp", "pp", "zero", "schedule"))).all()
