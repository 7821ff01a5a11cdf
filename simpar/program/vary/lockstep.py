"""Units: ranks of one class that advance in lockstep, because every block of theirs waits for all of them.

Ranks that communicate inside blocks (tensor, context, expert parallel) meet several times a layer. Where one of
them is slower through a whole pass, the others wait for it at the next collective: the pass of the unit is that of
its slowest rank. So a unit, not a rank, is what has a timeline of its own when ranks differ at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.program.fold.group_routes import GroupKind
from simpar.program.fold.layout import Layout

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """``of_rank`` int64[world] is the unit of every rank; units are numbered class by class.

    ``class_of`` int64[num_units] is the class of every unit, ``first`` int64[num_classes + 1] where the units of a
    class begin.
    """

    of_rank: Ints
    class_of: Ints
    first: Ints

    @staticmethod
    def of(layout: Layout, kinds: Iterable[GroupKind]) -> Units:
        """Units of a layout whose blocks communicate in groups of the given kinds."""
        world = len(layout.class_of_rank)
        part = connected(world, [kind.groups for kind in kinds])
        key, of_rank = np.unique(layout.class_of_rank * world + part, return_inverse=True)
        class_of = key // world
        return Units(
            of_rank.astype(np.int64),
            class_of,
            np.searchsorted(class_of, np.arange(layout.num_classes + 1)).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.class_of)

    def of_class(self, class_id: int) -> slice:
        """The units of a class."""
        return slice(int(self.first[class_id]), int(self.first[class_id + 1]))

    @cached_property
    def ranks(self) -> tuple[Ints, Ints]:
        """Ranks unit by unit, and where each unit begins among them."""
        order = np.argsort(self.of_rank, kind="stable")
        return order, np.searchsorted(self.of_rank[order], np.arange(len(self)))

    @cached_property
    def size(self) -> Ints:
        """Number of ranks of every unit."""
        return np.bincount(self.of_rank, minlength=len(self))


def connected(count: int, groups: Sequence[Ints]) -> Ints:
    """Number of the connected part of every one of ``count`` things, joined by groups int64[G, N] of them."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = [np.zeros((2, 0), dtype=np.int64)]
    for each in groups:
        first = np.broadcast_to(each[:, :1], each.shape)
        ends.append(np.stack([first.ravel(), each.ravel()]))
    before, after = np.concatenate(ends, axis=1)
    graph = coo_array((np.ones(len(before), dtype=np.int8), (before, after)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
