"""Whether a layout is possible: where it is not, an error says in one line why, and what is allowed."""

from dataclasses import replace

from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.layout.rules import RULES, STAGED_RULES
from simpar.layout.staged import batch_refusals, feature_refusals, role_refusals, stage_layout
from simpar.plan.choices.target import Workload, refuse, select_kept
from simpar.plan.stages import check_stages
from simpar.units import Flags


def check(layout: Layout, target: Workload) -> None:
    """Raise UserError with the first rule that a layout breaks."""
    if layout.stages:
        _check_staged(layout, target)
        return
    for rule in RULES.values():
        refuse(rule(layout, target))


def keeps_rules(layout: Layout, target: Workload, *names: str) -> Flags:
    """Which of the layouts that a layout of columns stands for keep the rules ``names`` of :data:`RULES`."""
    return select_kept(refusal for name in names for refusal in RULES[name](layout, target))


def _check_staged(layout: Layout, target: Workload) -> None:
    """The rules of stages with devices of their own.

    A stage in Megatron's roles is checked as the uniform layout that repeats it.
    """
    refuse(feature_refusals(layout))
    stages = layout.stages or ()
    check_stages(stages, target.graph, target.world_size, (int(layout.micro_batch), target.training.seq_len))
    for name in STAGED_RULES:
        refuse(RULES[name](layout, target))
    if any(stage.sharding for stage in stages):
        refuse(role_refusals(layout, target.graph))
        for name in ("experts", "context", "offload", "update"):
            refuse(RULES[name](layout, target))
    seen: list[Layout] = []
    for index, stage in enumerate(stages):
        if not stage.sharding:
            refuse(batch_refusals(layout, index))
            if (each := stage_layout(layout, index)) not in seen:
                seen.append(each)
                _check_stage(each, replace(target, world_size=stage.num_devices * len(stages)), index)


def _check_stage(layout: Layout, target: Workload, index: int) -> None:
    """Raises UserError where the uniform layout that repeats a stage is impossible."""
    try:
        check(layout, target)
    except UserError as error:
        raise UserError(f"plan.stages[{index}]: {error}") from None
