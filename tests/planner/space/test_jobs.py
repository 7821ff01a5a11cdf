"""From rows to plans and jobs."""

import numpy as np
import pytest

from simpar.plan.choices import path_of
from simpar.plan.choices.mesh import split_order
from simpar.plan.plan import Plan
from simpar.planner.certify.exact import job_of
from simpar.planner.problem import RECORDED_KEYS
from simpar.planner.space.axes import AXIS_NAMES
from simpar.planner.space.jobs import RowJobs, column, fill_dp, plan_of, without_axes
from simpar.planner.space.rows import enumerate_space


@pytest.fixture(scope="module")
def rows(problem_of):
    """All rows of a small problem."""
    return enumerate_space(problem_of(3, hsdp=1, recompute="none"))


def test_a_plan_has_the_values_of_its_row(rows):
    """In every axis, on top of the base plan."""
    for row in range(0, rows.count, max(rows.count // 20, 1)):
        plan = plan_of(rows, row)
        for name in ("tp", "pp", "cp", "ep"):
            assert getattr(plan.mesh, name) == rows[name][row]
        assert plan.micro_batch == rows["micro_batch"][row]
        assert plan.schedule == rows.domain["schedule"][rows.code["schedule"][row]]
        assert fill_dp(rows, row).mesh.dp == rows["dp"][row]
        assert plan.numerics == rows.problem.base.numerics


def test_a_plan_is_as_one_that_was_written(rows):
    """Checked section by section, with every value stated, as if its values had been read from a file."""
    plans = list[Plan]()
    for row in range(0, rows.count, max(rows.count // 20, 1)):
        data = rows.problem.base.model_dump(exclude=RECORDED_KEYS)
        for name in rows.domain:
            (section, field), value = path_of(name), rows.domain[name][rows.code[name][row]]
            (data[section] if section else data)[field] = split_order(value) if name == "order" else value
        plans.append(plan_of(rows, row))
        written = Plan.model_validate(data)
        assert plans[-1] == written
        assert plans[-1].model_dump_json() == written.model_dump_json()
        assert plans[-1].model_fields_set == written.model_fields_set
    assert len({id(plan.numerics) for plan in plans}) == 1
    assert len({id(plan.mesh) for plan in plans}) > 1


def test_a_job_is_that_of_its_plan(rows):
    """The one that the simulator makes of it, without its checks."""
    jobs = RowJobs(rows)
    for row in range(0, rows.count, max(rows.count // 6, 1)):
        assert jobs.job(row).layout.mesh == job_of(rows.problem, plan_of(rows, row)).layout.mesh
        assert jobs.job(row).layout.vpp == rows["vpp"][row]


def test_a_batch_holds_what_differs_as_columns(rows):
    """And what is the same as a number."""
    same = np.flatnonzero((rows["pp"] == 1) & (rows["dp"] * rows["tp"] == rows.problem.cluster.world_size))
    which = same[rows.code["zero"][same] == rows.code["zero"][same[0]]]
    batch = RowJobs(rows).batch(which)
    sizes = np.broadcast_to(batch.layout.tp, which.shape)
    assert sizes.tolist() == rows["tp"][which].tolist()
    assert np.broadcast_to(batch.layout.micro_batch, which.shape).tolist() == rows["micro_batch"][which].tolist()


def test_one_number_stands_for_a_column_of_it():
    """As a plain one."""
    assert column(np.array([4, 4, 4])) == 4
    assert isinstance(column(np.array([4, 4])), int)
    assert column(np.array([4, 2])).tolist() == [4, 2]


def test_a_plan_without_axes_keeps_what_is_none():
    """Everything that a search decides is as if nobody had chosen it."""
    plan = Plan(tp=2, pp=2, micro_batch=4, zero=3, recompute="full", precision="fp16", schedule="gpipe")
    left = without_axes(plan)
    assert left.numerics.precision == "fp16"
    usual = Plan()
    assert (left.mesh, left.micro_batch, left.schedule) == (usual.mesh, usual.micro_batch, usual.schedule)
    assert "precision" not in AXIS_NAMES
