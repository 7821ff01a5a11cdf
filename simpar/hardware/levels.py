"""Levels of the network above NICs, and where process groups live in clusters of several kinds of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simpar.units import Ints

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster


@dataclass(frozen=True)
class Level:
    """A level of the network above NICs: methods that give a rank's links up and down, and what they join.

    Messages between ranks of one ``place`` never climb it; a single message climbs it between different ``switch``es.
    """

    up: str
    down: str
    place: Callable[[Ints], Ints]
    switch: Callable[[Ints], Ints]


@dataclass(frozen=True)
class Home:
    """Process groups where they live: ``ranks`` int64[G, N] on ``cluster``, rows ``index`` of what was asked for.

    ``links`` maps links of that cluster to links of the one asked; None where they are the same.
    """

    index: Ints
    ranks: Ints
    cluster: Cluster
    links: Ints | None = None
