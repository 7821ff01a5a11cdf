"""Levels of the network above NICs, and parts of mixed clusters in which process groups lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.dataclass import dataclass
from simpar.units import Ints

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster


@dataclass(frozen=True)
class Level:
    """A level of the network above NICs: names of its blocks of links up and down, and functions of ranks.

    Messages between ranks with the same ``place`` never need it, given PXN; a single message crosses it between
    different ``switch``es. ``joined`` places have links straight to each other, to each in equal shares (0: they do
    not).
    """

    up: str
    down: str
    place: Callable[[Ints], Ints]
    switch: Callable[[Ints], Ints]
    joined: int = 0

    def detour(self, reached: ArrayLike) -> NDArray[np.float64]:
        """Links of a place that a byte takes on average if it goes to one of ``reached`` others in equal shares.

        Of a place's C bytes/s, C reached / (joined - 1) go straight there. The rest leaves over third places, whose own
        links it takes too where all send as much: x + (x - C reached / (joined - 1)) = C, and C / x is returned.
        """
        if self.joined < 2:
            return np.ones(np.shape(reached))
        straight = np.clip(np.asarray(reached, dtype=np.float64) / (self.joined - 1), 0.0, 1.0)
        return np.asarray(2.0 / (1.0 + straight))


@dataclass(frozen=True)
class Home:
    """Process groups in one part of a cluster: ``ranks`` int64[G, N] of ``cluster``, which is that part.

    ``index`` int64[G] are their rows among the groups asked for. ``links`` maps links of the part to links of the whole
    cluster; None where they are the same.
    """

    index: Ints
    ranks: Ints
    cluster: Cluster
    links: Ints | None = None
