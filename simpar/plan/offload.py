"""Rules of offloading, and the choices about it that a plan leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simpar.errors import UserError
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.sync import replicas_are_independent
from simpar.units import Flags, Numbers

if TYPE_CHECKING:
    from simpar.plan.choices.offload import DecidedOffload, Offload
    from simpar.plan.plan import Plan


def decide_offload(plan: Plan) -> Offload:
    """The plan's offload with ``offload_gradients`` decided: gradients leave where the device does not accumulate them.

    That is where ZeRO reduces them after every microbatch, or where there is one rank and no reduction. ``plan`` must
    have its dp.
    """
    offload = plan.offload
    sends = offloads_gradients(offload, plan.data_parallel.zero, _width(plan))
    return offload.model_copy(update={"offload_gradients": sends})


def offloads_gradients(offload: Offload | DecidedOffload, zero: Numbers, width: Numbers) -> bool | None:
    """Whether gradients leave the device as they are made: as asked, else where they may; None without offload."""
    if offload.offload_optimizer == "none" or offload.offload_gradients is not None:
        return offload.offload_gradients
    return bool(leaves_unasked(zero, width))


def leaves_unasked(zero: Numbers, width: Numbers) -> Flags:
    """Whether gradients of offloaded states leave the device as they are made, if the plan leaves that open.

    They do where no other pass adds to them: ZeRO-2 and 3 reduce them after every microbatch, and a single rank
    (``width`` 1) does not reduce. Numbers or arrays.
    """
    return np.asarray((np.asarray(zero) >= 2) | (np.asarray(width) == 1))


def check_offload(plan: Plan) -> None:
    """Raises UserError with the first rule of offloading that a plan breaks; ``plan`` must have its dp."""
    offload, zero, width = plan.offload, plan.data_parallel.zero, _width(plan)
    away = offload.offload_optimizer != "none"
    for name, given in (
        ("offload_ratio", offload.offload_ratio < 1),
        ("offload_gradients", bool(offload.offload_gradients)),
        ("offload_delayed", offload.offload_delayed),
    ):
        if given and not away:
            raise UserError(
                f"plan.{name} = {getattr(offload, name)}: belongs to an offloaded optimizer; allowed: with "
                "offload_optimizer cpu or nvme"
            )
    if not offload.is_used:
        return
    if away and not OPTIMIZERS[plan.numerics.optimizer].on_host:
        raise UserError(
            f"plan.offload_optimizer = {offload.offload_optimizer}: processors update value by value; allowed: with "
            f"optimizer {', '.join(each.name for each in OPTIMIZERS.values() if each.on_host)}"
        )
    if plan.data_parallel.kind == "single_process" or replicas_are_independent(plan):
        raise UserError(
            "plan.offload: a single process and replicas that step on their own keep states on the device; allowed: "
            "kind ddp or fsdp with sync bsp"
        )
    if offload.offload_gradients and zero < 2 and width > 1:
        raise UserError(
            f"plan.offload_gradients = true: with zero = {zero} gradients are reduced once a step and stay until "
            "then; allowed: zero 2 or 3, or false"
        )
    if offload.offload_parameters != "none" and zero < 3 and width > 1:
        raise UserError(
            f"plan.offload_parameters = {offload.offload_parameters}: zero = {zero} keeps whole parameters on every "
            "rank; allowed: zero 3"
        )
    if offload.offload_parameters != "none" and (offload.ratio < 1 or offload.offload_delayed):
        raise UserError(
            f"plan.offload_parameters = {offload.offload_parameters}: parameters on the host are updated there and "
            "in turn; allowed: offload_optimizer cpu or nvme, offload_ratio 1, offload_delayed false"
        )


def _width(plan: Plan) -> int:
    """Ranks that sum gradients."""
    return plan.mesh.gradient_ranks
