"""What data parallelism does to a parameter in memory: bytes of each of its copies, and which of them are sharded.

Every function takes one plan, or arrays of the columns that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simpar.cost.optimizers import moment_bytes
from simpar.plan.offload import leaves_unasked
from simpar.plan.plan import Plan
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Flags, Numbers


@dataclass(frozen=True)
class Widths:
    """Bytes per parameter: as stored, of its gradient, as computed with, of states other than moments, of moments."""

    stored: float
    gradient: float
    compute: float
    master: float
    moments: float

    @property
    def states(self) -> float:
        """Bytes of all optimizer states per parameter of a matrix inside layers."""
        return self.moments + self.master


def parameter_widths(plan: Plan, stack: Stack) -> Widths:
    """Bytes per parameter on devices and their hosts: :func:`kept_widths` without what parameter servers keep."""
    kept = kept_widths(plan, stack)
    return replace(kept, master=0.0, moments=0.0) if plan.data_parallel.servers else kept


def kept_widths(plan: Plan, stack: Stack) -> Widths:
    """Bytes per parameter under a resolved plan; stacks may store parameters in fp32 whatever they compute in.

    ``master`` is an fp32 copy and what DiLoCo's outer optimizer keeps: the parameters at the beginning of a round and a
    momentum, both in fp32 [Douillard et al. 2023, arXiv 2311.08105, algorithm 1].
    """
    numerics, whole = plan.numerics, DTYPE_BYTES["fp32"]
    compute = numerics.products.handed_bytes
    stored = whole if stack.numerics.parameter_dtype == "fp32" else compute
    master = whole if numerics.master_weights and stored < whole else 0.0
    outer = 2 * whole if plan.data_parallel.sync == "diloco" else 0.0
    gradient = DTYPE_BYTES[numerics.grad_dtype or "fp32"]
    return Widths(stored, gradient, compute, master + outer, moment_bytes(numerics))


def once_a_step(plan: Plan, stack: Stack, pp: Numbers) -> Flags:
    """Whether FSDP gathers parameters and reduces whole gradients once a step; bool, or an array like ``pp``."""
    return stack.once_a_step(plan.data_parallel.kind == "fsdp", pp)


def keeps_parameters(plan: Plan, stack: Stack, pp: Numbers, zero: Numbers) -> Flags:
    """Whether sharded parameters stay gathered from the first forward to the last backward; bool, or an array."""
    data = plan.data_parallel
    stays = data.zero == 3 and data.reshard_after_forward is False
    once = once_a_step(plan, stack, pp) & (data.reshard_after_forward is not True)
    third = (np.asarray(zero) == 3) & (stays | once)
    return np.asarray((data.kind == "fsdp") & ((np.asarray(zero) == 2) | third))


def kept_gradients(plan: Plan, zero: Numbers, width: Numbers) -> Numbers:
    """Share of the gradients that is kept on the device; ``width`` ranks reduce them together.

    Gradients of offloaded states leave as they are made where the plan asks for it, or where it leaves that open and
    nothing on the device accumulates them.
    """
    asked = plan.offload.offload_gradients
    sent = leaves_unasked(zero, width) if asked is None else np.asarray(asked)
    return 1.0 - plan.offload.ratio * sent
