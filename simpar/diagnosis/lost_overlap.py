"""Runs whose gradients were reduced after the backward pass although the plan overlaps the two, as they really ran."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.neighbours import as_flags
from simpar.simulation import simulate

if TYPE_CHECKING:
    from simpar.diagnosis.against import Against
    from simpar.diagnosis.changes import Changes
    from simpar.diagnosis.measured import AxisUse, MeasuredStep
    from simpar.report.result import Result
    from simpar.scenario import Scenario

OVERLAPPED = "gradients reduced under the backward pass"
LOST = (
    "gradients are reduced after the backward pass, though the plan overlaps the two: changes are simulated on the "
    "plan without that overlap, and the overlap is one of them"
)
ALL, MUCH, LEAST = 0.95, 0.8, 0.01
"""Shares: the least exposed share of transfers without overlap, the most with it, and the least share of the step."""


def find_lost_overlap(
    measured: MeasuredStep, against: Against, scenario: Scenario, dp: AxisUse | None
) -> tuple[Scenario, Result] | None:
    """The scenario without its plan's overlap, and its simulated step, if that is what was measured.

    ``dp`` is the traffic of the data-parallel axis, the mean over ranks. None if no overlap was lost, or if waiting for
    other ranks cannot be told from transfers.
    """
    plan, planned_s = against.result.plan, against.causes_s.get("exposed_dp", 0.0)
    traffic = against.result.communication.get("dp")
    if dp is None or traffic is None or dp.waiting_s is None or not plan.data_parallel.overlap_grad_reduce:
        return None
    # transfers that are all exposed say it by themselves; how long they take may be another matter
    all_exposed, hidden_in_plan = dp.exposed_s >= ALL * dp.busy_s, planned_s <= MUCH * traffic.busy_s
    if not (all_exposed and hidden_in_plan and dp.exposed_s - planned_s >= LEAST * measured.step_time_s):
        return None
    try:
        late = scenario.model_copy(update={"plan": scenario.plan.with_values(overlap_grad_reduce=False)})
        return late, simulate(**late.inputs())
    except UserError:
        return None  # stacks that cannot overlap


def name_lost_overlap(changes: Changes) -> Changes:
    """The changes of a run as it ran, with the overlap named as the plan's, and the reason for it."""
    setting = as_flags({"overlap_grad_reduce": True})
    gains = tuple(replace(each, change=OVERLAPPED) if each.change == setting else each for each in changes.gains)
    return replace(changes, gains=gains, remarks=(LOST, *changes.remarks))
