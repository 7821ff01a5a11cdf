"""DualPipe as a row of the space: bounded by the kernels of its ranks, then its own Program is swept.

A rank runs half of the microbatches on its own stage and half on that of its mirror image. Memory is that of the V on
half the pipeline which it is costed as (:mod:`simpar.plan.mirrored`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simpar.search.bound.pipelines import Pipelines
from simpar.units import Floats, Ints


def kernels_bound_ns(pipelines: Pipelines, which: Ints) -> tuple[Floats, Floats]:
    """Nanoseconds that pipelines of such rows take at least, and kernels of their least busy rank."""
    found, least = np.zeros(len(which)), np.zeros(len(which))
    for mine, busy in _of_ranks(pipelines, which, pipelines.blocks.kernels_ns):
        found[mine], least[mine] = busy.max(axis=1), busy.min(axis=1)
    return found, least


def asked_bound_ns(pipelines: Pipelines, which: Ints) -> Floats:
    """Kernels of the rank that asks for the least power, as :attr:`BlockCosts.asked_ns`."""
    least = np.zeros(len(which))
    for mine, asked in _of_ranks(pipelines, which, pipelines.blocks.asked_ns) if len(which) else ():
        least[mine] = asked.min(axis=1)
    return least


def _of_ranks(
    pipelines: Pipelines, which: Ints, tables: Mapping[str, Ints | Floats]
) -> Iterator[tuple[Ints, Floats]]:
    """What the passes of all ranks come to by ``tables`` of letters: positions in ``which`` and float64[n, ranks]."""
    for shape, mine in pipelines.by_shape(which):
        times = {name: table[pipelines.key[which[mine]]] for name, table in tables.items()}
        passes = pipelines.passes(shape, times)
        each = passes.forward + passes.backward
        yield mine, (each + each[:, ::-1]) * pipelines.microbatches(which[mine])[:, None] / 2
