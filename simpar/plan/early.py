"""Rules for recomputation ahead of its backward (``recompute_early``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.architectures.recompute import FULL, NONE, modes
from simpar.errors import UserError
from simpar.plan.schedules import SCHEDULES

if TYPE_CHECKING:
    from simpar.plan.plan import Plan


def check_early(plan: Plan) -> None:
    """Recomputation ahead of its backward needs passes one at a time, and parameters that stay on the rank.

    Raises UserError with the first rule that a plan breaks; ``plan`` must have its dp.
    """
    if not plan.memory.recompute_early:
        return
    what, data = "plan.recompute_early = true", plan.data_parallel
    used = modes(plan.memory.recompute)
    if not {*used} <= {NONE, FULL} or FULL not in used:
        raise UserError(f"{what}: plan.recompute = {plan.memory.recompute}; allowed: full or every:C")
    if plan.mesh.pp == 1:
        raise UserError(f"{what}: plan.pp = 1 has no gradient to wait for; allowed: pp above 1")
    named = SCHEDULES.get(plan.schedule)
    if plan.runs_slices or named is None or named.pairs:  # tables of the user's may have pairs, too
        raise UserError(
            f"{what}: plan.schedule = {plan.schedule} may overlap passes or cut sequences into slices; allowed: named "
            "schedules that do neither"
        )
    if data.zero == 3 and data.reshard_after_forward and plan.mesh.gradient_ranks > data.hsdp:
        raise UserError(
            f"{what}: zero = 3 gathers parameters for every pass; allowed: zero 0 to 2, or reshard_after_forward false"
        )
    if plan.offload.is_used or plan.experts.ep_overlap:
        raise UserError(f"{what}: not with offload or ep_overlap; allowed: neither of them")
