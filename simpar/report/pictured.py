"""What pictures beside the timeline show: memory at the peak by layer, and kernels under the device's roofline."""

from collections.abc import Mapping

from simpar.calls import Strict


class HeldPart(Strict):
    """Bytes of a category at the peak: ``name`` is a layer ("embedding", "layer 3", "head") or what else it is."""

    category: str
    name: str
    size_bytes: float


class HeldAtPeak(Strict):
    """What the fullest rank holds when its memory peaks, which ``parts`` add up to."""

    stage: int
    capacity_bytes: float
    parts: tuple[HeldPart, ...]

    @property
    def total_bytes(self) -> float:
        """The peak."""
        return sum(part.size_bytes for part in self.parts)


class KernelPoint(Strict):
    """A direction of an operator for one microbatch on one rank; ``layers`` of the rank run it.

    ``flop`` are those that are not masked, ``moved_bytes`` operands and results once each, ``seconds`` all that it
    takes.
    """

    block: str
    operator: str
    direction: str
    precision: str
    layers: int
    flop: float
    moved_bytes: float
    seconds: float


class Roofline(Strict):
    """Products and attention of one rank, and the data sheet of its device: bytes/s, and FLOP/s by precision.

    ``share`` is the part of the kernels' seconds that ``points`` take; all others compute no products.
    """

    device: str
    bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    share: float
    points: tuple[KernelPoint, ...]
