"""Levels of the network above NICs, and parts of mixed clusters in which process groups lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simpar.units import Ints

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster


@dataclass(frozen=True)
class Level:
    """A level of the network above NICs: names of its blocks of links up and down, and functions of ranks.

    Messages between ranks with the same ``place`` never need it, given PXN; a single message crosses it between
    different ``switch``es.
    """

    up: str
    down: str
    place: Callable[[Ints], Ints]
    switch: Callable[[Ints], Ints]


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
