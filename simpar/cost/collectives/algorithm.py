"""What the file of an algorithm says: its hops in sequence (latency), and the bytes that it puts on links."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from simpar.cost.collectives.placement import GroupShape, Placement
from simpar.cost.collectives.traffic import Edges


class Algorithm(ABC):
    """One algorithm.

    ``OPS`` are the collectives that it can do, ``PROTOCOLS`` go from low latency to full bandwidth, ``RATES`` name the
    parameters with its shares of ports and of NICs. Of equally fast algorithms the one with the lowest ``RANK`` is
    taken.
    """

    NAME: ClassVar[str]
    RANK: ClassVar[int]
    OPS: ClassVar[tuple[str, ...]]
    PROTOCOLS: ClassVar[tuple[str, ...]] = ("ll", "ll128", "simple")
    RATES: ClassVar[tuple[str, str]] = ("port_efficiency", "nic_efficiency")

    def refuses(self, op: str, placement: Placement) -> str | None:
        """Why a group cannot use the algorithm, or None."""
        return self.needs(op, placement) if base_op(op) in self.OPS else f"{op} has no {self.NAME} form"

    def needs(self, _op: str, _placement: Placement) -> str | None:
        """What a group lacks for one of its operations, or None."""
        return None

    def automatic(self, _op: str, _shape: GroupShape) -> bool:
        """Whether the library considers it by itself for one of its operations: always."""
        return True

    def rates(self, _op: str) -> tuple[str, str]:
        """The parameters that hold its shares of ports and of NICs in an operation."""
        return self.RATES

    def rate_cap(self, _op: str, _shape: GroupShape, _values: Mapping[str, float]) -> float | None:
        """The most bytes of size per second, whatever the links, from the values of parameters; None: no cap."""
        return None

    def chain(self, _op: str, _shape: GroupShape) -> int:
        """Network hops in sequence that a whole step of the buffer must make before the next one does; mostly none."""
        return 0

    @abstractmethod
    def hops(self, op: str, shape: GroupShape) -> dict[str, float]:
        """How often each latency parameter counts: parameter name -> hops in sequence."""

    @abstractmethod
    def loads(self, op: str, placement: Placement) -> Edges:
        """Bytes on links per byte of size, before any efficiency."""


def rounds(op: str) -> float:
    """How often data go round: an all-reduce is a reduce-scatter and an all-gather."""
    return 2.0 if op == "all_reduce" else 1.0


def base_op(op: str) -> str:
    """The bare name of an operation; that of a dispatch is followed by numbers of its routing."""
    return op.partition(" ")[0]


def is_exchange(op: str) -> bool:
    """Whether every member sends different data to every other."""
    return base_op(op) in ("all_to_all", "dispatch")


def bus_factor(op: str, ranks: int) -> float:
    """Bytes on the links of a rank per byte of the larger buffer, as nccl-tests counts bus bandwidth."""
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "sendrecv": 1.0, "collective_permute": 1.0}
    return factors.get(op, (ranks - 1) / ranks)
