"""What a plan is checked against, and words about numbers that errors share."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training


@dataclass(frozen=True)
class Workload:
    """What a plan is checked against."""

    graph: ModelGraph
    training: Training
    world_size: int
    devices_per_node: int


def format_divisors(number: int) -> str:
    """The divisors of a number up to 64, separated by commas."""
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)
