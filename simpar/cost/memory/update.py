"""Memory of the optimizer's update: temporaries, and the fp32 copy of gradients that flat states need.

Adam divides by the root of its second moment. Kernel by kernel that root is an array: of all that a rank updates
(foreach: torch makes one root of each array), or of one array at a time, with the quotient by the bias correction as a
second one (single). A fused kernel keeps it in registers [torch/optim/adam.py, ``_multi_tensor_adam`` and
``_single_tensor_adam``]. Flat states are a single array, as large as the rank's share of the parameters.

DeepSpeed flattens the gradients of the share and copies them to fp32; then the flat gradients in the compute dtype are
gone [deepspeed/runtime/zero/stage_1_and_2.py, ``step``; stage3.py, ``_prepare_fp32_grad_for_sub_group``].
"""

from __future__ import annotations

import numpy as np

from simpar.cost.optimizers import divides_apart
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Numbers

_WIDE = DTYPE_BYTES["fp32"]


def update_bytes(layout: Layout, stack: Stack, *, shard: Numbers, largest: Numbers, kept_bytes: Numbers) -> Numbers:
    """Bytes that the update of ``shard`` parameters holds at its peak beyond states and the gradients that are kept.

    ``largest`` is the number of elements of the largest array, where states are not flat; ``kept_bytes`` are all
    gradients on the rank, of which the update lets go.
    """
    habits, gradient = stack.numerics.update, DTYPE_BYTES[layout.grad_dtype]
    if layout.servers:
        return 0.0 * shard
    updated = shard * (1.0 - layout.host_share)
    if not habits.flat:
        return temporaries_bytes(layout, stack, every=updated, largest=np.minimum(largest, updated))
    third = np.asarray(layout.zero) == 3
    group = np.where(third, np.minimum(updated, habits.group), updated)
    temporaries = temporaries_bytes(layout, stack, every=group, largest=group)
    copied = group * (gradient + _WIDE * (gradient < _WIDE))
    stepping = group * _WIDE + temporaries - np.where(third, 0.0, kept_bytes)
    rest = np.where(third, 0.0, kept_bytes - updated * gradient)
    return np.maximum(np.maximum(copied - rest, stepping), 0.0)


def temporaries_bytes(layout: Layout, stack: Stack, *, every: Numbers, largest: Numbers) -> Numbers:
    """Bytes of the arrays that kernels of an update hand each other, of all arrays or of the largest one."""
    if not divides_apart(layout, stack):
        return 0.0 * every
    width = DTYPE_BYTES[layout.moment_dtype or "fp32"]
    return width * (every if stack.numerics.update.kernels == "foreach" else 2.0 * largest)
