"""DualPipe as a row of the space: bounded by the kernels of its ranks, then its own Program is swept.

A rank runs half of the microbatches on its own stage and half on that of its mirror image. Memory is that of the V on
half the pipeline which it is costed as (:mod:`simpar.plan.mirrored`).
"""

from __future__ import annotations

import numpy as np

from simpar.search.bound.pipelines import Pipelines
from simpar.units import Floats, Ints


def kernels_bound_ns(pipelines: Pipelines, which: Ints) -> tuple[Floats, Floats]:
    """Nanoseconds that pipelines of such rows take at least, and kernels of their least busy rank."""
    found, least = np.zeros(len(which)), np.zeros(len(which))
    for shape, mine in pipelines.by_shape(which):
        key = pipelines.key[which[mine]]
        times = {name: table[key] for name, table in pipelines.blocks.kernels_ns.items()}
        passes = pipelines.passes(shape, times)
        each = passes.forward + passes.backward
        busy = (each + each[:, ::-1]) * pipelines.microbatches(which[mine])[:, None] / 2
        found[mine], least[mine] = busy.max(axis=1), busy.min(axis=1)
    return found, least
