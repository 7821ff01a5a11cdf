"""What pictures and traces show of a simulated step: its timeline, and the overview that a saved result keeps."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import INSIDE_BLOCKS
from simpar.report.accounting import CAUSES
from simpar.report.by_layer import held_at_peak
from simpar.report.context import SummaryInputs
from simpar.report.detail import inner_steps
from simpar.report.later import Later
from simpar.report.memory import memory_curve
from simpar.report.roofline import roofline_of
from simpar.report.slot_facts import HOST
from simpar.report.timeline import (
    IdleSpans,
    Overview,
    RankClass,
    StagePlot,
    Timeline,
    choose_shown_classes,
    from_program,
    overview,
)
from simpar.units import NS_PER_S

_INSIDE_PASSES = [CAUSES.index(name) for name in (HOST, *(f"exposed_{kind}" for kind in INSIDE_BLOCKS))]
"""Causes of idle time that a timeline draws as parts of the passes that they serve."""


@dataclass(frozen=True, eq=False)
class DrawnStep:
    """The pictures of a step, each made when it is first asked for."""

    context: SummaryInputs

    @cached_property
    def timeline(self) -> Timeline:
        """Everything that happened, class by class."""
        context = self.context
        curves = [memory_curve(context, class_id, one) for class_id, one in enumerate(context.footprints)]
        return from_program(
            context.lowered.program,
            context.timing,
            _rank_classes(context),
            memory=curves,
            inside=inner_steps(context.lowered),
        )

    @cached_property
    def overview(self) -> Overview:
        """The compact timeline, with when and why every stage that it shows is idle.

        It ends with the step: after the devices finish, the host prepares the next step.
        """
        context, accounts = self.context, self.context.accounts
        view, shown = overview(self.timeline), choose_shown_classes(self.timeline)
        end_ns = accounts.step_ns + round(context.job.stack.launch.step_overhead_s * NS_PER_S)
        critical = accounts.critical_class()
        pictures = {
            "held": Later(lambda: held_at_peak(context, context.footprints)),
            "roofline": Later(lambda: roofline_of(context, critical)),
        }
        stages = tuple(self._with_idle(each, at, end_ns) for each, at in zip(view.stages, shown, strict=True))
        return Overview(stages, end_ns / NS_PER_S, **pictures)  # type: ignore[arg-type]

    def _with_idle(self, stage: StagePlot, class_id: int, end_ns: int) -> StagePlot:
        """A stage as drawn of a class, with when and why it is idle until the step ends."""
        accounts = self.context.accounts
        parts = accounts.breakdown_s(class_id)
        parts[HOST] += self.context.job.stack.launch.step_overhead_s
        begin, end, cause = accounts.idle_of(class_id)
        if (early_ns := int(accounts.end_ns[class_id])) < accounts.step_ns:  # others take longer
            parts["waiting"] += (accounts.step_ns - early_ns) / NS_PER_S
            begin, end = np.append(begin, early_ns), np.append(end, accounts.step_ns)
            cause = np.append(cause, CAUSES.index("waiting"))
        if end_ns > accounts.step_ns:
            begin, end = np.append(begin, accounts.step_ns), np.append(end, end_ns)
            cause = np.append(cause, CAUSES.index(HOST))
        idle = IdleSpans.of(begin, end, cause, CAUSES, end_ns)
        outside = ~np.isin(cause, _INSIDE_PASSES)
        waits = IdleSpans.of(begin[outside], end[outside], cause[outside], CAUSES, end_ns)
        parts = {name: value for name, value in parts.items() if value}
        return replace(stage, blocks=stage.blocks.cut(waits), idle=idle, parts_s=parts)


def _rank_classes(context: SummaryInputs) -> list[RankClass]:
    """Readable names: the stage, and the representative rank if a stage has several classes; slow ranks are named."""
    quotient, slowdown = context.lowered.quotient, context.accounts.slowdown
    stages = context.lowered.stage_of_class.tolist()
    columns = (stages, quotient.representative_rank.tolist(), quotient.multiplicity.tolist(), slowdown.tolist())
    return [
        RankClass(_class_name(stage, stages, rank, many, slow), stage, rank, many, slow)
        for stage, rank, many, slow in zip(*columns, strict=True)
    ]


def _class_name(stage: int, stages: list[int], rank: int, many: int, slow: float) -> str:
    if slow > 1:
        return f"stage {stage} {'like ' if many > 1 else ''}rank {rank}, {slow:g} x slower"
    return f"stage {stage}" if stages.count(stage) == 1 else f"stage {stage} like rank {rank}"
