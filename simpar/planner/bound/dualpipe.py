"""DualPipe rows: bounded by the kernels of their ranks, then by a sweep of their own Program.

A rank runs half of the microbatches on its own stage and half on the mirrored stage. Memory is that of the V schedule
on half the pipeline, as which the row is costed (:mod:`simpar.layout.mirrored`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from simpar.planner.bound.pipelines import Pipelines
from simpar.units import Floats, Ints


def kernels_bound_ns(pipelines: Pipelines, which: Ints) -> tuple[Floats, Floats]:
    """Lower bounds of pipelines by kernels, and the kernels of their least busy rank, in nanoseconds."""
    result, least = np.zeros(len(which)), np.zeros(len(which))
    for mine, busy in _of_ranks(pipelines, which, pipelines.blocks.kernels_ns):
        result[mine], least[mine] = busy.max(axis=1), busy.min(axis=1)
    return result, least


def asked_kernels_bound_ns(pipelines: Pipelines, which: Ints) -> Floats:
    """Weighted kernel time (:attr:`BlockCosts.asked_ns`) of the rank with the least, in nanoseconds."""
    least = np.zeros(len(which))
    for mine, asked in _of_ranks(pipelines, which, pipelines.blocks.asked_ns) if len(which) else ():
        least[mine] = asked.min(axis=1)
    return least


def _of_ranks(
    pipelines: Pipelines, which: Ints, tables: Callable[[Collection[str]], Mapping[str, Ints | Floats]]
) -> Iterator[tuple[Ints, Floats]]:
    """Total time of the passes of all ranks by ``tables`` of letters: positions in ``which``, float64[n, ranks]."""
    for shape, mine in pipelines.by_shape(which):
        times = {name: table[pipelines.key[which[mine]]] for name, table in tables(shape.letters).items()}
        passes = pipelines.healthy_passes(shape, times)
        each = passes.forward + passes.backward
        # half the microbatches on stage s, half on its mirror image: (t[s] + t[S-1-s]) m / 2
        yield mine, (each + each[:, ::-1]) * pipelines.microbatches(which[mine])[:, None] / 2
