"""The table of algorithms and what the file of each one defines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from simpar.cost.collectives import direct, halving_doubling, hierarchical, nvls, ring, sharp, star, tree
from simpar.cost.collectives.placement import Placement, Shape
from simpar.cost.collectives.traffic import Loads


class Algorithm(Protocol):
    """What every algorithm's file defines."""

    @property
    def NAME(self) -> str:  # noqa: N802 - constants of a module
        """Its name."""

    @property
    def OPS(self) -> tuple[str, ...]:  # noqa: N802
        """What it can do."""

    @property
    def PROTOCOLS(self) -> tuple[str, ...]:  # noqa: N802
        """Its protocols: low latency first, full bandwidth last."""

    @property
    def RATES(self) -> Mapping[str, tuple[str, str]]:  # noqa: N802
        """By op, the parameters that hold its shares of ports and of NICs."""

    @property
    def NUM_SMS(self) -> Mapping[str, int]:  # noqa: N802
        """By op, multiprocessors (NCCL: one a channel) that are busy while it runs."""

    def refuses(self, op: str, placement: Placement, /) -> str | None:
        """Why a group cannot use the algorithm, or None."""

    def automatic(self, op: str, shape: Shape, /) -> bool:
        """Whether the library considers it by itself."""

    def hops(self, op: str, shape: Shape, /) -> dict[str, float]:
        """How often each latency parameter counts."""

    def loads(self, op: str, placement: Placement, /) -> Loads:
        """Bytes on links per byte of size."""


ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
    "nvls": nvls,
    "sharp": sharp,
    "star": star,
    "direct": direct,
}
OPS = tuple(sorted({op for module in ALGORITHMS.values() for op in module.OPS}))
POINT_TO_POINT = direct.OPS
