"""What a plan leaves to its software stack, decided."""

from __future__ import annotations

from pydantic import BaseModel

from simpar.layout.layout import Layout
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.plan import Plan
from simpar.plan.staged import has_tensor_ranks
from simpar.stacks.stack import Stack

ALL_AT_ONCE = float(2**50)  # bytes of a bucket that nothing fills


def under(stack: Stack, layout: Layout) -> Stack:
    """The stack under a layout: FSDP hands every gradient to its reduction, so no GEMM accumulates into a sum.

    GEMMs still accumulate where the stack reduces by runs, and where dp and cp are 1, so that nothing is reduced.
    """
    sums = layout.width == 1 or stack.overlap.reduce_runs
    if layout.kind != "fsdp" or sums or not stack.numerics.gradient_accumulation_fusion:
        return stack
    numerics = stack.numerics.model_copy(update={"gradient_accumulation_fusion": False})
    return stack.model_copy(update={"numerics": numerics})


def resolve(plan: Plan, stack: Stack) -> Plan:
    """The plan with everything it leaves to the stack decided."""
    data, tensor, numerics, habits = plan.data_parallel, plan.tensor_parallel, plan.numerics, stack.overlap
    at_once = data.zero == 1 and not habits.grad_reduce_zero1
    kind = data.kind or ("fsdp" if stack.shards(data.zero) else "ddp")
    once = bool(stack.once_a_step(kind == "fsdp", max(plan.mesh.pp, len(plan.pipeline.stages or ()))))
    low, own_width = numerics.products.is_mixed, OPTIMIZERS[numerics.optimizer].has_own_width
    in_sequence = has_tensor_ranks(plan) and stack.sequence_parallel
    decided = {
        "stack": stack.name,
        "data_parallel": _filled(
            data,
            kind=kind,
            bucket_bytes=ALL_AT_ONCE if at_once else stack.buckets.bucket,
            first_bucket_bytes=stack.buckets.first or None,
            overlap_grad_reduce=habits.grad_reduce and not at_once and not once,
            overlap_param_gather=habits.param_gather,
            reshard_after_forward=data.zero == 3 and not once,
        ),
        "context_parallel": _filled(
            plan.context_parallel, cp_method=stack.context.method, cp_balance=stack.context.balance
        ),
        "tensor_parallel": _filled(tensor, sequence_parallel=in_sequence, overlap=habits.tensor_forward),
        "numerics": _filled(
            numerics,
            grad_dtype=stack.numerics.grad_dtype if low else "fp32",
            master_weights=stack.numerics.master_weights and low,
            moment_dtype=stack.numerics.moment_dtype if low and not own_width else None,
        ),
    }
    return plan.model_copy(update=decided)


def _filled(part: BaseModel, **defaults: object) -> BaseModel:
    """A part of a plan with defaults for what it leaves open."""
    given = {name: getattr(part, name) for name in defaults}
    return part.model_copy(update={name: defaults[name] if v is None else v for name, v in given.items()})
